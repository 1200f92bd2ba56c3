"""What the runs of an experiment left, and what it found: effects, scores, curves as plain data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from configs.settings.ablation import Ablation, Contrast
from eval.records import Record
from tasks.ablation.effects import (
    Effect,
    Learning,
    Means,
    band,
    fall,
    paired_effect,
    steadiness_effect,
)
from tasks.report.results import ACCURACY, answers_of, curves_of, means_of, read_learning
from training.layout import METRICS
from training.rl.off_policy_counts import Counted, read_off_policy, summed


@dataclass(frozen=True)
class Cell:
    """One arm with one seed."""

    arm: str
    seed: int
    scores: Mapping[str, Means]
    """Benchmark → problem id → mean of its scored samples."""
    curves: Mapping[str, Mapping[int, float]]
    """Metric → rollout step → value: of training, and `accuracy/<benchmark>` of the models that
    were kept along the way and of the last one."""
    off_policy: Sequence[Counted] = ()
    """Every update of the RL stage that was scored."""
    learned: Mapping[str, Learning] = field(default_factory=dict)
    """Benchmark → accuracy over training; empty where no model was kept along the way."""

    def score(self, benchmark: str) -> float:
        """avg@k in [0, 1]; NaN when nothing of it was scored."""
        means = self.scores.get(benchmark, {})
        return sum(means.values()) / len(means) if means else float("nan")


def read_cell(arm: str, seed: int, evaluation: Path, model: Path) -> Cell:
    """From the folders of an `evaluate` stage and of the stage that trained the model."""
    learned = read_learning(evaluation)
    curves = curves_of(model / METRICS)
    curves |= {ACCURACY + name: dict(one.curve) for name, one in learned.items()}
    scores = {name: means_of(answers) for name, answers in answers_of(evaluation).items()}
    return Cell(arm, seed, scores, curves, read_off_policy(model), learned)


class Finding(Record):
    """One contrast on one benchmark; differences in points of avg@k."""

    better: str
    than: str
    benchmark: str
    points: float
    low: float
    high: float
    size: float | None
    """Cohen's d of pairs; None where all differences are equal."""
    wins: int
    seeds: int
    verdict: str
    measure: str = "score"
    """`steadiness`: points by which `better` fell less along the way."""


class ArmScore(Record):
    """avg@k of one arm in percent, over its seeds."""

    arm: str
    benchmark: str
    mean: float
    lowest: float
    highest: float
    seeds: int


class Outcome(Record):
    """One experiment at one scale: the file `results.json` beside its page."""

    name: str
    profile: str
    seeds: int
    findings: tuple[Finding, ...]
    scores: tuple[ArmScore, ...]
    clipped: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Arm → share of `tokens` and of the policy `gradient` that clipping cuts off; RL alone."""
    learning: dict[str, dict[int, float]] = Field(default_factory=dict)
    """Arm → rollout step → avg@k in percent on the benchmark that decides, mean over seeds."""
    falls: dict[str, float] = Field(default_factory=dict)
    """Arm → how far accuracy fell along this curve in points, mean over seeds."""


def outcome_of(spec: Ablation, profile: str, cells: Sequence[Cell]) -> Outcome:
    """The figures of the experiment's page."""
    benchmarks = spec.scale(profile).benchmarks
    scores, clipped, learning, falls = [], {}, {}, {}
    for arm in (a.name for a in spec.arms):
        mine = [c for c in cells if c.arm == arm]
        scores += _scores(arm, benchmarks, mine)
        if counts := [row.counts for c in mine for row in c.off_policy]:
            whole = summed(counts)
            clipped[arm] = {"tokens": whole.clipped, "gradient": whole.clipped_gradient}
        if runs := [c.learned[benchmarks[0]] for c in mine if benchmarks[0] in c.learned]:
            steps, mean, *_ = band([run.curve for run in runs])
            learning[arm] = {int(s): 100 * m for s, m in zip(steps, mean, strict=True)}
            falls[arm] = 100 * sum(fall(run.halves) for run in runs) / len(runs)
    return Outcome(
        name=spec.name,
        profile=profile,
        seeds=len({c.seed for c in cells}),
        findings=tuple(_findings(spec, benchmarks, cells)),
        scores=tuple(scores),
        clipped=clipped,
        learning=learning,
        falls=falls,
    )


def _findings(
    spec: Ablation, benchmarks: Sequence[str], cells: Sequence[Cell]
) -> Iterator[Finding]:
    """Every contrast on every benchmark, in order.

    Runs in which nothing of a benchmark was scored do not count for it; nothing is said of fewer
    than FEWEST_SEEDS seeds, or of runs that have no problem in common.
    """
    for contrast in spec.contrasts:
        for other in contrast.than:
            for benchmark in benchmarks:
                try:
                    e = _effect(contrast, other, benchmark, cells)
                except ValueError:  # it gives no interval
                    continue
                yield Finding(
                    better=contrast.better,
                    than=other,
                    benchmark=benchmark,
                    points=100 * e.mean,
                    low=100 * e.low,
                    high=100 * e.high,
                    size=None if e.size != e.size else e.size,
                    wins=e.wins,
                    seeds=e.seeds,
                    verdict=e.verdict,
                    measure=contrast.measure,
                )


def _effect(contrast: Contrast, other: str, benchmark: str, cells: Sequence[Cell]) -> Effect:
    if contrast.measure == "score":
        scored = {(c.arm, c.seed): c.scores[benchmark] for c in cells if c.scores.get(benchmark)}
        return paired_effect(*_paired(scored, contrast.better, other))
    curves = {(c.arm, c.seed): c.learned[benchmark] for c in cells if benchmark in c.learned}
    points = max((len(one.curve) for one in curves.values()), default=0)
    whole = {run: one for run, one in curves.items() if len(one.curve) == points}
    return steadiness_effect(*_paired(whole, contrast.better, other))


def _paired(runs: Mapping[tuple[str, int], Any], one: str, two: str) -> tuple[list[Any], list[Any]]:
    """The runs of both arms for the seeds that both have, in order of the seed."""
    seeds = sorted(seed for arm, seed in runs if arm == one and (two, seed) in runs)
    return [runs[one, s] for s in seeds], [runs[two, s] for s in seeds]


def _scores(arm: str, benchmarks: Sequence[str], cells: Sequence[Cell]) -> Iterator[ArmScore]:
    for benchmark in benchmarks:
        values = [100 * c.score(benchmark) for c in cells if c.scores.get(benchmark)]
        if values:
            yield ArmScore(
                arm=arm,
                benchmark=benchmark,
                mean=sum(values) / len(values),
                lowest=min(values),
                highest=max(values),
                seeds=len(values),
            )
