"""Scores beside the paper's; the report's template writes them out."""

from collections.abc import Sequence

from configs.settings.evaluation import PAPER_PROTOCOLS, BenchmarkProtocol
from eval.benchmarks.benchmarks import BenchmarkResult
from tasks.report.page import render
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


def leaderboard(scored: Sequence[tuple[str, Evaluation]], ours_are: str) -> str:
    """Ours first, by label, then the paper's rows; `ours_are` tells a reader which is which.

    A score stands in a column only if it was measured on that column's problems.
    """
    rows = []
    for label, evaluation in scored:
        found = [_on_its_problems(evaluation.result(p.name), p) for p in PAPER_PROTOCOLS]
        if any(found):
            cells = list(zip(found, PAPER_PROTOCOLS, strict=True))
            rows.append((label, cells, evaluation.results[0].statement))
    return render("leaderboard.md", rows=rows, ours_are=ours_are)


def _on_its_problems(
    result: BenchmarkResult | None, p: BenchmarkProtocol
) -> BenchmarkResult | None:
    wanted = (p.source or p.name, p.date_from, p.date_to)
    same = result and (result.source, result.date_from, result.date_to) == wanted
    return result if same else None
