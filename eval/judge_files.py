"""Judge a file of answers against a file of problems: one Score line for every answer, in order.

Problems and samples are records of `eval.records` in any format of `eval.row_files`. A problem
that is no problem stops the work before it starts, because every answer to it would be lost. A
sample that is no sample, or answers no known problem, gets a Score with verdict IE and the reason.
"""

import os
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from configs.explain import ConfigError
from configs.judging import JudgeSettings
from eval.answers import writable
from eval.judge import Judge
from eval.records import Problem, Sample, Score
from eval.row_files import SUFFIXES, Row, read_rows


def judge_files(
    problems: Path, samples: Path, out: Path, settings: JudgeSettings
) -> "Counter[str]":
    """Write the scores to `out`, all or nothing; how often each verdict was given.

    Raises ConfigError for files that cannot be judged, OSError, and SandboxUnavailable.
    """
    if not out.absolute().parent.is_dir():
        raise ConfigError([f"{out}: its folder does not exist"])
    known = _problems(problems)
    verdicts: Counter[str] = Counter()
    partial = out.with_name(f"{out.name}.partial")
    try:
        with Judge(settings) as judge, partial.open("w", encoding="utf-8") as file:
            for score in _scores(judge, known, _rows(samples)):
                file.write(score.model_dump_json() + "\n")
                verdicts[score.verdict] += 1
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return verdicts


def _rows(path: Path) -> Iterator[Row]:
    if not path.exists():
        raise ConfigError([f"{path}: no such file"])
    if not path.name.endswith(SUFFIXES):
        raise ConfigError([f"{path}: expected one of {', '.join(SUFFIXES)}"])
    try:
        yield from read_rows(path)
    except ValueError as error:  # damaged
        raise ConfigError([str(error)]) from error


def _problems(path: Path) -> dict[str, Problem]:
    found: dict[str, Problem] = {}
    for row in _rows(path):
        place = f"{path}:{row.number}"
        try:
            problem = Problem.model_validate(row.value)
        except ValidationError as error:
            raise ConfigError([f"{place}: {row.error or _first(error)}"]) from error
        if found.setdefault(problem.id, problem) != problem:
            raise ConfigError([f"{place}: another problem has the id {problem.id!r} already"])
    if not found:
        raise ConfigError([f"{path}: holds no problem"])
    return found


def _scores(judge: Judge, known: dict[str, Problem], rows: Iterator[Row]) -> Iterator[Score]:
    """In the order of the rows; those that cannot be judged keep their place."""
    places: deque[Score | None] = deque()

    def answers() -> Iterator[tuple[Problem, str, int]]:
        for row in rows:
            unread = _unjudged(row, known)
            places.append(unread)
            if unread is None and row.value is not None:
                sample = Sample.model_validate(row.value)
                yield known[sample.problem_id], sample.text, sample.index

    for score in judge.judge_many(answers()):
        while (unread := places.popleft()) is not None:
            yield unread
        yield score
    yield from filter(None, places)


def _unjudged(row: Row, known: dict[str, Problem]) -> Score | None:
    """The Score of a row that is no answer to a known problem."""
    value = row.value or {}
    try:
        sample = Sample.model_validate(row.value)
    except ValidationError as error:
        why = row.error or _first(error)
    else:
        if sample.problem_id not in known:
            why = f"answers {sample.problem_id!r}, which is no problem here"
        elif sample.finish_reason == "error":
            why = "the engine gave no answer"
        else:
            return None
    index = value.get("index")
    return Score(
        problem_id=writable(str(value.get("problem_id") or "")),
        index=index if isinstance(index, int) else 0,
        reward=None,
        correct=None,
        pass_rate=None,
        verdict="IE",
        reason=writable(f"{row.file}:{row.number} is not judged: {why}"[:500]),
    )


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'row'}: {first['msg']}"
