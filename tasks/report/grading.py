"""A few graded answers of a stage, chosen by rule, with what the judge says of every single test.

They lie beside a result (`logs/graded.jsonl`) for MLflow and for the report's readers.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...configs.settings.judging import JudgeSettings
from ...eval.answers import extract_boxed, extract_program
from ...eval.benchmarks.grades import GOLD, Check, Graded
from ...eval.judge.judge import Judge
from ...eval.records import Problem, Record, Score, TestSuite
from ...eval.records.tables import Lookup, column, read_table
from ...training.engines.generate import answer_places
from .results import rows_at

ANSWERS = 6
CHECKS = 8
SECONDS = 60.0
"""After this no further program is run again: its answer is shown with its grade alone."""
LONGEST_TEXT = 20_000
LONGEST_VALUE = 2_000
FROM_THE_ROW = ("step", "place", "problem_id", "index", "verdict", "reward", "correct", "pass_rate")


def grade_some(folder: Path, problems: Path, settings: JudgeSettings) -> list[Graded]:
    """A sample of the answers in a stage's folder, from the lowest to the highest reward, of
    rollouts in the first and the last step; their problems are looked up.

    A program is run again, once a test, by the same judge: a score names its first failure only.
    """
    until = time.monotonic() + SECONDS
    problems_by_id, graded = Lookup(problems, Problem), []
    with Judge(settings) as judge:
        for row in _chosen(folder):
            problem = problems_by_id.get(row["problem_id"])
            assert problem is not None, "it is one of those that were answered"
            graded.append(_graded(row, problem, judge if time.monotonic() < until else None))
    return graded


def _chosen(folder: Path) -> Iterator[dict]:
    rollouts, samples = folder / "rollouts.parquet", folder / "samples.parquet"
    if rollouts.exists():
        steps, rewards = list(column(rollouts, "step")), list(column(rollouts, "reward"))
        for step in sorted({min(steps), max(steps)} if steps else ()):
            of_step = [i for i, s in enumerate(steps) if s == step]
            yield from rows_at(rollouts, lowest_to_highest(of_step, rewards, ANSWERS // 2))
    elif samples.exists() and (folder / "scores.parquet").exists():
        scores = [s for s in read_table(folder / "scores.parquet", Score) if s.index == 0]
        rewards = [s.reward for s in scores]
        keys = list(zip(column(samples, "problem_id"), column(samples, "index"), strict=True))
        places = answer_places(folder)
        for i in lowest_to_highest(range(len(scores)), rewards, ANSWERS):
            (row,) = rows_at(samples, [keys.index(key := (scores[i].problem_id, 0))])
            yield {**row, **scores[i].model_dump(exclude={"answer"}), "place": places.get(key)}


def lowest_to_highest(
    rows: Sequence[int], rewards: Sequence[float | None], count: int
) -> list[int]:
    """`count` of the rows, evenly from the lowest reward to the highest."""
    ranked = sorted(rows, key=lambda i: (rewards[i] or 0.0, i))
    count = min(count, len(ranked))
    return [ranked[round(i * (len(ranked) - 1) / max(count - 1, 1))] for i in range(count)]


def _graded(row: dict, problem: Problem, judge: Judge | None) -> Graded:
    text, reason, tests = str(row["text"]), str(row.get("reason") or ""), problem.tests
    answer = (extract_program if tests else extract_boxed)(text).answer
    if tests:
        checks = _checks(problem, tests, text, judge) if answer is not None and judge else []
    else:
        gold = {"input": answer or "", "expected": problem.answer or ""}
        checks = [Check(name=GOLD, verdict=row["verdict"], reason=reason, **gold)]
    fields: dict[str, Any] = {name: row.get(name) for name in FROM_THE_ROW}
    return Graded(
        **fields,
        prompt=_cut(problem.prompt),
        text=_cut(text),
        answer=None if answer is None else _cut(answer),
        reason=reason,
        checks=tuple(checks),
        checks_in_all=len(tests.cases) if tests else len(checks),
    )


def _checks(problem: Problem, tests: TestSuite, text: str, judge: Judge) -> list[Check]:
    """The first tests, each judged alone."""
    suites = (tests.model_copy(update={"cases": (case,)}) for case in tests.cases[:CHECKS])
    alone = (problem.model_copy(update={"tests": suite}) for suite in suites)
    scores = judge.judge_many((one, text, index) for index, one in enumerate(alone))
    return [
        Check(
            name=f"test {number} of {len(tests.cases)}",
            input=_value(case, "input", "args", "code"),
            expected=_value(case, "output"),
            verdict=score.verdict,
            reason=score.reason.removeprefix("test 1 of 1: "),
        )
        for number, (case, score) in enumerate(zip(tests.cases, scores, strict=False), 1)
    ]


def _value(case: Record, *names: str) -> str:
    value = next((getattr(case, n) for n in names if hasattr(case, n)), "")
    return (value if isinstance(value, str) else repr(value))[:LONGEST_VALUE]


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
