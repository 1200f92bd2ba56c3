"""Difficulty: the rater's pass rate decides whether a prompt is easy or hard (§3.1, §5.1.1).

Or its source does, where it is known how hard a source's problems are.
"""

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Literal

from configs.settings.data import DifficultySettings
from eval.records import Domain, Problem, Record, Score
from eval.tables import TableWriter, count_rows, read_table
from tasks.answers.pass_rates import Tally, pass_rate_histogram, tally
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


def label_of(pass_rate: float | None, easy_above: float) -> Label:
    """Easy strictly above `easy_above`; no pass rate is neither easy nor hard."""
    if pass_rate is None:
        return "unrated"
    return "easy" if pass_rate > easy_above else "hard"


def label_by(settings: DifficultySettings, source: str, pass_rate: float | None) -> Label:
    """By what the settings let decide: the pass rate, or the source."""
    if settings.rater == "source":
        if source in settings.easy_sources:
            return "easy"
        return "hard" if source in settings.hard_sources else "unrated"
    return label_of(pass_rate, settings.easy_above)


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
    labels: Counter[str] = Counter()
    rated_as: dict[Label, list[float]] = {"easy": [], "hard": [], "unrated": []}
    not_judgeable = 0
    rates: list[tuple[str, float]] = []
    with TableWriter(out / "difficulty.parquet", Difficulty) as writer:
        for problem in read_table(problems.file("kept.parquet"), Problem):
            counted = tallies.get(problem.id, Tally())
            row = Difficulty(
                problem_id=problem.id,
                source=problem.source,
                domain=problem.domain,
                pass_rate=counted.pass_rate,
                scored=counted.scored,
                label=label_by(settings, problem.source, counted.pass_rate),
            )
            labels[row.label] += 1
            not_judgeable += not problem.judgeable
            if row.pass_rate is not None:
                rates.append((row.domain, row.pass_rate))
                rated_as[row.label].append(row.pass_rate)
            writer.write(row)
    rated = labels["easy"] + labels["hard"]
    return {
        **{name: float(labels[name]) for name in ("easy", "hard", "unrated")},
        "not_judgeable": float(not_judgeable),
        "hard_share": labels["hard"] / rated if rated else 0.0,
        **{f"mean_pass_rate/{name}": fmean(found) for name, found in rated_as.items() if found},
        **pass_rate_histogram(rates),
    }
