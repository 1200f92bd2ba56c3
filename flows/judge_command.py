"""`klear judge --problems P --samples S --out FILE`, and `klear judge --stream` for other programs.

Exit codes: 0 every answer was judged (right or wrong), 1 some were not (verdict IE, each with its
reason in the file), 2 wrong usage or a file that cannot be judged.
"""

import argparse
import io
import sys
from pathlib import Path

DONE, FAILED = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klear judge`."""
    parser.add_argument(
        "--stream", action="store_true",
        help='{"problem": …, "text": …} lines in, one score line out for each, in order',
    )  # fmt: skip
    parser.add_argument("--problems", type=Path, metavar="FILE", help="problems, JSONL or parquet")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="answers, JSONL or parquet")
    parser.add_argument("--out", type=Path, metavar="FILE", help="scores to write, one JSON a line")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE",
        help="change a judge setting: --set max_tests=8 (repeatable)",
    )  # fmt: skip
    parser.add_argument("--sandbox", help="short for --set sandbox=…")
    parser.add_argument("--workers", type=int, help="judge workers (0: one per core)")
    parser.set_defaults(wrong_usage=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Judge, then say on stderr what was found. Raises ConfigError for wrong usage."""
    from configs.judging import JudgeSettings
    from configs.load import load_group

    overrides = list(arguments.overrides)
    if arguments.sandbox is not None:
        overrides.append(f"sandbox={arguments.sandbox}")
    if arguments.workers is not None:
        overrides.append(f"runtime.workers={arguments.workers}")
    settings = load_group(JudgeSettings, overrides)
    files = {name: getattr(arguments, name) for name in ("problems", "samples", "out")}
    missing = [f"--{name}" for name, path in files.items() if path is None]
    if arguments.stream:
        if len(missing) < len(files):
            arguments.wrong_usage("--stream reads standard input and takes no files")
        from eval.stream import run_stream

        lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8", "replace", newline="\n")
        return run_stream(lines, sys.stdout, settings) or DONE
    if missing:
        arguments.wrong_usage(f"missing {', '.join(missing)} (or --stream)")
    from eval.judge_files import judge_files

    verdicts = judge_files(settings=settings, **files)
    total, unscored = verdicts.total(), verdicts["IE"]
    found = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
    print(f"{total} answers judged: {found or 'none'}; scores in {arguments.out}", file=sys.stderr)
    if unscored:
        print(f"{unscored} could not be judged; see `reason` in the scores", file=sys.stderr)
    return FAILED if unscored else DONE
