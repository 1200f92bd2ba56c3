"""Scores: every checkpoint on every benchmark, beside the paper's, and how each was made."""

from collections.abc import Sequence
from typing import Any

from configs.settings.evaluation import PAPER_PROTOCOLS, BenchmarkProtocol
from eval.benchmarks.benchmarks import BenchmarkResult, Statement
from eval.benchmarks.metrics import upper_bound_of_zero
from tasks.report.page import Figure, render
from tasks.report.plots import Series, scores_plot
from tasks.report.results import Evaluation

TITLES = {
    "aime24": "AIME 2024",
    "aime25": "AIME 2025",
    "hmmt25": "HMMT Feb 2025",
    "lcb_v5": "LCB v5",
    "lcb_v6": "LCB v6",
}
"""Columns of the paper's Table 1."""


def title_of(benchmark: str) -> str:
    return TITLES.get(benchmark, benchmark)


def score_facts(found: Sequence[Evaluation]) -> dict[str, Any]:
    """What the report's template asks for."""
    results = [r for e in found for r in e.results]
    names = list(dict.fromkeys(r.name for r in results))
    return {
        "evaluations": found,
        "benchmarks": {name: sorted({r.k for r in results if r.name == name}) for name in names},
        "previous": [None, *found],
        "change_text": change_text,
        "score_text": score_text,
        "title_of": title_of,
        "plain": plain,
        "bound": upper_bound_of_zero,
        "score_figures": scores_figure(found, names),
        "lost": sum(r.samples_unscored for r in results),
        "answers": sum(r.samples_unscored + r.samples for r in results),
        "unsafe": any(r.statement.sandbox == "none" for r in results),
        "statement_fields": [*Statement.model_fields],
        "result_fields": [*BenchmarkResult.model_fields],
    }


def leaderboard(scored: Sequence[tuple[str, Evaluation]], ours_are: str) -> str:
    """Ours first, by label, then the paper's rows; `ours_are` tells a reader which is which.

    A score stands in a column only if it was measured on that column's problems.
    """
    rows = []
    for label, evaluation in scored:
        cells = [_paper_score(evaluation.result(p.name), p) for p in PAPER_PROTOCOLS]
        if any(cells):
            rows.append(([label, *cells], evaluation.results[0].statement))
    return render("leaderboard.md", rows=rows, ours_are=ours_are, plain=plain)


def score_text(result: BenchmarkResult | None, before: BenchmarkResult | None = None) -> str:
    """`50.0 [41.2, 58.9] (+3.1)`: percent, its interval and the change in points."""
    if result is None or result.avg is None or result.ci_low is None or result.ci_high is None:
        return "unscored" if result else "–"
    text = f"{100 * result.avg:.1f} [{100 * result.ci_low:.1f}, {100 * result.ci_high:.1f}]"
    change = change_text(result, before)
    return f"{text} ({change})" if change else text


def change_text(result: BenchmarkResult, before: BenchmarkResult | None) -> str:
    """In points; empty where nothing was scored before."""
    if before is None or before.avg is None or result.avg is None:
        return ""
    points = round(100 * (result.avg - before.avg), 1)
    return f"{points:+.1f}".replace("-", "−") if points else "±0"


def scores_figure(found: Sequence[Evaluation], names: Sequence[str]) -> list[Figure]:
    """avg@k of every checkpoint on every benchmark; empty where nothing was scored."""
    series = []
    for name in names:
        points = [
            (i, r.avg, r.ci_low, r.ci_high)
            for i, e in enumerate(found)
            if (r := e.result(name)) and r.avg is not None and r.ci_low is not None
        ]
        if points:
            series.append(Series(title_of(name), *zip(*points, strict=True)))
    alt = "avg@k of every checkpoint on every benchmark, with 95 % intervals"
    drawn = scores_plot([e.checkpoint for e in found], series) if series else ""
    return [Figure("scores", drawn, alt)] if series else []


def _paper_score(result: BenchmarkResult | None, p: BenchmarkProtocol) -> str:
    wanted = (p.source or p.name, p.date_from, p.date_to)
    if result is None or (result.source, result.date_from, result.date_to) != wanted:
        return ""
    other_k = "" if result.k == p.k or result.avg is None else f" avg@{result.k}"
    return score_text(result) + other_k


def plain(value: object, absent: str = "–") -> str:
    """A field of a result as a reader wants it; `absent` stands for None and for nothing."""
    if value is None or value in ("", {}):
        return absent
    if isinstance(value, dict):
        return ", ".join(f"{n} with {other}" for other, n in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
