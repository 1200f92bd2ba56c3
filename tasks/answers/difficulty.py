"""Difficulty: the rater's pass rate decides whether a prompt is easy or hard (§3.1, §5.1.1).

Or its source does, where it is known how hard a source's problems are.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from configs.settings.data import DifficultySettings
from eval.records import Domain, Problem, Record, Score
from eval.tables import TableWriter, count_rows, read_table
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact

Label = Literal["easy", "hard", "unrated"]


class Difficulty(Record):
    """One problem and how the rater fared; unrated when none of its answers was scored, as with a
    problem that is not judgeable. A label by source needs no score.
    """

    problem_id: str
    source: str
    domain: Domain
    pass_rate: float | None
    scored: int
    label: Label


@dataclass
class Tally:
    """Answers to one problem; unscored ones count as samples only."""

    samples: int = 0
    scored: int = 0
    passed: int = 0

    @property
    def pass_rate(self) -> float | None:
        """passed / scored in [0, 1]; None when nothing was scored."""
        return self.passed / self.scored if self.scored else None


def tally(scores: Iterable[Score]) -> dict[str, Tally]:
    """problem_id → Tally, in one pass."""
    tallies: dict[str, Tally] = {}
    for score in scores:
        counted = tallies.setdefault(score.problem_id, Tally())
        counted.samples += 1
        counted.scored += not score.unscored
        counted.passed += bool(score.correct)
    return tallies


def pass_rate_histogram(rates: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Problems by domain and tenth of their pass rate; 1.0 has a column of its own."""
    names = (f"pass_rate/{domain}/{int(rate * 10) / 10:.1f}" for domain, rate in sorted(rates))
    return {name: float(count) for name, count in Counter(names).items()}


def label_of(settings: DifficultySettings, source: str, pass_rate: float | None) -> Label:
    """By what the settings let decide: the source, or the pass rate, of which none is no label."""
    if settings.rater == "source":
        if source in settings.easy_sources:
            return "easy"
        return "hard" if source in settings.hard_sources else "unrated"
    if pass_rate is None:
        return "unrated"
    return "easy" if pass_rate > settings.easy_above else "hard"


@stage(version=1)
def difficulty(
    out: Path,
    problems: Artifact,
    samples: Artifact,
    scores: Artifact,
    *,
    settings: DifficultySettings,
) -> Metrics:
    """Label every problem by the share of the rater's scored answers that are correct.

    The metrics have the mean pass rate of each label too, whatever decided the label.
    """
    answered = count_rows(samples.file("samples.parquet"))
    judged = count_rows(scores.file("scores.parquet"))
    if answered != judged:
        raise ValueError(f"{answered} samples but {judged} scores: rerun the judge stage")
    tallies = tally(read_table(scores.file("scores.parquet"), Score))
    labels: Counter[Label] = Counter({"easy": 0, "hard": 0, "unrated": 0})
    rates: list[tuple[Label, Domain, float]] = []
    not_judgeable = 0
    with TableWriter(out / "difficulty.parquet", Difficulty) as writer:
        for problem in read_table(problems.file("kept.parquet"), Problem):
            counted = tallies.get(problem.id, Tally())
            row = Difficulty(
                problem_id=problem.id,
                source=problem.source,
                domain=problem.domain,
                pass_rate=counted.pass_rate,
                scored=counted.scored,
                label=label_of(settings, problem.source, counted.pass_rate),
            )
            labels[row.label] += 1
            not_judgeable += not problem.judgeable
            if row.pass_rate is not None:
                rates.append((row.label, row.domain, row.pass_rate))
            writer.write(row)
    rated = labels["easy"] + labels["hard"]
    by_label = {name: [rate for label, _, rate in rates if label == name] for name in labels}
    return {
        **{name: float(count) for name, count in labels.items()},
        "not_judgeable": float(not_judgeable),
        "hard_share": labels["hard"] / rated if rated else 0.0,
        **{f"mean_pass_rate/{name}": fmean(found) for name, found in by_label.items() if found},
        **pass_rate_histogram((domain, rate) for _, domain, rate in rates),
    }
