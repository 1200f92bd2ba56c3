"""The page of a decontamination: common wording set apart from real leaks, with both texts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.data.overlaps.marked_text import CLOSE, OPEN, marked
from tasks.data.overlaps.ngrams import NgramIndex
from tasks.data.overlaps.overlap_counts import (
    LEAK_COVERAGE,
    OverlapCounts,
    count_hits,
    hits_at,
)
from tasks.data.overlaps.overlaps import LISTED_PER_ROW, Hit
from tasks.data.overlaps.words import Normalisation
from tasks.report.page import Page, render

PAGE = "decontamination.html"
LEAKS_SHOWN = 25
NGRAMS_LISTED = 30
COMMON_SHOWN = 8
AROUND = 1_500
NGRAM_CHARS = 300


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
    places = [*leaks, *(ngram.first for _, ngram in counts.frequent(COMMON_SHOWN))]
    hits = hits_at(out / "hits.parquet", places)
    pairs = [_pair(hit, decided.normalise) for hit in hits]
    body = render(
        "decontamination.md",
        counts=counts,
        decided=decided,
        index=index,
        total=sum(decided.rows.values()),
        items=Counter(item.benchmark for item in index.items),
        same=round(100 * LEAK_COVERAGE),
        listed_per_row=LISTED_PER_ROW,
        common=[(n[:NGRAM_CHARS], c.rows, len(c.items)) for n, c in counts.frequent(NGRAMS_LISTED)],
        marks=(OPEN, CLOSE),
        leaks=pairs[: len(leaks)],
        wording=pairs[len(leaks) :],
        share=_share,
    )
    subtitle = (
        f"{sum(decided.rows.values()):,} rows against {len(index.items):,} benchmark items: which "
        f"share {'an' if index.n in (8, 11, 18) else 'a'} {index.n}-gram, and which are the same "
        "problem."
    )
    label = f"n = {index.n}, {decided.normalise}"
    page = Page("Decontamination", subtitle, label, body)
    (out / PAGE).write_text(page.html(), encoding="utf-8")
    return counts


def _share(part: int, whole: int) -> str:
    return f"{part:,} {100 * part / whole:.2f} %" if whole else f"{part:,}"


def _pair(hit: Hit, normalise: Normalisation) -> tuple[str, str, str]:
    """What they share in a line, and both texts."""
    about = (
        f"{100 * hit.coverage:.0f} % of {hit.benchmark} item {hit.item_id} "
        f"in {hit.source} row {hit.row_id}: “{hit.ngram[:NGRAM_CHARS]}”"
    )
    row, item = (marked(text, hit.ngram, normalise, AROUND) for text in (hit.row, hit.item))
    return about, row, item
