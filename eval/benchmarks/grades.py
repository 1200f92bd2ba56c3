"""Grades to read: a few answers with every check, and our judge beside published grades."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..records import Count, Problem, Record, Sample, Score, Verdict
from .metrics import wilson_interval

GRADED = "logs/graded.jsonl"
GOLD = "gold answer"  # the name of the check that compares an answer with the one of its problem
TAIL_CHARS = 300


class Check(Record):
    """One test of a program, or the comparison with the gold answer."""

    name: str
    input: str
    expected: str
    verdict: Verdict
    reason: str = ""


class Graded(Record):
    """One answer and its grade, as they stand in the stage's tables; texts may be cut."""

    step: int | None = None  # rollout step in RL; None for a benchmark's answer
    place: int | None = None  # of that answer, in the order in which they came: 1, 2, …
    problem_id: str
    index: int
    prompt: str
    text: str
    answer: str | None
    verdict: Verdict
    reward: float | None
    correct: bool | None
    pass_rate: float | None
    reason: str = ""
    checks: tuple[Check, ...] = ()
    checks_in_all: Count = 0


def read_graded(path: Path) -> list[Graded]:
    if not path.exists():
        return []
    with path.open("rb") as file:  # not splitlines of a text: an answer may hold its separators
        return [Graded.model_validate_json(line) for line in file]


class Grade(Record):
    """The published grade of one recorded sample."""

    problem_id: str
    index: Count
    model: str
    correct: bool


class Disagreement(NamedTuple):
    """One answer on which judge and grade differ, with what a reader needs to settle it."""

    grade: Grade
    score: Score
    prompt: str
    gold: str  # the gold answer; empty for a program, which tests judge
    tail: str  # the last characters of the answer


class Agreement(NamedTuple):
    """Confusion counts of judge against grades."""

    both_right: int
    both_wrong: int
    only_ours: int  # right for our judge, wrong as published
    only_published: int
    unscored: int  # graded samples that our judge could not score: in no share
    ungraded: int  # scored samples without a published grade: in no share
    compared: int
    share: float | None  # of the compared ones, where both say the same; None for none
    interval: tuple[float, float]  # 95 % Wilson interval of `share`
    disagreements: list[Disagreement]


def compare(
    problems: Iterable[Problem], samples: Iterable[Sample], scores: Iterable[Score],
    grades: Iterable[Grade],
) -> Agreement:  # fmt: skip
    """Verdicts beside grades, by (problem id, index); an unknown problem has empty texts."""
    published = {(g.problem_id, g.index): g for g in grades}
    judged = {(s.problem_id, s.index): s for s in scores}
    keys = [key for key in sorted(published) if key in judged and judged[key].correct is not None]
    pairs = [(key, judged[key], published[key]) for key in keys]
    counts = Counter((score.correct, grade.correct) for _, score, grade in pairs)
    differing = {key: (g, s) for key, s, g in pairs if s.correct != g.correct}
    keyed = (((s.problem_id, s.index), s.text) for s in samples)
    tails = {key: text[-TAIL_CHARS:] for key, text in keyed if key in differing}
    texts = {p.id: (p.prompt, p.answer or "") for p in problems}
    agreed = counts[True, True] + counts[False, False]
    return Agreement(
        both_right=counts[True, True],
        both_wrong=counts[False, False],
        only_ours=counts[True, False],
        only_published=counts[False, True],
        unscored=len(published) - len(pairs),
        ungraded=len(judged.keys() - published.keys()),
        compared=len(pairs),
        share=agreed / len(pairs) if pairs else None,
        interval=wilson_interval(agreed, len(pairs)),
        disagreements=[
            Disagreement(*both, *texts.get(key[0], ("", "")), tails.get(key, ""))
            for key, both in differing.items()
        ],
    )
