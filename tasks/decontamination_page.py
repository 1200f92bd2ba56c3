"""The page of a decontamination: common wording set apart from real leaks, with both texts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eval.page import (
    Block,
    Cell,
    Fold,
    Heading,
    Notice,
    Page,
    Paragraph,
    Table,
    Tiles,
    Verbatim,
)
from eval.page_html import to_html
from tasks.marked_text import CLOSE, OPEN, marked
from tasks.ngrams import NgramIndex
from tasks.overlap_counts import SURELY_THE_SAME, OverlapCounts, RowCount, count_hits, hits_at
from tasks.overlaps import LISTED_PER_ROW, Hit
from tasks.words import Normalisation

PAGE = "decontamination.html"
LEAKS_SHOWN = 25
NGRAMS_LISTED = 30
COMMON_SHOWN = 8
AROUND = 1_500
NGRAM_CHARS = 300
_PERCENT = round(100 * SURELY_THE_SAME)


@dataclass(frozen=True)
class Decided:
    """What the page must know beside the hits."""

    rows: Mapping[str, int]
    """All rows that were looked at, by source."""
    removed: int
    """Rows removed because of an overlap, by the rule of this run."""
    min_coverage: float
    normalise: Normalisation
    unlisted: int = 0
    malformed: int = 0
    """Rows without a readable text, rejected as well."""


def write_page(out: Path, index: NgramIndex, decided: Decided) -> OverlapCounts:
    """Write the page beside `out/hits.parquet`, which it is about; returns its counts."""
    counts, leaks = count_hits(out / "hits.parquet", LEAKS_SHOWN)
    common = counts.frequent(COMMON_SHOWN)
    hits = hits_at(out / "hits.parquet", [*leaks, *(ngram.first for _, ngram in common)])
    page = Page(
        title="Decontamination",
        subtitle=f"{_number(sum(decided.rows.values()))} rows against {_number(len(index.items))} "
        f"benchmark items: which share {_an(index.n)}, and which are the same problem.",
        label=f"n = {index.n}, {decided.normalise}",
        blocks=(
            *_summary(counts, decided, index),
            *_by_benchmark(counts, index),
            *_by_source(counts, decided.rows),
            *_leaks(hits[: len(leaks)], counts, decided.normalise),
            *_boilerplate(hits[len(leaks) :], counts, decided.normalise),
        ),
    )
    (out / PAGE).write_text(to_html(page), encoding="utf-8")
    return counts


def _number(value: int) -> str:
    return f"{value:,}"


def _an(n: int) -> str:
    return f"{'an' if n in (8, 11, 18) else 'a'} {n}-gram"


def _share(part: int, whole: int) -> Cell:
    return Cell(_number(part), f"{100 * part / whole:.2f} %" if whole else "")


def _summary(counts: OverlapCounts, decided: Decided, index: NgramIndex) -> list[Block]:
    total = sum(decided.rows.values())
    rule = (
        f"at least {100 * decided.min_coverage:g} % of an item's n-grams"
        if decided.min_coverage > 0
        else "any shared n-gram"
    )
    blocks: list[Block] = [
        Tiles(
            (
                ("Rows that share any n-gram (strict rule)", _share(counts.rows.strict, total)),
                (
                    f"of these real leaks (coverage ≥ {_PERCENT} %)",
                    _share(counts.rows.leaked, counts.rows.strict),
                ),
                (
                    f"of these common wording (below {_PERCENT} %)",
                    _share(counts.rows.boilerplate, counts.rows.strict),
                ),
                (f"Removed by this run ({rule})", _share(decided.removed, total)),
            )
        ),
        Paragraph(
            "Coverage is the share of a benchmark item's distinct n-grams that stand in the row. "
            "The published rule removes a row for one shared n-gram, which is mostly wording that "
            f"many problems use; from {_PERCENT} % on a row is taken to be the problem itself. "
            f"{_number(index.short_items)} items are shorter than {index.n} words and count only "
            "where all of their words stand in the row in one piece."
        ),
    ]
    for count, title, text in (
        (len(index.wordless), "items without words", "They hold nothing the rule compares."),
        (decided.malformed, "rows without a readable text", "They were rejected as malformed."),
        (
            decided.unlisted,
            "hits not listed",
            f"A row lists its {LISTED_PER_ROW} best hits and the best of each benchmark.",
        ),
    ):
        blocks += [Notice(f"{_number(count)} {title}", text)] if count else []
    return blocks


def _by_benchmark(counts: OverlapCounts, index: NgramIndex) -> list[Block]:
    items = Counter(item.benchmark for item in index.items)
    rows = [
        (
            name,
            _number(size),
            *_counted(counts.by_benchmark.get(name, RowCount())),
            _share(len(counts.leaked_items.get(name, ())), size),
        )
        for name, size in items.items()
    ]
    columns = ("Benchmark", "Items", *_COUNTED, "Items leaked")
    caption = f"Rows by their best hit of each benchmark. Leaked: covered {_PERCENT} % or more."
    return [Heading("Benchmarks"), Table(columns, tuple(rows), caption=caption)]


def _by_source(counts: OverlapCounts, rows: Mapping[str, int]) -> list[Block]:
    lines = [
        (name, _number(size), *_counted(counts.by_source.get(name, RowCount())))
        for name, size in rows.items()
    ]
    return [Heading("Sources"), Table(("Source", "Rows", *_COUNTED), tuple(lines))]


_COUNTED = ("Strict rule", f"Coverage ≥ {_PERCENT} %", "Common wording only")


def _counted(count: RowCount) -> tuple[str, str, str]:
    return _number(count.strict), _number(count.leaked), _number(count.boilerplate)


def _leaks(hits: list[Hit], counts: OverlapCounts, normalise: Normalisation) -> list[Block]:
    blocks: list[Block] = [Heading("Real leaks")]
    shown = f"The {len(hits)} best covered are shown" if hits else "None"
    blocks.append(
        Paragraph(
            f"{_number(counts.rows.leaked)} rows hold half of a benchmark item or more. {shown}; "
            f"hits.parquet has all. The first shared n-gram stands between {OPEN} and {CLOSE}."
        )
    )
    return [*blocks, *(_pair(hit, normalise) for hit in hits)]


def _boilerplate(hits: list[Hit], counts: OverlapCounts, normalise: Normalisation) -> list[Block]:
    if not counts.common:
        return []
    lines = [
        (ngram[:NGRAM_CHARS], _number(common.rows), _number(len(common.items)))
        for ngram, common in counts.frequent(NGRAMS_LISTED)
    ]
    return [
        Heading("Common wording"),
        Paragraph(
            f"{_number(counts.rows.boilerplate)} rows share less than half of any item. The "
            f"n-grams that the most rows share so ({len(lines)} of {_number(len(counts.common))}):"
        ),
        Table(
            ("N-gram", "Rows", "Items"),
            tuple(lines),
            caption="Of each row and item the first shared n-gram counts.",
        ),
        *(_pair(hit, normalise) for hit in hits),
    ]


def _pair(hit: Hit, normalise: Normalisation) -> Fold:
    summary = (
        f"{100 * hit.coverage:.0f} % of {hit.benchmark} item {hit.item_id} "
        f"in {hit.source} row {hit.row_id}: “{hit.ngram[:NGRAM_CHARS]}”"
    )
    row, item = (marked(text, hit.ngram, normalise, AROUND) for text in (hit.row, hit.item))
    return Fold(summary, (Verbatim("Training row", row), Verbatim("Benchmark item", item)))
