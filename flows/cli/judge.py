"""`klear judge` for files and for other programs, and `klear sandbox check`.

Exit codes of `klear judge`: 0 every answer was judged (right or wrong), 1 some were not (verdict
IE, each with its reason in the file) or a problem was rejected, 2 wrong usage or a file that cannot
be judged.
"""

import io
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from ...configs.loading import load_group
from ...configs.settings.explain import ConfigError
from ...configs.settings.judging import JudgeSettings
from ...eval.records.row_files import SUFFIXES

_ENDINGS = tuple(dict.fromkeys(suffix.rpartition(".")[2] for suffix in SUFFIXES))
_IS_DATA = validators.Path(exists=True, dir_okay=False, ext=_ENDINGS)
DataFile = Annotated[Path, Parameter(validator=_IS_DATA)]
sandbox = App(name="sandbox")


def judge(
    *,
    stream: bool = False,
    problems: DataFile | None = None,
    samples: DataFile | None = None,
    out: Path | None = None,
    fields: str = "",
    use: str = "",
    overrides: Annotated[tuple[str, ...], Parameter("--set")] = (),
) -> int:
    """Judge answers to problems.

    Args:
        stream: {"problem": …, "text": …} lines in, one score line out for each, in order.
        problems: Problems, in rows of any kind: JSONL, JSON, CSV, TSV (also .gz, .zst) or parquet.
        samples: Answers: problem_id (the row's own id or number), index, model, text.
        out: Scores to write, one JSON a line.
        fields: Fields of the problems: prompt=Question,gold="Correct Answer".
        use: Catalogue entry whose fields the problems have.
        overrides: Change a judge setting: --set max_tests=8, --set runtime.workers=2 (repeatable).
    """
    from ...eval.judge.files import judge_files, run_stream
    from ...eval.rows.reading import source_of

    settings = load_group(JudgeSettings, overrides)
    if stream and not (problems or samples or out):
        lines = io.TextIOWrapper(sys.stdin.buffer, "utf-8", "replace", newline="\n")
        run_stream(lines, sys.stdout, settings)
        return 0
    if stream or not (problems and samples and out):
        raise ConfigError(["klear judge needs --problems, --samples and --out, or --stream alone"])
    source = source_of(problems.name, problems, fields, use)
    say = partial(print, file=sys.stderr)
    verdicts, rejected = judge_files(problems, samples, out, settings, source, say)
    for row in rejected:
        print(f"rejected {row}", file=sys.stderr)
    counts = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
    print(
        f"{verdicts.total()} answers judged: {counts or 'none'}; scores in {out}", file=sys.stderr
    )
    if unscored := verdicts["IE"]:
        print(f"{unscored} could not be judged; see `reason` in the scores", file=sys.stderr)
    return 1 if unscored or rejected else 0


@sandbox.command
def check() -> int:
    """Self-test of the sandbox. Exit codes: 0 it isolates, 1 it does not."""
    from ...eval.programs.tested_sandbox import check_sandbox

    text, code = check_sandbox(JudgeSettings().sandbox)
    print(text)
    return code
