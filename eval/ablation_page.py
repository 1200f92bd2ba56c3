"""The page of an ablation: claim, scores of the arms, effects with intervals, verdicts, curves."""

from collections.abc import Sequence

from configs.ablation import Ablation, Contrast
from eval.ablation_results import Cell
from eval.effects import FEWEST_SEEDS, Effect, band, common_problems, paired_effect
from eval.learning import ACCURACY, steadiness_effect
from eval.off_policy import Counted
from eval.off_policy_page import off_policy_arms
from eval.page import Block, Figure, Figures, Heading, Notice, Page, Paragraph, Table, Tone
from eval.page import Cell as TableCell
from eval.plots import Series, curve_plot

TONES: dict[str, Tone] = {"confirmed": "good", "reversed": "bad", "not seen": "quiet"}
_OUTSIDE = {"confirmed": "higher", "reversed": "lower"}
_METHOD = (
    "Arms are paired by seed: they share whatever their settings do not touch. Effects are "
    "differences of avg@k in points; the interval holds both Student's and a bootstrap, each over "
    "seeds and over problems. A contrast is confirmed when the interval lies above zero, reversed "
    "when it lies below, else not seen: with few seeds that may hide a large effect. Outside the "
    "claim it is called higher or lower, and does not count. The number of contrasts is not "
    "corrected for. Steadier: accuracy fell less from one kept model to the next, in sum, with "
    "Student's interval over seeds alone; falls that one half of the answers shows are measured on "
    "the other, so that noise adds nothing in the mean."
)


def effects_of(
    spec: Ablation, benchmarks: Sequence[str], cells: Sequence[Cell]
) -> list[tuple[Contrast, str, str, Effect]]:
    """(contrast, the arm it is better than, benchmark, effect) for every claim, in order.

    Runs in which nothing of a benchmark was scored do not count for it; nothing is said of fewer
    than FEWEST_SEEDS seeds, or of runs that have no problem in common.
    """
    found = []
    for contrast in spec.contrasts:
        effect_of = _of_scores if contrast.measure == "score" else _of_steadiness
        for other in contrast.than:
            for benchmark in benchmarks:
                effect = effect_of(benchmark, cells, contrast.better, other)
                if effect:
                    found.append((contrast, other, benchmark, effect))
    return found


def _of_scores(benchmark: str, cells: Sequence[Cell], better: str, other: str) -> Effect | None:
    having = [c for c in cells if c.scores.get(benchmark)]
    first, second = _paired(having, better, other)
    ours, theirs = ([c.scores[benchmark] for c in arm] for arm in (first, second))
    if len(first) < FEWEST_SEEDS or not common_problems(ours, theirs):
        return None
    return paired_effect(ours, theirs)


def _of_steadiness(benchmark: str, cells: Sequence[Cell], better: str, other: str) -> Effect | None:
    """Runs with a model of which nothing was scored do not count."""
    having = [(len(c.learned[benchmark].curve), c) for c in cells if benchmark in c.learned]
    points = max((n for n, _ in having), default=0)
    whole = [c for n, c in having if n == points]
    first, second = _paired(whole, better, other)
    if len(first) < FEWEST_SEEDS:
        return None
    ours, theirs = ([c.learned[benchmark] for c in arm] for arm in (first, second))
    return steadiness_effect(ours, theirs)


def ablation_page(spec: Ablation, profile: str, cells: Sequence[Cell], commit: str = "") -> Page:
    """Everything one experiment has to say at one scale; `commit` is that of the page."""
    scale = spec.scale(profile)
    effects = effects_of(spec, scale.benchmarks, cells)
    seeds = len({c.seed for c in cells})
    blocks: list[Block] = [
        Paragraph(spec.claim),
        *([Paragraph(f"Not tested: {spec.untested}.")] if spec.untested else []),
        Notice(f"{profile} profile, {seeds} seeds", scale.evidence),
        Paragraph(f"Scored: {spec.metric(profile)}."),
        Paragraph(
            f"Test: {spec.test}, of the difference between two arms paired by seed; "
            f"{spec.seeds} seeds an arm are asked for."
        ),
        *([Paragraph(f"Page and figures made at commit {commit}; a cell may be older.")]
          if commit else []),
        Heading("Claims"),
        _claims(effects)
        if effects
        else Paragraph(f"{seeds} seeds give no interval: run at least {FEWEST_SEEDS}."),
        Paragraph(_METHOD),
        Heading("Scores"),
        _scores(spec, scale.benchmarks, cells),
        *_paper(spec),
        *_curves(spec, cells),
        *off_policy_arms({a.name: _rows(cells, a.name) for a in spec.arms}),
    ]  # fmt: skip
    return Page(
        title=f"{spec.shows}: {spec.title}",
        subtitle="An experiment of Klear-Reasoner (arXiv 2508.07629), repeated",
        label=f"{profile} profile",
        blocks=tuple(blocks),
    )


def _paired(cells: Sequence[Cell], first: str, second: str) -> tuple[list[Cell], list[Cell]]:
    """The cells of both arms for the seeds that both have, in order of the seed."""
    by = {(c.arm, c.seed): c for c in cells}
    seeds = sorted(s for a, s in by if a == first and (second, s) in by)
    return [by[first, s] for s in seeds], [by[second, s] for s in seeds]


def _claims(effects: Sequence[tuple[Contrast, str, str, Effect]]) -> Table:
    rows: list[tuple[str | TableCell, ...]] = []
    for contrast, other, benchmark, e in effects:
        size = "–" if e.size != e.size else f"{e.size:+.1f}"
        rows.append((
            contrast.says, contrast.against(other), benchmark,
            TableCell(f"{100 * e.mean:+.1f}", detail=f"{100 * e.low:+.1f} to {100 * e.high:+.1f}"),
            size, f"{e.wins} of {e.seeds}", verdict_cell(e.verdict, contrast.part_of_claim),
        ))  # fmt: skip
    columns = (
        "the paper says",
        "contrast",
        "benchmark",
        "points",
        "effect size",
        "wins",
        "verdict",
    )
    return Table(columns, tuple(rows), prose=frozenset({0, 1, 2}))


def verdict_cell(verdict: str, part_of_claim: bool = True) -> TableCell:
    """`confirmed`; `higher, outside the claim`, where the claim says nothing to confirm."""
    if part_of_claim:
        return TableCell(verdict, tone=TONES.get(verdict, "quiet"))
    return TableCell(f"{_OUTSIDE.get(verdict, verdict)}, outside the claim", tone="quiet")


def _scores(spec: Ablation, benchmarks: Sequence[str], cells: Sequence[Cell]) -> Table:
    """avg@k of each arm in percent: mean over seeds, lowest and highest."""
    rows: list[tuple[str | TableCell, ...]] = []
    for arm in spec.arms:
        mine = [c for c in cells if c.arm == arm.name]
        row: list[str | TableCell] = [arm.name, str(len(mine))]
        for benchmark in benchmarks:
            values = [100 * c.score(benchmark) for c in mine if c.scores.get(benchmark)]
            row.append(TableCell(f"{sum(values) / len(values):.1f}",
                                 detail=f"{min(values):.1f} to {max(values):.1f}")
                       if values else "–")  # fmt: skip
        rows.append(tuple(row))
    return Table(("arm", "seeds", *(f"{b}, %" for b in benchmarks)), tuple(rows))


def _paper(spec: Ablation) -> list[Block]:
    """The paper's own figures, apart from ours: another model, other benchmarks, one run each."""
    if not spec.paper:
        return [Paragraph(f"The paper: {spec.source}.")] if spec.source else []
    rows: list[tuple[str | TableCell, ...]] = []
    for arm in spec.arms:
        known = (row.get(arm.name) for row in spec.paper.values())
        rows.append((arm.name, *("–" if v is None else f"{v:.2f}" for v in known)))
    text = f"{spec.source}: a model of 8B parameters, one run an arm. Not comparable to ours."
    table = Table(("arm", *(f"{b}, %" for b in spec.paper)), tuple(rows))
    return [Heading("The paper's figures"), Paragraph(text), table]


def _rows(cells: Sequence[Cell], arm: str) -> list[Sequence[Counted]]:
    return [c.off_policy for c in cells if c.arm == arm]


def _curves(spec: Ablation, cells: Sequence[Cell]) -> list[Block]:
    figures = []
    learned = dict.fromkeys(name for c in cells for name in c.curves if name.startswith(ACCURACY))
    for metric in (*learned, *spec.curves):
        series = []
        for arm in spec.arms:
            over = band(
                [c.curves[metric] for c in cells if c.arm == arm.name and metric in c.curves]
            )
            if over.steps:
                series.append(Series(arm.name, over.steps, over.mean, over.low, over.high))
        if series:
            name = metric.replace("/", "_")
            alt = f"{metric} over training steps, mean and range over seeds of each arm"
            figures.append(Figure(name, curve_plot(metric, series), alt))
    return [Heading("Training"), Figures(tuple(figures))] if figures else []
