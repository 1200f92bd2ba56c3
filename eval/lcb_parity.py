"""LiveCodeBench's official verdict beside ours, for the same programs.

Our judge runs programs in a real interpreter, so it accepts ways to read and write that the
official runner rejects, and scores are a little higher. A comparison with published scores needs
both: judge the samples again with `official(settings)` and put the two side by side.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from configs.judging import JudgeSettings
from eval.records import Record, Score, Verdict

Count = Annotated[int, Field(ge=0)]


class Difference(Record):
    """One program on which the two rules disagree."""

    problem_id: str
    index: int
    ours: Verdict
    official: Verdict
    reason: str
    """Of the verdict that says no."""


class SideBySide(Record):
    """Confusion counts over the samples that both rules scored; shares are None without any."""

    both_right: Count
    both_wrong: Count
    only_ours: Count
    only_official: Count
    unscored: Count
    """Samples that either rule could not score: in no share."""
    differences: tuple[Difference, ...]

    @property
    def compared(self) -> int:
        return self.both_right + self.both_wrong + self.disagreements

    @property
    def disagreements(self) -> int:
        return self.only_ours + self.only_official

    @property
    def ours(self) -> float | None:
        """Share of right samples by our rule."""
        return (self.both_right + self.only_ours) / self.compared if self.compared else None

    @property
    def official(self) -> float | None:
        """Share of right samples by LiveCodeBench's rule."""
        return (self.both_right + self.only_official) / self.compared if self.compared else None


def official(settings: JudgeSettings) -> JudgeSettings:
    """The same judge under LiveCodeBench's rules: its runner, its comparison, every test."""
    changes = {"comparator": "livecodebench", "max_tests": None, "stop_at_first_failure": True}
    return settings.model_copy(update=changes)


def side_by_side(ours: Iterable[Score], theirs: Iterable[Score]) -> SideBySide:
    """Compare two judgements of the same samples, matched by (problem id, index)."""
    other = {(s.problem_id, s.index): s for s in theirs}
    counts = {(True, True): 0, (False, False): 0, (True, False): 0, (False, True): 0}
    unscored, differences = 0, []
    for score in ours:
        same = other.get((score.problem_id, score.index))
        if same is None or score.correct is None or same.correct is None:
            unscored += 1
            continue
        counts[score.correct, same.correct] += 1
        if score.correct != same.correct:
            differences.append(_difference(score, same))
    return SideBySide(
        both_right=counts[True, True],
        both_wrong=counts[False, False],
        only_ours=counts[True, False],
        only_official=counts[False, True],
        unscored=unscored,
        differences=tuple(differences),
    )


def _difference(ours: Score, official: Score) -> Difference:
    return Difference(
        problem_id=ours.problem_id,
        index=ours.index,
        ours=ours.verdict,
        official=official.verdict,
        reason=official.reason if ours.correct else ours.reason,
    )
