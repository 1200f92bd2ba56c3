"""Ablate: the runs of one experiment become effects, verdicts and a page, and `results.json`."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ...configs.ablation import Ablation, Contrast
from ...configs.settings.base import Settings
from ...configs.settings.evaluation import LEARNING_CURVE
from ...eval.records import Record
from ...training.launch.result_files import METRICS, kept_models
from ...training.rl.off_policy_counts import Table, by_entropy, clipped, read_off_policy, summed
from ..engine.stage import Metrics, stage
from ..report.figures import title_of
from ..report.page import Figure, Page, render
from ..report.plots import Series, curve_plot
from ..report.results import ACCURACY, answers_of, curves_of, means_of, read_results
from ..store.store import Artifact
from . import effects
from .effects import FEWEST_SEEDS, Effect, Half, Learning, Means

RESULTS = "results.json"
NO_INTERVAL = "no interval yet"


class AblateSettings(Settings):
    """The experiment, and which inputs are what: evaluation and model of each cell, in order."""

    ablation: Ablation
    profile: str
    cells: tuple[tuple[str, int], ...]
    """(arm, seed)."""


@stage(version=5, group="ablation")
def ablate(out: Path, *inputs: Artifact, settings: AblateSettings) -> Metrics:
    """Write report.md, report.html, plots/, results.json of each cell's (evaluation, model)."""
    pairs = zip(settings.cells, inputs[::2], inputs[1::2], strict=True)
    cells = [read_cell(*cell, scored.folder, model.folder) for cell, scored, model in pairs]
    outcome = outcome_of(settings.ablation, settings.profile, cells)
    ablation_page(settings.ablation, settings.profile, cells, outcome).write(out)
    (out / RESULTS).write_text(outcome.model_dump_json(indent=1), encoding="utf-8")
    relation = {"score": "over", "steadiness": "steadier_than"}
    return {
        f"{f.better}_{relation[f.measure]}_{f.than}/{f.benchmark}/{name}": getattr(f, name)
        for f in outcome.findings
        for name in ("points", "low", "high")
    }


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
    off_policy: Table = field(default_factory=partial(summed, []))
    """Of the RL stage that was scored."""
    learned: Mapping[str, Learning] = field(default_factory=dict)
    """By benchmark; empty where no model was kept along the way."""


def read_cell(arm: str, seed: int, evaluation: Path, model: Path) -> Cell:
    """From the folders of an `evaluate` stage and of the stage that trained the model."""
    curves = curves_of(model / METRICS) | curves_of(evaluation / LEARNING_CURVE)
    scores = {name: means_of(answers) for name, answers in answers_of(evaluation).items()}
    counts = summed(read_off_policy(model))
    return Cell(arm, seed, scores, curves, counts, read_learning(evaluation))


def read_learning(evaluation: Path) -> dict[str, Learning]:
    """By benchmark, from an evaluation with a learning curve; empty without one.

    Of the last model only as many answers to a problem count as of those kept along the way. A
    model of which one half was not scored is no point.
    """
    curves = curves_of(evaluation / LEARNING_CURVE)
    if not curves:
        return {}
    kept = dict(kept_models(evaluation))
    first = read_results(next(iter(kept.values())))
    models = {step: answers_of(folder) for step, folder in kept.items()}
    last = max(step for points in curves.values() for step in points)
    models[last] = answers_of(evaluation, below=max(r.k for r in first))
    return {
        r.name: {step: (even, odd) for step, answers in models.items()
                 if (even := _half(answers[r.name].values(), 0))
                 and (odd := _half(answers[r.name].values(), 1))}
        for r in first
    }  # fmt: skip


def _half(answers: Iterable[Mapping[int, bool]], odd: int) -> Half | None:
    rows = [[right for n, right in row.items() if n % 2 == odd] for row in answers]
    means = [sum(row) / len(row) for row in rows if row]
    return Half(statistics.fmean(means), sum(map(len, rows))) if means else None


class Finding(Effect):
    """One contrast on one benchmark; of `steadiness`, by how much less `better` fell on its way."""

    better: str
    than: str
    benchmark: str
    measure: str
    problems: Annotated[int | None, Field(exclude_if=lambda n: n is None)] = None
    """Of a score: those that every run behind it has scored. Older results do not say."""
    asked_problems: Annotated[int | None, Field(exclude_if=lambda n: n is None)] = None
    """Of a score: those that any of these runs has scored."""

    def __str__(self) -> str:
        return f"{self.points:+.1f} ({self.low:+.1f} to {self.high:+.1f})"


class ArmFigures(Record):
    """What one arm reached, over its seeds."""

    scores: dict[str, tuple[float, float, float]]
    """Benchmark → avg@k in percent: mean, lowest, highest."""
    clipped: tuple[float, float] | None = None
    """Shares of tokens and of the policy gradient that clipping cuts off; RL alone."""
    learning: Annotated[dict[int, float], Field(default_factory=dict)]
    """Rollout step → avg@k in percent on the benchmark that decides, mean over seeds."""
    falls: float | None = None
    """How far accuracy fell along this curve in points, mean over seeds."""


class ExperimentOutcome(Record):
    """One experiment at one scale: the file `results.json` beside its page."""

    seeds: int
    findings: tuple[Finding, ...]
    arms: dict[str, ArmFigures]


def outcome_of(spec: Ablation, profile: str, cells: Sequence[Cell]) -> ExperimentOutcome:
    """Every effect, in order of the contrasts, and the figures of every arm."""
    benchmarks = spec.scale(profile).benchmarks
    by_arm = {a.name: [c for c in cells if c.arm == a.name] for a in spec.arms}
    return ExperimentOutcome(
        seeds=len({c.seed for c in cells}),
        findings=tuple(_findings(spec, benchmarks, cells)),
        arms={arm: _figures_of(cells, benchmarks) for arm, cells in by_arm.items()},
    )


def _figures_of(cells: Sequence[Cell], benchmarks: Sequence[str]) -> ArmFigures:
    scores: dict[str, tuple[float, float, float]] = {}
    for name in benchmarks:
        if by_seed := [100 * statistics.fmean(c.scores[name].values()) for c in cells
                       if c.scores.get(name)]:  # fmt: skip
            scores[name] = statistics.fmean(by_seed), min(by_seed), max(by_seed)
    counts, decides = summed([c.off_policy for c in cells]), benchmarks[0]
    curve = band("", [c.curves.get(ACCURACY + decides, {}) for c in cells if decides in c.learned])
    falls = [effects.fall(c.learned[decides]) for c in cells if decides in c.learned]
    return ArmFigures(
        scores=scores,
        clipped=clipped(counts) if counts.any() else None,
        learning={int(x): 100 * y for x, y in zip(curve.x, curve.y, strict=True)},
        falls=100 * statistics.fmean(falls) if falls else None,
    )


def _findings(
    spec: Ablation, benchmarks: Sequence[str], cells: Sequence[Cell]
) -> Iterator[Finding]:
    """Runs in which nothing of a benchmark was scored do not count for it; nothing is said of fewer
    than FEWEST_SEEDS seeds, or of runs that have no problem in common."""
    for contrast, other, name in _comparisons(spec, benchmarks):
        of_score = contrast.measure == "score"
        effect: Any = effects.paired_effect if of_score else effects.steadiness_effect
        measured = {(c.arm, c.seed): (c.scores if of_score else c.learned).get(name) for c in cells}
        runs: dict[tuple[str, int], Any] = {run: m for run, m in measured.items() if m}
        if not of_score:  # fewer points, fewer chances to fall
            most = max(map(len, runs.values()), default=0)
            runs = {run: curve for run, curve in runs.items() if len(curve) == most}
        seeds = sorted(s for arm, s in runs if arm == contrast.better and (other, s) in runs)
        first, second = ([runs[arm, s] for s in seeds] for arm in (contrast.better, other))
        names = {"better": contrast.better, "than": other, "benchmark": name}
        with suppress(ValueError):  # it gives no interval
            figures = effect(first, second).model_dump()
            if of_score:
                scored = [set(means) for means in (*first, *second)]
                figures["problems"] = len(set.intersection(*scored))
                figures["asked_problems"] = len(set.union(*scored))
            yield Finding(**names, measure=contrast.measure, **figures)


def _comparisons(spec: Ablation, benchmarks: Sequence[str]) -> Iterator[tuple[Contrast, str, str]]:
    """Every contrast with each of its other arms on each benchmark, in order."""
    return ((c, other, name) for c in spec.contrasts for other in c.than for name in benchmarks)


class Compared(NamedTuple):
    """One arm against another on one benchmark, with the result if it was run."""

    spec: Ablation
    contrast: Contrast
    other: str
    benchmark: str
    finding: Finding | None

    @property
    def verdict(self) -> str:
        return self.finding.verdict if self.finding else NO_INTERVAL

    @property
    def fails_control(self) -> bool:
        """Whether the arm is not seen to beat the experiment's control."""
        against_control = self.other == self.spec.control and self.contrast.measure == "score"
        return against_control and self.verdict in ("not seen", "reversed")

    @property
    def papers(self) -> str:
        """`AIME 2024 +1.2, AIME 2025 +2.4`, where the paper prints figures."""
        texts = [f"{title_of(name)} {points:+.1f}" for name, points in self.papers_points.items()]
        return ", ".join(texts) or "curves only"

    @property
    def papers_points(self) -> dict[str, float]:
        """By benchmark, where the paper prints figures."""
        better, other = self.contrast.better, self.other
        return {
            benchmark: row[better] - row[other]
            for benchmark, row in self.spec.paper.items()
            if better in row and other in row and self.contrast.measure == "score"
        }


def compared(spec: Ablation, outcome: ExperimentOutcome | None, profile: str) -> list[Compared]:
    """Every contrast on the benchmark that decides, and what was found on others, in order."""
    benchmarks = spec.scale(profile).benchmarks
    findings = outcome.findings if outcome else ()
    by_contrast = {(f.better, f.than, f.measure, f.benchmark): f for f in findings}
    return [
        Compared(spec, c, other, name, finding)
        for c, other, name in _comparisons(spec, benchmarks)
        if (finding := by_contrast.get((c.better, other, c.measure, name))) or name == benchmarks[0]
    ]


def ablation_page(
    spec: Ablation, profile: str, cells: Sequence[Cell], outcome: ExperimentOutcome
) -> Page:
    """Everything one experiment has to say at one scale."""
    curves = _curves(spec, cells)
    counts = {arm: summed([c.off_policy for c in cells if c.arm == arm]) for arm in outcome.arms}
    facts = {"spec": spec, "profile": profile, "scale": spec.scale(profile), "outcome": outcome}
    facts |= {"rows": compared(spec, outcome, profile), "fewest": FEWEST_SEEDS, "curves": curves}
    off_policy = {arm: by_entropy(table) for arm, table in counts.items() if table.any()}
    body = render("ablation.md", **facts, off_policy=off_policy)
    subtitle = "An experiment of Klear-Reasoner (arXiv 2508.07629), repeated"
    return Page(f"{spec.shows}: {spec.title}", subtitle, f"{profile} profile", body, curves)


def _curves(spec: Ablation, cells: Sequence[Cell]) -> list[Figure]:
    """Accuracy over training and the metrics that the experiment asks for: bands over seeds."""
    figures = []
    learned = dict.fromkeys(name for c in cells for name in c.curves if name.startswith(ACCURACY))
    for metric in (*learned, *spec.curves):
        drawn = [c for c in cells if metric in c.curves]
        of_arms = {a.name: [c.curves[metric] for c in drawn if c.arm == a.name] for a in spec.arms}
        if lines := [line for line in map(band, of_arms, of_arms.values()) if line.x]:
            alt = f"{metric} over training steps, mean and range over seeds of each arm"
            figures.append(Figure(metric.replace("/", "_"), curve_plot(metric, lines), alt))
    return figures


def band(label: str, curves: Sequence[Mapping[int, float]]) -> Series:
    """Mean, lowest and highest value over seeds at the steps that all of them reached."""
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    values = [[c[step] for c in curves] for step in steps]
    over_seeds = ([summary(v) for v in values] for summary in (statistics.fmean, min, max))
    return Series(label, steps, *over_seeds)
