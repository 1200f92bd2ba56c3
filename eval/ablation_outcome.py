"""What an ablation found, as plain data: the file `results.json` beside its page."""

from collections.abc import Sequence

from pydantic import Field

from configs.ablation import Ablation
from eval.ablation_page import effects_of
from eval.ablation_results import Cell
from eval.effects import band
from eval.learning import Learning, fall
from eval.off_policy import summed
from eval.records import Record


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
    """One experiment at one scale."""

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
    """Arm → how far accuracy fell along this curve in points (`eval.learning.fall`), mean over
    seeds."""


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
    learned = {arm.name: _learned(arm.name, benchmarks[0], cells) for arm in spec.arms}
    scores = [_score(arm.name, b, cells) for arm in spec.arms for b in benchmarks]
    return Outcome(
        name=spec.name,
        profile=profile,
        seeds=len({c.seed for c in cells}),
        findings=findings,
        scores=tuple(s for s in scores if s is not None),
        learning={arm: _mean_curve(runs) for arm, runs in learned.items() if runs},
        falls={
            arm: 100 * sum(fall(run.halves) for run in runs) / len(runs)
            for arm, runs in learned.items()
            if runs
        },
        clipped={a.name: shares for a in spec.arms if (shares := _clipped(a.name, cells))},
    )


def _score(arm: str, benchmark: str, cells: Sequence[Cell]) -> ArmScore | None:
    values = [100 * c.score(benchmark) for c in cells if c.arm == arm and c.scores.get(benchmark)]
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


def _learned(arm: str, benchmark: str, cells: Sequence[Cell]) -> list[Learning]:
    return [c.learned[benchmark] for c in cells if c.arm == arm and benchmark in c.learned]


def _mean_curve(runs: Sequence[Learning]) -> dict[int, float]:
    over = band([run.curve for run in runs])
    return {int(step): 100 * mean for step, mean in zip(over.steps, over.mean, strict=True)}


def _clipped(arm: str, cells: Sequence[Cell]) -> dict[str, float]:
    counts = [row.counts for c in cells if c.arm == arm for row in c.off_policy]
    if not counts:
        return {}
    whole = summed(counts)
    return {"tokens": whole.clipped, "gradient": whole.clipped_gradient}
