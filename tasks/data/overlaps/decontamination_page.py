"""The page of a decontamination: common wording set apart from real leaks, with both texts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval.tables import to_records
from tasks.data.overlaps.ngrams import NgramIndex
from tasks.data.overlaps.overlaps import LISTED_PER_ROW, Hit
from tasks.data.words import RULES, Normalisation
from tasks.report.page import Page, render

PAGE = "decontamination.html"
LEAK_COVERAGE = 0.5
"""Coverage from which a hit is the benchmark problem itself rather than common wording."""
LEAKS_SHOWN = 25
NGRAMS_LISTED = 30
COMMON_SHOWN = 8
AROUND = 1_500
NGRAM_CHARS = 300
OPEN, CLOSE = "⟦", "⟧"
_CHUNK = {"alnum": re.compile(r"[^\W_]+"), "whitespace": re.compile(r"\S+")}


class RowCount(NamedTuple):
    """Rows that share any n-gram, and how many of those share half of an item."""

    any_ngram: int = 0
    half_covered: int = 0

    @property
    def below_half(self) -> int:
        """Rows that share common wording only."""
        return self.any_ngram - self.half_covered


class CommonNgram(NamedTuple):
    """An n-gram that hits below half coverage share."""

    ngram: str
    rows: int
    items: int
    first: int
    """Place of the first of those hits."""


@dataclass(frozen=True)
class OverlapCounts:
    """Counts over one hits.parquet."""

    hits: int
    rows: RowCount
    by_benchmark: Mapping[str, RowCount]
    by_source: Mapping[str, RowCount]
    leaked_items: Mapping[str, int]
    """By benchmark: items of which a row holds half or more."""
    common: list[CommonNgram]
    """Most rows first."""
    leaks: list[int]
    """Places of the best hits of the rows that hold half of an item, the best covered first."""

    def metrics(self) -> dict[str, float]:
        """Rows that any shared n-gram removes beside those that share half of an item."""
        by_benchmark = sorted(self.by_benchmark.items())
        return {
            "rows_any_ngram": float(self.rows.any_ngram),
            "rows_coverage_50": float(self.rows.half_covered),
            "rows_boilerplate": float(self.rows.below_half),
            "hits": float(self.hits),
            **{f"rows_hit/{name}": float(count.any_ngram) for name, count in by_benchmark},
            **{f"rows_leaked/{name}": float(count.half_covered) for name, count in by_benchmark},
        }


def count_hits(path: Path) -> OverlapCounts:
    """Count the hits on file, of a row the best covered first. Memory holds no text of them."""
    names = ["source", "benchmark", "item_id", "ngram"]
    hits = pq.read_table(path, columns=["row_number", "coverage", *names], read_dictionary=names)
    half = pc.call_function("greater_equal", [hits["coverage"], pa.scalar(LEAK_COVERAGE)])
    hits = hits.unify_dictionaries().append_column("half", half)
    hits = hits.append_column("place", pa.array(range(len(hits)), pa.int64()))

    leaked = _groups(hits.filter(half), ["benchmark", "item_id"])
    below = hits.filter(pc.call_function("invert", [half]))
    pairs = _groups(below, ["ngram", "benchmark", "item_id"])
    items = dict(_values(_groups(pairs, ["ngram"], ("place_min", "count"))))
    common = _groups(below, ["ngram"], ("row_number", "count_distinct"), ("place", "min"))
    ngrams = [CommonNgram(n, rows, items[n], first) for n, rows, first in _values(common)]
    best = np.flatnonzero(np.diff(hits["row_number"].to_numpy(), prepend=-1))
    coverage = hits["coverage"].to_numpy()[best]
    best_first = best[np.argsort(-coverage, kind="stable")]
    by_source = _rows_by(hits, "source")
    return OverlapCounts(
        hits=len(hits),
        rows=RowCount(*map(sum, zip(*by_source.values(), strict=True))),
        by_benchmark=_rows_by(hits, "benchmark"),
        by_source=by_source,
        leaked_items=Counter(leaked["benchmark"].to_pylist()),
        common=sorted(ngrams, key=lambda ngram: (-ngram.rows, ngram.ngram)),
        leaks=best_first[: np.count_nonzero(coverage >= LEAK_COVERAGE)].tolist(),
    )


def _groups(table: pa.Table, keys: list[str], *figures: tuple[str, str]) -> pa.Table:
    """One row for every combination of the keys that occurs."""
    return table.group_by(keys, use_threads=False).aggregate(list(figures or [("place", "min")]))


def _values(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _rows_by(hits: pa.Table, name: str) -> Mapping[str, RowCount]:
    rows = _groups(hits, [name, "row_number"], ("half", "any"))
    counted = _groups(rows, [name], ("half_any", "count"), ("half_any", "sum"))
    return defaultdict(RowCount, {key: RowCount(*counts) for key, *counts in _values(counted)})


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
    counts = count_hits(out / "hits.parquet")
    leaks, wording = (
        [_pair(hit, decided.normalise) for hit in hits_at(out / "hits.parquet", places)]
        for places in (counts.leaks[:LEAKS_SHOWN], [n.first for n in counts.common[:COMMON_SHOWN]])
    )
    body = render(
        "decontamination.md",
        counts=counts,
        decided=decided,
        index=index,
        total=sum(decided.rows.values()),
        items=Counter(item.benchmark for item in index.items),
        same=round(100 * LEAK_COVERAGE),
        listed_per_row=LISTED_PER_ROW,
        common=[(n.ngram[:NGRAM_CHARS], n.rows, n.items) for n in counts.common[:NGRAMS_LISTED]],
        marks=(OPEN, CLOSE),
        leaks=leaks,
        wording=wording,
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


def hits_at(path: Path, places: list[int]) -> list[Hit]:
    """The hits at these places, in this order; reads only the row groups they are in."""
    found: dict[int, Hit] = {}
    before = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            wanted = sorted({p for p in places if before <= p < before + rows})
            if wanted:
                table = file.read_row_group(group).take([place - before for place in wanted])
                found |= zip(wanted, to_records(table, Hit), strict=True)
            before += rows
    return [found[place] for place in places]


def marked(text: str, ngram: str, normalise: Normalisation, around: int) -> str:
    """The text with its first occurrence of `ngram` between ⟦ and ⟧.

    At most `around` characters before and after it are kept. Where characters combine across
    words (NFKC) the place may not be found: then the beginning of the text, without marks.
    """
    wanted = ngram.split(" ")
    words: list[str] = []
    places: list[tuple[int, int]] = []
    for chunk in _CHUNK[normalise].finditer(text):
        for word in RULES[normalise](chunk[0]):
            words.append(word)
            places.append(chunk.span())
            if words[-len(wanted) :] == wanted:
                return _between(text, places[-len(wanted)][0], places[-1][1], around)
    return text if len(text) <= 2 * around else text[: 2 * around] + " …"


def _between(text: str, start: int, end: int, around: int) -> str:
    left, right = max(0, start - around), min(len(text), end + around)
    return (
        f"{'… ' if left else ''}{text[left:start]}{OPEN}{text[start:end]}{CLOSE}"
        f"{text[end:right]}{' …' if right < len(text) else ''}"
    )
