"""How often our judge and the grades published with recorded answers say the same."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from eval.benchmarks.metrics import wilson_interval
from eval.records import Problem, Record, Sample, Score, Verdict

TAIL_CHARS = 300


class Grade(Record):
    """The published grade of one recorded sample."""

    problem_id: str
    index: Annotated[int, Field(ge=0)]
    model: str
    correct: bool


class Disagreement(Record):
    """One answer on which judge and grade differ, with what a reader needs to settle it."""

    problem_id: str
    index: int
    model: str
    prompt: str
    gold: str
    """The gold answer; empty for a program, which tests judge."""
    extracted: str
    published: bool
    ours: bool
    verdict: Verdict
    reason: str
    tail: str
    """The last characters of the answer."""


class Agreement(Record):
    """Confusion counts of judge against grades; nothing compared gives `share` None."""

    both_right: int
    both_wrong: int
    only_ours: int
    """Right for our judge, wrong as published."""
    only_published: int
    unscored: int
    """Graded samples that our judge could not score: in no share."""
    ungraded: int
    """Scored samples without a published grade: in no share."""
    disagreements: tuple[Disagreement, ...]

    @property
    def compared(self) -> int:
        return self.both_right + self.both_wrong + self.only_ours + self.only_published

    @property
    def share(self) -> float | None:
        return (self.both_right + self.both_wrong) / self.compared if self.compared else None

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of `share`."""
        return wilson_interval(self.both_right + self.both_wrong, self.compared)


def compare(
    problems: Iterable[Problem],
    samples: Iterable[Sample],
    scores: Iterable[Score],
    grades: Iterable[Grade],
) -> Agreement:
    """Compare verdicts with grades, matched by (problem id, index).

    A score of a problem that `problems` lacks is still compared; only its texts stay empty.
    """
    published = {(g.problem_id, g.index): g for g in grades}
    judged = {(s.problem_id, s.index): s for s in scores}
    pairs = {
        key: (judged[key], grade)
        for key, grade in sorted(published.items())
        if key in judged and judged[key].correct is not None
    }
    counts = Counter((score.correct, grade.correct) for score, grade in pairs.values())
    differing = {k: pair for k, pair in pairs.items() if pair[0].correct != pair[1].correct}
    known = {p.id: p for p in problems}
    texts = {key: s.text for s in samples if (key := (s.problem_id, s.index)) in differing}
    disagreements: list[Disagreement] = []
    for key, (score, grade) in differing.items():
        problem = known.get(score.problem_id)
        disagreements.append(
            Disagreement(
                problem_id=score.problem_id,
                index=score.index,
                model=grade.model,
                prompt=problem.prompt if problem else "",
                gold=(problem.answer or "") if problem else "",
                extracted=score.answer or "",
                published=grade.correct,
                ours=bool(score.correct),
                verdict=score.verdict,
                reason=score.reason,
                tail=texts.get(key, "")[-TAIL_CHARS:],
            )
        )
    return Agreement(
        both_right=counts[True, True],
        both_wrong=counts[False, False],
        only_ours=counts[True, False],
        only_published=counts[False, True],
        unscored=len(published) - len(pairs),
        ungraded=len(judged.keys() - published.keys()),
        disagreements=tuple(disagreements),
    )
