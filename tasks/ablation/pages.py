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
from tasks.ablation.effects import FEWEST_SEEDS, band
from tasks.ablation.outcome import Cell, Finding, Outcome, outcome_of
from tasks.report.learning import ACCURACY
from tasks.report.page import Figure, Page, render
from tasks.report.plots import Series, curve_plot
from tasks.report.scores import title_of
from tasks.report.training import off_policy_arms

NOT_RUN = "not run yet"
VERDICTS = ("confirmed", "reversed", "not seen", NOT_RUN)
_OUTSIDE = {"confirmed": "higher", "reversed": "lower"}


class Compared(NamedTuple):
    """One arm against another, and what was found on the benchmark that decides."""

    spec: Ablation
    contrast: Contrast
    other: str
    found: Finding | None


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
    outcome = outcome_of(spec, profile, cells)
    body = render(
        "ablation.md",
        spec=spec,
        profile=profile,
        scale=spec.scale(profile),
        **_facts(spec, profile, outcome),
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
    contrasts = [
        (row.spec.shows, row.contrast.says, row.contrast.against(row.other),
         papers(row.spec, row.contrast, row.other), row.spec.scale(profile).benchmarks[0],
         *_ours(row.found, row.contrast))
        for row in rows
    ]  # fmt: skip
    body = render(
        "ablations.md",
        profile=profile,
        claims=claim_rows(rows),
        contrasts=contrasts,
        cost=cost,
        done=sum(e.outcome is not None for e in experiments),
        experiments=[
            (e, e.spec.scale(profile), _facts(e.spec, profile, e.outcome) if e.outcome else {})
            for e in experiments
        ],
    )
    subtitle = "Tables 2 to 6 and Figures 2 to 5 of Klear-Reasoner (arXiv 2508.07629), repeated"
    return Page("Results of the ablations", subtitle, f"{profile} profile", body)


def compared(spec: Ablation, outcome: Outcome | None, profile: str) -> list[Compared]:
    """Every contrast of an experiment, in order."""
    benchmark = spec.scale(profile).benchmarks[0]
    by = {(f.better, f.than, f.measure): f for f in (outcome.findings if outcome else ())
          if f.benchmark == benchmark}  # fmt: skip
    return [
        Compared(spec, contrast, other, by.get((contrast.better, other, contrast.measure)))
        for contrast in spec.contrasts
        for other in contrast.than
    ]


def claim_rows(rows: Sequence[Compared]) -> list[tuple[str, ...]]:
    """One row a claim, in the order in which they first come: what shows it, the claim, the
    paper's points, ours, the verdict, what is not tested."""
    rows = [row for row in rows if row.contrast.part_of_claim]
    lines = []
    for claim in dict.fromkeys(row.spec.claim for row in rows):
        mine = [row for row in rows if row.spec.claim == claim]
        lines.append((
            " and ".join(dict.fromkeys(row.spec.shows for row in mine)),
            claim,
            _said(mine, lambda row: papers(row.spec, row.contrast, row.other)),
            _said(mine, lambda row: _points(row.found)),
            verdict_of(row.found for row in mine),
            "; ".join(dict.fromkeys(row.spec.untested for row in mine if row.spec.untested)),
        ))  # fmt: skip
    return lines


def verdict_of(found: Iterable[Finding | None]) -> str:
    """`confirmed`, if all contrasts are; `1 reversed, 1 not seen`, if they differ."""
    counts = Counter(f.verdict if f else NOT_RUN for f in found) or Counter([NOT_RUN])
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])


def papers(spec: Ablation, contrast: Contrast, other: str) -> str:
    """`AIME 2024 +1.2, AIME 2025 +2.4`, where the paper prints figures."""
    better = contrast.better
    known = [
        f"{title_of(benchmark)} {row[better] - row[other]:+.1f}"
        for benchmark, row in spec.paper.items()
        if better in row and other in row and contrast.measure == "score"
    ]
    return ", ".join(known) or "curves only"


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


def _points(found: Finding | None) -> str:
    return f"{found.points:+.1f} ({found.low:+.1f} to {found.high:+.1f})" if found else "–"


def _ours(found: Finding | None, contrast: Contrast) -> tuple[str, str, str, str]:
    """Points, their interval, wins and the verdict, which outside of a claim confirms nothing."""
    verdict = found.verdict if found else NOT_RUN
    if not contrast.part_of_claim:
        verdict = f"{_OUTSIDE.get(verdict, verdict)}, outside the claim"
    if found is None:
        return "–", "–", "–", verdict
    interval = f"{found.low:+.1f} to {found.high:+.1f}"
    return f"{found.points:+.1f}", interval, f"{found.wins} of {found.seeds}", verdict


def _contrast(spec: Ablation, f: Finding) -> Contrast | None:
    mine = (c for c in spec.contrasts if (c.better, c.measure) == (f.better, f.measure))
    return next((c for c in mine if f.than in c.than), None)


def _facts(spec: Ablation, profile: str, outcome: Outcome) -> dict[str, Any]:
    """What both pages say of one experiment."""
    asked = spec.settings(profile, spec.arms[0].name, 0).evaluate.learning_curve
    return {
        "outcome": outcome,
        "benchmarks": spec.scale(profile).benchmarks,
        "scores": {(s.arm, s.benchmark): s for s in outcome.scores},
        "steps": sorted({step for curve in outcome.learning.values() for step in curve}),
        "k": asked.k if asked else None,
        "found": [(f, c, _ours(f, c)) for f in outcome.findings if (c := _contrast(spec, f))],
    }


def _curves(spec: Ablation, cells: Sequence[Cell]) -> list[Figure]:
    """Accuracy over training and the metrics that the experiment asks for: bands over seeds."""
    figures = []
    learned = dict.fromkeys(name for c in cells for name in c.curves if name.startswith(ACCURACY))
    for metric in (*learned, *spec.curves):
        bands = {
            arm.name: band(
                [c.curves[metric] for c in cells if c.arm == arm.name and metric in c.curves]
            )
            for arm in spec.arms
        }
        lines = [Series(arm, *over) for arm, over in bands.items() if over[0]]
        if lines:
            alt = f"{metric} over training steps, mean and range over seeds of each arm"
            name = metric.replace("/", "_")
            figures.append(Figure(name, curve_plot(metric, lines), alt))
    return figures
