"""The page of an experiment, and the page of all: the paper's claims, our effects, verdicts.

A claim holds as far as its contrasts do: its verdict is theirs where they agree and a count of
them where they do not. Contrasts outside the claim do not count. Experiments of one claim (math
and code sources) make one row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from configs.settings.ablation import Ablation, Contrast
from tasks.ablation.effects import FEWEST_SEEDS
from tasks.ablation.outcome import Cell, Finding, Outcome, outcome_of
from tasks.report.page import Figure, Page, render
from tasks.report.plots import curve_plot
from tasks.report.results import ACCURACY
from tasks.report.scores import title_of
from tasks.report.training import bands, off_policy_arms

NOT_RUN = "not run yet"
VERDICTS = ("confirmed", "reversed", "not seen", NOT_RUN)
_OUTSIDE = {"confirmed": "higher", "reversed": "lower"}


class Compared(NamedTuple):
    """One arm against another, and what was found on one benchmark."""

    spec: Ablation
    contrast: Contrast
    other: str
    benchmark: str
    found: Finding | None

    @property
    def verdict(self) -> str:
        return self.found.verdict if self.found else NOT_RUN

    @property
    def papers(self) -> str:
        """`AIME 2024 +1.2, AIME 2025 +2.4`, where the paper prints figures."""
        better, other = self.contrast.better, self.other
        known = [
            f"{title_of(benchmark)} {row[better] - row[other]:+.1f}"
            for benchmark, row in self.spec.paper.items()
            if better in row and other in row and self.contrast.measure == "score"
        ]
        return ", ".join(known) or "curves only"

    @property
    def ours(self) -> tuple[str, str, str, str]:
        """Points, interval, wins and the verdict, which outside of a claim confirms nothing."""
        f, verdict = self.found, self.verdict
        if not self.contrast.part_of_claim:
            verdict = f"{_OUTSIDE.get(verdict, verdict)}, outside the claim"
        if f is None:
            return "–", "–", "–", verdict
        return (
            f"{f.points:+.1f}",
            f"{f.low:+.1f} to {f.high:+.1f}",
            f"{f.wins} of {f.seeds}",
            verdict,
        )


class Cost(NamedTuple):
    """What computing some stages took; a stage that several experiments share counts once."""

    stages: int
    seconds: float
    """Sum of the stages' own times, by the clock."""
    cpu_seconds: float


@dataclass(frozen=True)
class Experiment:
    """One experiment and what is known of it at one scale."""

    spec: Ablation
    outcome: Outcome | None = None
    cost: Cost | None = None
    made: str = ""
    """When, at which commit and with which judge: `Finished.made`."""


def ablation_page(spec: Ablation, profile: str, cells: Sequence[Cell], commit: str = "") -> Page:
    """Everything one experiment has to say at one scale; `commit` is that of the page."""
    off_policy, drawn = off_policy_arms(
        {arm.name: [c.off_policy for c in cells if c.arm == arm.name] for arm in spec.arms}
    )
    curves = _curves(spec, cells)
    body = render(
        "ablation.md",
        spec=spec,
        profile=profile,
        scale=spec.scale(profile),
        **_facts(spec, profile, outcome_of(spec, profile, cells)),
        fewest=FEWEST_SEEDS,
        commit=commit,
        curves=curves,
        off_policy=off_policy,
    )
    subtitle = "An experiment of Klear-Reasoner (arXiv 2508.07629), repeated"
    title = f"{spec.shows}: {spec.title}"
    return Page(title, subtitle, f"{profile} profile", body, [*curves, *drawn])


def results_page(profile: str, experiments: Sequence[Experiment], cost: Cost) -> Page:
    """The table of claims, then every experiment with its command, scores and effects."""
    rows = [row for e in experiments for row in compared(e.spec, e.outcome, profile)]
    body = render(
        "ablations.md",
        profile=profile,
        claims=claim_rows(rows),
        rows=rows,
        cost=cost,
        done=sum(e.outcome is not None for e in experiments),
        experiments=[
            (e, e.spec.scale(profile), _facts(e.spec, profile, e.outcome) if e.outcome else {})
            for e in experiments
        ],
    )
    subtitle = "Tables 2 to 6 and Figures 2 to 5 of Klear-Reasoner (arXiv 2508.07629), repeated"
    return Page("Results of the ablations", subtitle, f"{profile} profile", body)


def compared(
    spec: Ablation, outcome: Outcome | None, profile: str, *, every_benchmark: bool = False
) -> list[Compared]:
    """Every contrast of an experiment on the benchmark that decides, or on all, in order."""
    benchmarks = spec.scale(profile).benchmarks
    found = {
        (f.better, f.than, f.measure, f.benchmark): f for f in (outcome.findings if outcome else ())
    }
    return [
        Compared(spec, c, other, name, found.get((c.better, other, c.measure, name)))
        for c in spec.contrasts
        for other in c.than
        for name in (benchmarks if every_benchmark else benchmarks[:1])
    ]


def claim_rows(rows: Sequence[Compared]) -> list[tuple[str, ...]]:
    """One row a claim, in the order in which they first come: what shows it, the claim, the
    paper's points, ours, the verdict, what is not tested."""
    rows = [row for row in rows if row.contrast.part_of_claim]
    lines = []
    for claim in dict.fromkeys(row.spec.claim for row in rows):
        mine = [row for row in rows if row.spec.claim == claim]
        lines.append(
            (
                " and ".join(dict.fromkeys(row.spec.shows for row in mine)),
                claim,
                _said(mine, lambda row: row.papers),
                _said(mine, lambda row: f"{row.ours[0]} ({row.ours[1]})" if row.found else "–"),
                _verdict(mine),
                "; ".join(dict.fromkeys(row.spec.untested for row in mine if row.spec.untested)),
            )
        )
    return lines


def _verdict(rows: Iterable[Compared]) -> str:
    """`confirmed`, if all contrasts are; `1 reversed, 1 not seen`, if they differ."""
    counts = Counter(row.verdict for row in rows)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])


def _said(rows: Sequence[Compared], say: Callable[[Compared], str]) -> str:
    """What is said of each contrast, named where it differs between them.

    With its experiment, where there are several: arms of two tables have the same names.
    """
    texts = [say(row) for row in rows]
    if len(set(texts)) == 1:
        return texts[0]
    several = len({row.spec.shows for row in rows}) > 1
    return "; ".join(
        f"{row.spec.shows + ': ' if several else ''}{row.contrast.against(row.other)} {text}"
        for row, text in zip(rows, texts, strict=True)
    )


def _facts(spec: Ablation, profile: str, outcome: Outcome) -> dict[str, Any]:
    """What both pages say of one experiment."""
    asked = spec.settings(profile, spec.arms[0].name, 0).evaluate.learning_curve
    rows = compared(spec, outcome, profile, every_benchmark=True)
    return {
        "outcome": outcome,
        "benchmarks": spec.scale(profile).benchmarks,
        "scores": {(s.arm, s.benchmark): s for s in outcome.scores},
        "steps": sorted({step for curve in outcome.learning.values() for step in curve}),
        "k": asked.k if asked else None,
        "found": [row for row in rows if row.found],
    }


def _curves(spec: Ablation, cells: Sequence[Cell]) -> list[Figure]:
    """Accuracy over training and the metrics that the experiment asks for: bands over seeds."""
    figures = []
    learned = dict.fromkeys(name for c in cells for name in c.curves if name.startswith(ACCURACY))
    for metric in (*learned, *spec.curves):
        having = [c for c in cells if metric in c.curves]
        lines = bands(
            {a.name: [c.curves[metric] for c in having if c.arm == a.name] for a in spec.arms}
        )
        if lines:
            alt = f"{metric} over training steps, mean and range over seeds of each arm"
            name = metric.replace("/", "_")
            figures.append(Figure(name, curve_plot(metric, lines), alt))
    return figures
