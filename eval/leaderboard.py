"""The leaderboard: this run's checkpoints beside Table 1 of the paper, each with its protocol.

A score of ours stands in a column only if it was measured on that column's problems; how it was
asked stands beside it, and what nobody stated stays blank. Every row of ours names its profile.
"""

from collections.abc import Sequence

from configs.evaluate_stage import PAPER_PROTOCOLS
from eval import paper_table
from eval.benchmarks import BenchmarkResult, Statement
from eval.page import Block, Cell, Heading, Paragraph, Table
from eval.run_facts import Evaluation, RunFacts

PROTOCOL_COLUMNS = ("Longest answer", "YaRN", "T", "top_p", "top_k", "Rep. penalty")
PAPER_TOKENS = {"Klear-Reasoner-8B-SFT": "32K", "Klear-Reasoner-8B": "32K",
                "Klear-Reasoner-8B, 64K budget": "64K"}  # fmt: skip
PAPER_YARN = {"Klear-Reasoner-8B, 64K budget": "2.5"}


def leaderboard_section(facts: RunFacts, profile: str) -> list[Block]:
    """The checkpoints of a run, each with its profile."""
    marked = f"{profile or 'unlabelled'} profile"
    rows = [(f"{e.checkpoint} ({marked})", e) for e in facts.evaluations()]
    return leaderboard(rows, "marked with a profile")


def leaderboard(
    scored: Sequence[tuple[str, Evaluation]], ours_are: str = "above the paper's"
) -> list[Block]:
    """Ours first, by label, then the paper's rows in their order; `ours_are` tells them apart."""
    ours = [row for label, e in scored if (row := _our_row(label, e))]
    rows: list[tuple[str | Cell, ...]] = [*ours, *map(_paper_row, paper_table.ROWS)]
    bold = {len(ours) + i for i, r in enumerate(paper_table.ROWS) if r.ours}
    columns = tuple(f"{c.title} avg@{c.k}" for c in paper_table.COLUMNS)
    said = (
        f"Rows {ours_are} were measured by this run; all others are the paper's own "
        "numbers, for models of 4 to 8 billion parameters, and were not measured by this run. A "
        "blank cell was not measured or not stated."
    )
    if not ours:
        said += " This run scored none of these benchmarks."
    return [
        Heading("Leaderboard"),
        Paragraph(said),
        Table(
            ("Model", *columns, *PROTOCOL_COLUMNS),
            tuple(rows),
            paper_table.CAPTION + " LCB v5 and v6 are windows of release dates and share the "
            "problems of February 2025.",
            emphasis=frozenset(bold),
        ),
    ]


def _our_row(label: str, evaluation: Evaluation) -> tuple[str | Cell, ...] | None:
    """One checkpoint; None when it was scored on no benchmark of the table."""
    windows = {p.name: (p.source or p.name, p.date_from, p.date_to) for p in PAPER_PROTOCOLS}
    cells: list[str | Cell] = []
    for column in paper_table.COLUMNS:
        result = evaluation.result(column.name)
        same = result and (result.source, result.date_from, result.date_to) == windows[column.name]
        cells.append(_score(result, column.k) if result and same else "")
    if not any(cells):
        return None
    return label, *cells, *_protocol(evaluation.results[0].statement)


def _score(result: BenchmarkResult, k: int) -> str | Cell:
    if result.avg is None or result.ci_low is None or result.ci_high is None:
        return Cell("unscored", tone="quiet")
    interval = f"[{100 * result.ci_low:.1f}, {100 * result.ci_high:.1f}]"
    other_k = "" if result.k == k else f" avg@{result.k}"
    return Cell(f"{100 * result.avg:.1f}", interval + other_k)


def _protocol(s: Statement) -> tuple[str, ...]:
    """The cells of `PROTOCOL_COLUMNS`; an option that is off says so."""
    options = (s.top_k, s.repetition_penalty)
    return (
        _tokens(s.max_tokens),
        "off" if s.yarn_factor is None else f"{s.yarn_factor:g}",
        f"{s.temperature:g}",
        f"{s.top_p:g}",
        *("off" if o is None else f"{o:g}" for o in options),
    )


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"


def _paper_row(row: paper_table.Row) -> tuple[str | Cell, ...]:
    marks = zip(row.scores, row.by_the_authors, strict=True)
    scores = (f"{s:.1f}{'†' if m else ''}" for s, m in marks)
    tokens, yarn = PAPER_TOKENS.get(row.model, ""), PAPER_YARN.get(row.model, "")
    return row.model, *scores, tokens, yarn, "0.6", "0.95", "", ""
