"""`klear judge` for files and for other programs, and `klear sandbox check`.

Exit codes of `klear judge`: 0 every answer was judged (right or wrong), 1 some were not (verdict
IE, each with its reason in the file) or a problem was rejected, 2 wrong usage or a file that cannot
be judged.
"""

import io
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from klear.configs.loading import load_group
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.judging import JudgeSettings

_IS_DATA = validators.Path(exists=True, dir_okay=False, ext=("jsonl", "json", "gz", "parquet"))
DataFile = Annotated[Path, Parameter(validator=_IS_DATA)]
sandbox = App(name="sandbox")


def judge(
    *,
    stream: bool = False,
    problems: DataFile | None = None,
    samples: DataFile | None = None,
    out: Path | None = None,
    overrides: Annotated[tuple[str, ...], Parameter("--set")] = (),
) -> int:
    """Judge answers to problems.

    Args:
        stream: {"problem": …, "text": …} lines in, one score line out for each, in order.
        problems: Problems, JSONL or parquet.
        samples: Answers, JSONL or parquet.
        out: Scores to write, one JSON a line.
        overrides: Change a judge setting: --set max_tests=8, --set runtime.workers=2 (repeatable).
    """
    from klear.eval.judge.files import judge_files, run_stream

    settings = load_group(JudgeSettings, overrides)
    if stream and not (problems or samples or out):
        lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8", "replace", newline="\n")
        run_stream(lines, sys.stdout, settings)
        return 0
    if stream or not (problems and samples and out):
        raise ConfigError(["klear judge needs --problems, --samples and --out, or --stream alone"])
    verdicts, rejected = judge_files(problems, samples, out, settings)
    for row in rejected:
        print(f"rejected {row}", file=sys.stderr)
    found = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
    print(f"{verdicts.total()} answers judged: {found or 'none'}; scores in {out}", file=sys.stderr)
    if unscored := verdicts["IE"]:
        print(f"{unscored} could not be judged; see `reason` in the scores", file=sys.stderr)
    return 1 if unscored or rejected else 0


@sandbox.command
def check() -> int:
    """Self-test of the sandbox. Exit codes: 0 it isolates, 1 it does not."""
    from klear.eval.programs.tested_sandbox import check_sandbox

    text, code = check_sandbox(JudgeSettings().sandbox)
    print(text)
    return code
