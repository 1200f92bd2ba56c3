"""How often the answers to a problem pass: the count behind difficulty and the RL filter."""

from collections.abc import Iterable
from dataclasses import dataclass

from eval.records import Score


@dataclass(frozen=True)
class Tally:
    """Answers to one problem; unscored ones count as samples only."""

    samples: int = 0
    scored: int = 0
    passed: int = 0

    @property
    def pass_rate(self) -> float | None:
        """passed / scored in [0, 1]; None when nothing was scored."""
        return self.passed / self.scored if self.scored else None

    def with_score(self, score: Score) -> "Tally":
        return Tally(
            samples=self.samples + 1,
            scored=self.scored + (not score.unscored),
            passed=self.passed + bool(score.correct),
        )


def tally(scores: Iterable[Score]) -> dict[str, Tally]:
    """problem_id → Tally, in one pass."""
    tallies: dict[str, Tally] = {}
    for score in scores:
        tallies[score.problem_id] = tallies.get(score.problem_id, Tally()).with_score(score)
    return tallies


def pass_rate_histogram(rates: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Problems by domain and tenth of their pass rate; 1.0 has a column of its own."""
    counts: dict[str, float] = {}
    for domain, rate in sorted(rates):
        name = f"pass_rate/{domain}/{int(rate * 10) / 10:.1f}"
        counts[name] = counts.get(name, 0.0) + 1.0
    return counts
