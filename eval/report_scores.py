"""The report's scores: every checkpoint on every benchmark, and what the figures mean."""

from eval import paper_table
from eval.benchmarks import BenchmarkResult
from eval.metrics import upper_bound_of_zero
from eval.page import Block, Cell, Figure, Figures, Heading, Notice, Paragraph, Table, Tiles, Tone
from eval.plots import Series, scores_plot
from eval.run_facts import Evaluation, RunFacts

NEAR_ZERO = 0.02
SMALL_MODEL = 100_000_000
TITLES = paper_table.titles()


def benchmarks_of(evaluations: list[Evaluation]) -> list[str]:
    """Every benchmark that was scored, in the order of the first evaluation that has it."""
    return list(dict.fromkeys(r.name for e in evaluations for r in e.results))


def title_of(benchmark: str) -> str:
    return TITLES.get(benchmark, benchmark)


def score_section(facts: RunFacts) -> list[Block]:
    """The table of checkpoints × benchmarks, its picture, and plain words about zeros."""
    evaluations = facts.evaluations()
    if not evaluations:
        return [Heading("Scores"), Paragraph("No checkpoint was evaluated in this run.")]
    names = benchmarks_of(evaluations)
    return [
        Heading("Scores"),
        *_zeros(evaluations[-1], facts),
        _score_table(evaluations, names),
        *_score_figure(evaluations, names),
        *_lost(evaluations),
        *_unsafe(evaluations),
    ]


def headline(facts: RunFacts) -> list[Block]:
    """One tile a benchmark: the last checkpoint's score and its way from the first."""
    evaluations = facts.evaluations()
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    tiles = []
    for name in benchmarks_of([last]):
        cell = _score_cell(last.result(name), first.result(name) if first != last else None)
        change = f"{cell.change} since {first.checkpoint}" if cell.change else ""
        label = f"{title_of(name)}, after {last.checkpoint}"
        figure = f"{cell.text} %" if cell.detail else cell.text
        tiles.append((label, Cell(figure, change=change, tone=cell.tone)))
    return [Tiles(tuple(tiles))]


def _score_table(evaluations: list[Evaluation], names: list[str]) -> Table:
    rows: list[tuple[str | Cell, ...]] = []
    for i, evaluation in enumerate(evaluations):
        before = evaluations[i - 1] if i else None
        cells = [
            _score_cell(evaluation.result(n), before.result(n) if before else None) for n in names
        ]
        rows.append((evaluation.checkpoint, *cells))
    return Table(
        columns=("Checkpoint", *(_column_title(n, evaluations) for n in names)),
        rows=tuple(rows),
        caption="Ours, in percent: avg@k [95 % bootstrap interval over problems] and the change "
        "in points from the checkpoint above. The protocol below also has the interval over "
        "samples.",
    )


def _column_title(name: str, evaluations: list[Evaluation]) -> str:
    ks = {r.k for e in evaluations if (r := e.result(name))}
    return f"{title_of(name)} avg@{'/'.join(map(str, sorted(ks)))}"


def _score_cell(result: BenchmarkResult | None, before: BenchmarkResult | None) -> Cell:
    if result is None or result.avg is None or result.ci_low is None or result.ci_high is None:
        return Cell("unscored" if result else "–", tone="quiet")
    change, tone = "", ""
    if before and before.avg is not None:
        change, tone = _change(result.avg - before.avg)
    interval = f"[{100 * result.ci_low:.1f}, {100 * result.ci_high:.1f}]"
    return Cell(f"{100 * result.avg:.1f}", interval, change, tone)


def _change(difference: float) -> tuple[str, Tone]:
    points = round(100 * difference, 1)
    if points == 0:
        return "±0", "quiet"
    return f"{points:+.1f}".replace("-", "−"), "good" if points > 0 else "bad"


def _score_figure(evaluations: list[Evaluation], names: list[str]) -> list[Block]:
    series = []
    for name in names:
        points = [
            (float(i), 100 * r.avg, 100 * r.ci_low, 100 * r.ci_high)
            for i, e in enumerate(evaluations)
            if (r := e.result(name)) and r.avg is not None
            if r.ci_low is not None and r.ci_high is not None
        ]
        if points:
            series.append(Series(title_of(name), *zip(*points, strict=True)))
    if not series:
        return []
    figure = Figure(
        "scores",
        scores_plot([e.checkpoint for e in evaluations], series),
        alt="avg@k of every checkpoint on every benchmark, with 95 % intervals",
        caption="avg@k by checkpoint, with 95 % intervals.",
    )
    return [Figures((figure,))]


def _zeros(last: Evaluation, facts: RunFacts) -> list[Block]:
    """Says in words what a score near zero on a published benchmark means."""
    near = [r for r in last.results if r.name in TITLES and r.avg is not None and r.avg < NEAR_ZERO]
    if not near:
        return []
    names = ", ".join(title_of(r.name) for r in near)
    base = facts.get("base")
    parameters = int(base.metrics.get("parameters", 0)) if base else 0
    bound = max(upper_bound_of_zero(r.problems) for r in near)
    if 0 < parameters < SMALL_MODEL:
        what = (
            f"A model of {_in_words(parameters)} parameters cannot solve {names}; "
            "the figures beside it show that the chain works, not that the method does."
        )
    else:
        what = f"The last checkpoint solves next to nothing of {names}."
    note = (
        " A score of exactly 0 has an interval without width; with so few problems, up to "
        f"{100 * bound:.0f} % of problems like these could still be within reach (95 %)."
    )
    return [Paragraph(what + (note if any(r.avg == 0 for r in near) else ""))]


def _in_words(parameters: int) -> str:
    return f"{parameters / 1e6:.2g} million" if parameters >= 1e5 else f"{parameters:,}"


def _lost(evaluations: list[Evaluation]) -> list[Block]:
    lost = sum(r.samples_unscored for e in evaluations for r in e.results)
    total = lost + sum(r.samples for e in evaluations for r in e.results)
    if not lost:
        return []
    return [
        Paragraph(
            f"{lost:,} of {total:,} answers could not be scored (the judge's machinery failed, not "
            "the model); they are in no mean. The protocol below counts them per benchmark."
        )
    ]


def _unsafe(evaluations: list[Evaluation]) -> list[Block]:
    if not any(r.statement.sandbox == "none" for e in evaluations for r in e.results):
        return []
    return [
        Notice(
            "Judged without isolation",
            "The sandbox was off: a program of the model could have changed its own verdict. Do "
            "not publish these scores; set evaluate.judge.sandbox and evaluate again.",
        )
    ]
