"""The hits of a decontamination, counted under the strict and under the covering rule."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from eval.tables import to_records
from tasks.data.overlaps.overlaps import Hit

LEAK_COVERAGE = 0.5
"""Coverage from which a hit is the benchmark problem itself rather than common wording."""


class RowCount(NamedTuple):
    """Rows that share any n-gram, and how many of those share half of an item."""

    strict: int = 0
    leaked: int = 0

    @property
    def boilerplate(self) -> int:
        """Rows that share common wording only."""
        return self.strict - self.leaked


class CommonNgram(NamedTuple):
    """An n-gram that hits below half coverage share."""

    rows: int
    first: int
    """Place of the first of those hits."""
    items: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class OverlapCounts:
    """Counts over one hits.parquet."""

    hits: int
    rows: RowCount
    by_benchmark: Mapping[str, RowCount]
    by_source: Mapping[str, RowCount]
    leaked_items: Mapping[str, set[str]]
    common: Mapping[str, CommonNgram]

    def frequent(self, most: int) -> list[tuple[str, CommonNgram]]:
        """The n-grams that the most rows share below half coverage."""
        return nsmallest(most, self.common.items(), key=lambda pair: (-pair[1].rows, pair[0]))

    def metrics(self) -> dict[str, float]:
        """Rows that any shared n-gram removes beside those that share half of an item."""
        return {
            "rows_any_ngram": float(self.rows.strict),
            "rows_coverage_50": float(self.rows.leaked),
            "rows_boilerplate": float(self.rows.boilerplate),
            "hits": float(self.hits),
            **{f"rows_hit/{b}": float(c.strict) for b, c in sorted(self.by_benchmark.items())},
            **{f"rows_leaked/{b}": float(c.leaked) for b, c in sorted(self.by_benchmark.items())},
        }


def count_hits(path: Path, examples: int) -> tuple[OverlapCounts, list[int]]:
    """Count the hits on file, of a row the best covered first; also the places of the `examples`
    best hits at half coverage or more, one a row, the best covered first.

    Memory holds six numbers a hit, and no text.
    """
    rows, coverage = (_column(path, name).to_numpy() for name in ("row_number", "coverage"))
    source, sources = _codes(path, "source")
    benchmark, benchmarks = _codes(path, "benchmark")
    item, items = _codes(path, "item_id")
    ngram, ngrams = _codes(path, "ngram")
    leaked = coverage >= LEAK_COVERAGE

    best = np.flatnonzero(np.diff(rows, prepend=-1))
    of_benchmark = np.unique(rows * len(benchmarks) + benchmark, return_index=True)[1]
    leaked_items = defaultdict[str, set[str]](set)
    for b, i in set(zip(benchmark[leaked].tolist(), item[leaked].tolist(), strict=True)):
        leaked_items[benchmarks[b]].add(items[i])

    below = np.flatnonzero(~leaked)
    common_rows = np.unique(ngram[below] * (rows.max(initial=0) + 1) + rows[below])
    row_counts = np.bincount(common_rows // (rows.max(initial=0) + 1), minlength=len(ngrams))
    in_items = defaultdict[int, set[tuple[str, str]]](set)
    for n, b, i in set(zip(*(c[below].tolist() for c in (ngram, benchmark, item)), strict=True)):
        in_items[n].add((benchmarks[b], items[i]))
    firsts = zip(*(a.tolist() for a in np.unique(ngram[below], return_index=True)), strict=True)
    counts = OverlapCounts(
        hits=len(rows),
        rows=RowCount(len(best), int(leaked[best].sum())),
        by_benchmark=_by_name(benchmark[of_benchmark], leaked[of_benchmark], benchmarks),
        by_source=_by_name(source[best], leaked[best], sources),
        leaked_items=leaked_items,
        common={
            ngrams[n]: CommonNgram(int(row_counts[n]), int(below[at]), frozenset(in_items[n]))
            for n, at in firsts
        },
    )
    leaks = best[leaked[best]]
    return counts, leaks[np.argsort(-coverage[leaks], kind="stable")][:examples].tolist()


def _column(path: Path, name: str):
    return pq.read_table(path, columns=[name]).column(0)


def _codes(path: Path, name: str) -> tuple[NDArray[np.int64], list[str]]:
    """A column as numbers of its distinct values."""
    encoded = _column(path, name).dictionary_encode().combine_chunks()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def _by_name(
    codes: NDArray[np.int64], leaked: NDArray[np.bool_], names: list[str]
) -> Mapping[str, RowCount]:
    strict, half = (np.bincount(c, minlength=len(names)) for c in (codes, codes[leaked]))
    counts = map(RowCount, strict.tolist(), half.tolist())
    return defaultdict(RowCount, zip(names, counts, strict=True))


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
