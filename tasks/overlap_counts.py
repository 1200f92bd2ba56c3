"""The hits of a decontamination, counted under the strict and under the covering rule."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from eval.tables import row_groups, to_records
from tasks.overlaps import Hit

SURELY_THE_SAME = 0.5
"""Coverage from which a hit is the benchmark problem itself rather than common wording."""
_COLUMNS = ["row_number", "source", "benchmark", "item_id", "ngram", "coverage"]


class HitFacts(NamedTuple):
    """A hit without its texts."""

    place: int
    """Number of the hit in its file, from 0."""
    row_number: int
    source: str
    benchmark: str
    item_id: str
    ngram: str
    coverage: float


@dataclass
class RowCount:
    """Rows that share any n-gram, and how many of those share half of an item."""

    strict: int = 0
    leaked: int = 0

    @property
    def boilerplate(self) -> int:
        """Rows that share common wording only."""
        return self.strict - self.leaked

    def add(self, coverage: float) -> None:
        self.strict += 1
        self.leaked += coverage >= SURELY_THE_SAME


@dataclass
class CommonNgram:
    """An n-gram that hits below half coverage share."""

    rows: int = 0
    first: int = -1
    """Place of the first of those hits."""
    items: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class OverlapCounts:
    """Counts over one hits.parquet. Memory: the items and n-grams that were hit, not the rows."""

    hits: int = 0
    rows: RowCount = field(default_factory=RowCount)
    by_benchmark: dict[str, RowCount] = field(default_factory=lambda: defaultdict(RowCount))
    by_source: dict[str, RowCount] = field(default_factory=lambda: defaultdict(RowCount))
    leaked_items: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    common: dict[str, CommonNgram] = field(default_factory=lambda: defaultdict(CommonNgram))

    def add_row(self, hits: list[HitFacts]) -> None:
        """All hits of one row, the best covered first."""
        self.hits += len(hits)
        self.rows.add(hits[0].coverage)
        self.by_source[hits[0].source].add(hits[0].coverage)
        for benchmark, best in {h.benchmark: h for h in reversed(hits)}.items():
            self.by_benchmark[benchmark].add(best.coverage)
        for hit in hits:
            if hit.coverage >= SURELY_THE_SAME:
                self.leaked_items[hit.benchmark].add(hit.item_id)
        below = [hit for hit in hits if hit.coverage < SURELY_THE_SAME]
        for ngram in dict.fromkeys(hit.ngram for hit in below):
            self.common[ngram].rows += 1
        for hit in below:
            common = self.common[hit.ngram]
            common.items.add((hit.benchmark, hit.item_id))
            common.first = hit.place if common.first < 0 else common.first

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
    """Count the hits on file; also the places of the `examples` best hits at half coverage or
    more, one a row, the best covered first."""
    counts = OverlapCounts()

    def leaks() -> Iterator[HitFacts]:
        for _, hits in groupby(_facts(path), key=lambda hit: hit.row_number):
            of_row = list(hits)
            counts.add_row(of_row)
            if of_row[0].coverage >= SURELY_THE_SAME:
                yield of_row[0]

    best = nsmallest(examples, leaks(), key=lambda hit: (-hit.coverage, hit.place))
    return counts, [hit.place for hit in best]


def _facts(path: Path) -> Iterator[HitFacts]:
    place = 0
    for table in row_groups(path, _COLUMNS):
        columns = [table.column(name).to_pylist() for name in _COLUMNS]
        for values in zip(*columns, strict=True):
            yield HitFacts(place, *values)
            place += 1


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
