"""What the runs of an experiment left, and what it found: effects, scores, curves as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from configs.settings.ablation import Ablation, Contrast
from eval.records import Record
from tasks.ablation.effects import (
    FEWEST_SEEDS,
    Effect,
    Means,
    band,
    common_problems,
    paired_effect,
)
from tasks.report.learning import (
    ACCURACY,
    Learning,
    answers_of,
    fall,
    means_of,
    read_learning,
    steadiness_effect,
)
from tasks.report.results import curves_of
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


def effects_of(
    spec: Ablation, benchmarks: Sequence[str], cells: Sequence[Cell]
) -> list[tuple[Contrast, str, str, Effect]]:
    """(contrast, the arm it is better than, benchmark, effect) for every claim, in order.

    Runs in which nothing of a benchmark was scored do not count for it; nothing is said of fewer
    than FEWEST_SEEDS seeds, or of runs that have no problem in common.
    """
    return [
        (contrast, other, benchmark, effect)
        for contrast in spec.contrasts
        for other in contrast.than
        for benchmark in benchmarks
        if (effect := _effect(contrast, other, benchmark, cells))
    ]


def _effect(contrast: Contrast, other: str, benchmark: str, cells: Sequence[Cell]) -> Effect | None:
    if contrast.measure == "score":
        having = [c for c in cells if c.scores.get(benchmark)]
        first, second = _paired(having, contrast.better, other)
        ours, theirs = ([c.scores[benchmark] for c in arm] for arm in (first, second))
        if len(first) < FEWEST_SEEDS or not common_problems(ours, theirs):
            return None
        return paired_effect(ours, theirs)
    having = [c for c in cells if benchmark in c.learned]
    points = max((len(c.learned[benchmark].curve) for c in having), default=0)
    whole = [c for c in having if len(c.learned[benchmark].curve) == points]
    first, second = _paired(whole, contrast.better, other)
    if len(first) < FEWEST_SEEDS:
        return None
    ours, theirs = ([c.learned[benchmark] for c in arm] for arm in (first, second))
    return steadiness_effect(ours, theirs)


def _paired(cells: Sequence[Cell], first: str, second: str) -> tuple[list[Cell], list[Cell]]:
    """The cells of both arms for the seeds that both have, in order of the seed."""
    by = {(c.arm, c.seed): c for c in cells}
    seeds = sorted(s for a, s in by if a == first and (second, s) in by)
    return [by[first, s] for s in seeds], [by[second, s] for s in seeds]


def outcome_of(spec: Ablation, profile: str, cells: Sequence[Cell]) -> Outcome:
    """The figures of the experiment's page."""
    benchmarks = spec.scale(profile).benchmarks
    findings = tuple(
        Finding(
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
        for contrast, other, benchmark, e in effects_of(spec, benchmarks, cells)
    )
    scores, clipped, learning, falls = [], {}, {}, {}
    for arm in (a.name for a in spec.arms):
        mine = [c for c in cells if c.arm == arm]
        scores += [s for b in benchmarks if (s := _score(arm, b, mine))]
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
        findings=findings,
        scores=tuple(scores),
        clipped=clipped,
        learning=learning,
        falls=falls,
    )


def _score(arm: str, benchmark: str, cells: Sequence[Cell]) -> ArmScore | None:
    values = [100 * c.score(benchmark) for c in cells if c.scores.get(benchmark)]
    if not values:
        return None
    return ArmScore(
        arm=arm,
        benchmark=benchmark,
        mean=sum(values) / len(values),
        lowest=min(values),
        highest=max(values),
        seeds=len(values),
    )
