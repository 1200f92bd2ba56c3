"""What rows share with benchmark items: the decision, and every hit on file."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eval.records import Record
from eval.tables import ArrowWriter, arrow_schema
from tasks.data.overlaps.ngrams import Found, NgramIndex

LISTED_PER_ROW = 100
"""Hits listed of one row, and beyond them the best of each benchmark: see `Decision.unlisted`."""
LONGEST_TEXT = 100_000
"""Characters of a text that hits hold; the whole row is among the kept or rejected ones."""
BYTES_AT_ONCE = 32 << 20


class Hit(Record):
    """One row and one benchmark item that share an n-gram, whether or not the row was removed."""

    row_number: int
    """Place of the row in its file, from 1: ids may repeat."""
    row_id: str
    source: str
    benchmark: str
    item_id: str
    ngram: str
    """The first shared n-gram of the row; all words of an item shorter than n."""
    coverage: float
    whole_item: bool
    """The item is shorter than n words and was found whole."""
    row: str
    item: str


HITS, _ = arrow_schema(Hit)


class Rows(NamedTuple):
    """Some rows of a file: Arrow arrays of equal length."""

    numbers: pa.Array
    """Place of each row in its file, from 1."""
    ids: pa.Array
    sources: pa.Array
    texts: pa.Array


class Decision(NamedTuple):
    """What becomes of some rows."""

    reasons: dict[int, str]
    """Why a row must go, by its number among them, from 0."""
    unreadable: list[int]
    """Numbers of the rows whose text is no UTF-8."""
    unlisted: int
    """Hits that were found and not written: a row of common wording may hit every item."""


class Overlaps:
    """Decides about rows and writes their hits. A missing text (null) shares nothing."""

    def __init__(self, index: NgramIndex, min_coverage: float, hits: ArrowWriter) -> None:
        self.index = index
        self.min_coverage = min_coverage
        self._hits = hits
        benchmark, ids, texts = zip(*index.items, strict=True) if index.items else ((), (), ())
        self._benchmark = pa.array(benchmark, pa.string())
        self._item_id = pa.array(ids, pa.string())
        self._item_text = pa.array([text[:LONGEST_TEXT] for text in texts], pa.string())
        self._benchmark_code = self._benchmark.dictionary_encode().indices.to_numpy()

    def decide(self, rows: Rows) -> Decision:
        """An n-gram shared at `min_coverage` or more removes the row; all hits are written."""
        found = self.index.search(rows.texts)
        listed = self._listed(found)
        self._write(rows, found, listed)
        best = found.best()
        best = best[found.coverage[best] >= self.min_coverage]
        reasons = {
            row: self._reason(item, entry, coverage)
            for row, item, entry, coverage in zip(
                *(a[best].tolist() for a in (found.rows, found.items, found.entries)),
                found.coverage[best].tolist(),
                strict=True,
            )
        }
        return Decision(reasons, found.unreadable, len(found.rows) - len(listed))

    def _reason(self, number: int, entry: int, coverage: float) -> str:
        item = self.index.items[number]
        shared = "is all of" if self.index.is_whole(entry) else f"is a {self.index.n}-gram of"
        return (
            f"'{self.index.ngram(entry)}' {shared} {item.benchmark} item {item.id} "
            f"(coverage {coverage:.2f})"
        )

    def _listed(self, found: Found) -> NDArray[np.intp]:
        """Places of the hits to write: the best of each row, and of each of its benchmarks."""
        first = np.searchsorted(found.rows, found.rows)
        rank = np.arange(len(found.rows)) - first
        if not len(rank) or rank.max() < LISTED_PER_ROW:
            return np.arange(len(found.rows))
        of_benchmark = found.rows * len(self.index.items) + self._benchmark_code[found.items]
        _, best = np.unique(of_benchmark, return_index=True)
        return np.union1d(np.flatnonzero(rank < LISTED_PER_ROW), best)

    def _write(self, rows: Rows, found: Found, listed: NDArray[np.intp]) -> None:
        if not len(listed):
            return
        sizes = (
            _sizes(rows.texts)[found.rows[listed]] + _sizes(self._item_text)[found.items[listed]]
        )
        total = np.cumsum(sizes)
        cuts = np.flatnonzero(np.diff(total // BYTES_AT_ONCE)) + 1
        for some in np.split(listed, cuts):
            self._hits.write(self._table(rows, found, some))

    def _table(self, rows: Rows, found: Found, some: NDArray[np.intp]) -> pa.Table:
        taken, items = pa.array(found.rows[some]), pa.array(found.items[some])
        entries, of_hit = np.unique(found.entries[some], return_inverse=True)
        ngrams = pa.array([self.index.ngram(e) for e in entries.tolist()], pa.string())
        whole = np.array([self.index.is_whole(e) for e in entries.tolist()], np.bool_)
        columns = {
            "row_number": rows.numbers.take(taken),
            "row_id": rows.ids.take(taken),
            "source": rows.sources.take(taken),
            "benchmark": self._benchmark.take(items),
            "item_id": self._item_id.take(items),
            "ngram": ngrams.take(pa.array(of_hit)),
            "coverage": found.coverage[some],
            "whole_item": whole[of_hit],
            "row": _shortened(rows.texts.take(taken)),
            "item": self._item_text.take(items),
        }
        return pa.table({name: columns[name] for name in HITS.names}, schema=HITS)


def _sizes(texts: pa.Array) -> NDArray[np.int64]:
    """Bytes of each text."""
    sizes = pc.call_function("binary_length", [texts])
    return pc.fill_null(sizes, 0).to_numpy().astype(np.int64)


def _shortened(texts: pa.Array) -> pa.Array:
    """No text longer than a hit holds."""
    if _sizes(texts).max(initial=0) <= LONGEST_TEXT:
        return texts.cast(pa.string())
    whole = texts.cast(pa.large_string()).to_pylist()
    return pa.array([text[:LONGEST_TEXT] for text in whole], pa.string())
