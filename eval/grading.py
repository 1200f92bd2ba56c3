"""Choosing a few graded answers of a stage and asking the judge about every single test."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq

from configs.judging import JudgeSettings
from eval.answers import extract_boxed, extract_program
from eval.graded import Check, Graded
from eval.judge import Judge
from eval.records import Problem, Record, Score
from eval.run_readings import first_and_last, right_and_wrong, rows_at
from eval.table_lookup import Lookup
from eval.tables import column, read_table

ANSWERS = 6
CHECKS = 8
SECONDS = 60.0
"""After this no further program is run again: its answer is shown with its grade alone."""
LONGEST_TEXT = 20_000
LONGEST_VALUE = 2_000
FROM_THE_ROW = ("step", "problem_id", "index", "verdict", "reward", "correct", "pass_rate")


def grade_some(folder: Path, problems: Iterable[Path], settings: JudgeSettings) -> list[Graded]:
    """A sample of the answers in a stage's folder, chosen by rule; `problems` are looked up.

    Rollouts: lowest to highest reward, first and last step. Benchmarks: right and wrong ones. A
    program is run again, once a test, by the same judge: a score names its first failure only.
    """
    rows, until = list(_rows(folder)), time.monotonic() + SECONDS
    with ExitStack() as stack:
        tables = [Lookup(path, Problem) for path in problems]
        judge = stack.enter_context(Judge(settings))
        graded = []
        for row in rows:
            found = (table.get(str(row["problem_id"])) for table in tables)
            problem = next((p for p in found if p), None)
            graded.append(_graded(row, problem, judge if time.monotonic() < until else None))
    return graded


def _rows(folder: Path) -> Iterator[dict]:
    rollouts, samples = folder / "rollouts.parquet", folder / "samples.parquet"
    if rollouts.exists():
        names = pq.read_schema(rollouts).names
        if {"step", "reward", "problem_id", "text", "verdict"} <= set(names):
            steps = [int(s) for s in column(rollouts, "step")]
            rewards = list(column(rollouts, "reward"))
            yield from rows_at(rollouts, first_and_last(steps, rewards, ANSWERS))
    elif samples.exists() and (folder / "scores.parquet").exists():
        scores = {(s.problem_id, s.index): s for s in read_table(folder / "scores.parquet", Score)
                  if s.index == 0}  # fmt: skip
        chosen = right_and_wrong(list(scores.values()), ANSWERS)
        wanted = {(s.problem_id, s.index) for s in chosen}
        keys = zip(column(samples, "problem_id"), column(samples, "index"), strict=True)
        for row in rows_at(samples, [i for i, key in enumerate(keys) if key in wanted]):
            score = scores[row["problem_id"], row["index"]]
            yield {**row, **score.model_dump(exclude={"answer", "seconds"})}


def _graded(row: dict, problem: Problem | None, judge: Judge | None) -> Graded:
    text = str(row["text"])
    is_code = problem is not None and problem.domain == "code"
    answer = (extract_program if is_code else extract_boxed)(text).answer
    checks, in_all = _checks(problem, text, answer, row, judge) if problem else ((), 0)
    kept = {name: row.get(name) for name in FROM_THE_ROW}
    return Graded.model_validate(
        {
            **kept,
            "reason": str(row.get("reason") or ""),
            "prompt": _cut(problem.prompt if problem else str(row["problem_id"])),
            "text": _cut(text),
            "answer": None if answer is None else _cut(answer),
            "checks": checks,
            "checks_in_all": in_all,
        }
    )


def _checks(
    problem: Problem, text: str, answer: str | None, row: dict, judge: Judge | None
) -> tuple[tuple[Check, ...], int]:
    if problem.tests is None:
        gold = problem.answer or ""
        reason = str(row.get("reason") or "")
        one = Check(name="gold answer", input=answer or "", expected=gold,
                    verdict=row["verdict"], reason=reason)  # fmt: skip
        return (one,), 1
    cases = problem.tests.cases
    if answer is None or judge is None:
        return (), len(cases)
    shown = cases[:CHECKS]
    pending = [
        judge.begin(
            problem.model_copy(
                update={"tests": problem.tests.model_copy(update={"cases": (case,)})}
            ),
            text,
            index,
        )
        for index, case in enumerate(shown)
    ]
    checks = [
        Check(
            name=f"test {i} of {len(cases)}",
            input=_value(case, "input", "args", "code"),
            expected=_value(case, "output"),
            verdict=(score := wait()).verdict,
            reason=score.reason.removeprefix("test 1 of 1: "),
        )
        for i, (case, wait) in enumerate(zip(shown, pending, strict=True), 1)
    ]
    return tuple(checks), len(cases)


def _value(case: Record, *names: str) -> str:
    value = next((getattr(case, n) for n in names if hasattr(case, n)), "")
    return (value if isinstance(value, str) else repr(value))[:LONGEST_VALUE]


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
