"""Difficulty: the rater's pass rate decides whether a prompt is easy or hard (§3.1, §5.1.1).

Or its source does, where it is known how hard a source's problems are.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ...configs.settings.data import DifficultySettings
from ...eval.records import Domain, Problem, PublishedRate, Record, Score
from ...eval.records.tables import TableWriter, count_rows, read_table
from ...training.launch.result_files import KEPT, SAMPLES, SCORES
from ..data.sources import PASS_RATES
from ..engine.stage import Metrics, stage
from ..store.store import Artifact

Label = Literal["easy", "hard", "unrated"]


class Difficulty(Record):
    """One problem and how the rater fared; unrated when none of its answers was scored."""

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
    passed: float = 0
    published: bool = False
    """Counted by somebody else."""

    @property
    def pass_rate(self) -> float | None:
        """passed / scored in [0, 1]; None when nothing was scored."""
        return self.passed / self.scored if self.scored else None

    def add(self, answers: int, scored: int, passed: float) -> None:
        self.samples += answers
        self.scored += scored
        self.passed += passed


def tallies_of(evidence: Artifact) -> dict[str, Tally]:
    """problem_id → Tally, of the scores of a judge stage, or of the pass rates that `collect` found
    in rows: those of one problem are added up."""
    tallies: dict[str, Tally] = {}
    if evidence.stage != "collect":
        for score in read_table(evidence.file(SCORES), Score):
            counted = tallies.setdefault(score.problem_id, Tally())
            counted.add(1, not score.unscored, bool(score.correct))
        return tallies
    for rate in read_table(evidence.file(PASS_RATES), PublishedRate):
        counted = tallies.setdefault(rate.problem_id, Tally(published=True))
        counted.add(rate.answers, rate.answers, rate.rate * rate.answers)
    return tallies


def published_among(tallies: Mapping[str, Tally]) -> Metrics:
    """How many of the problems somebody else has counted, where any is."""
    count = sum(t.published for t in tallies.values())
    return {"published": count} if count else {}


def label_of(settings: DifficultySettings, source: str, pass_rate: float | None) -> Label:
    """By what the settings let decide: the source, or the pass rate, of which none is no label."""
    if settings.rater == "source":
        easy, hard = source in settings.easy_sources, source in settings.hard_sources
    else:
        easy = pass_rate is not None and pass_rate > settings.easy_above
        hard = pass_rate is not None and not easy
    return "easy" if easy else "hard" if hard else "unrated"


@stage(version=1, group="data")
def difficulty(
    out: Path, problems: Artifact, *rated: Artifact, settings: DifficultySettings
) -> Metrics:
    """Label every problem by the share of the rater's scored answers that are correct.

    `rated`: samples and their scores, or the collected rows that bring pass rates.
    """
    if settings.rater != "published":
        answered = count_rows(rated[0].file(SAMPLES))
        judged = count_rows(rated[1].file(SCORES))
        if answered != judged:
            raise ValueError(f"{answered} samples but {judged} scores: rerun the judge stage")
    tallies = tallies_of(rated[-1])
    labels, not_judgeable = Counter[Label](), 0
    with TableWriter(out / "difficulty.parquet", Difficulty) as writer:
        for problem in read_table(problems.file(KEPT), Problem):
            counted = tallies.get(problem.id, Tally())
            row = Difficulty(
                problem_id=problem.id,
                source=problem.source,
                domain=problem.domain,
                pass_rate=counted.pass_rate,
                scored=counted.scored,
                label=label_of(settings, problem.source, counted.pass_rate),
            )
            writer.write(row)
            labels[row.label] += 1
            not_judgeable += not problem.judgeable
    counts = {**{name: labels[name] for name in get_args(Label)}, "not_judgeable": not_judgeable}
    return {**counts, **published_among(tallies)}
