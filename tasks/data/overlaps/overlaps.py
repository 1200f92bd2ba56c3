"""What rows share with benchmark items: the decision, and every hit on file.

`decide_part` is what a worker process of the decontaminate stage does. It imports no Prefect, so
that workers start in a second.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from configs.settings.data import DecontaminateSettings
from eval.records import Record
from eval.tables import ArrowWriter, arrow_schema, row_groups
from tasks.data.overlaps.ngrams import Found, Item, NgramIndex
from tasks.data.split_rows import TablePart
from tasks.data.words import Normalisation

BATCH_BYTES = 8 << 20
BATCH_ROWS = 16_384

LISTED_PER_ROW = 100
"""Hits listed of one row, and beyond them the best of each benchmark: see `Decision.unlisted`."""
LONGEST_TEXT = 100_000
"""Characters of a text that hits hold; the whole row is among the kept or rejected ones."""
_HIT_BYTES = 32 << 20
_DECIDED = "decided.json"


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
        self._item_text = _shortened(pa.array(texts, pa.large_string()))
        self._benchmark_code = self._benchmark.dictionary_encode().indices.to_numpy()

    def decide(self, rows: Rows) -> Decision:
        """An n-gram shared at `min_coverage` or more removes the row; all hits are written."""
        found = self.index.search(rows.texts)
        listed = self._listed(found)
        self._write(rows, found, listed)
        best = found.best()
        best = best[found.coverage[best] >= self.min_coverage]
        reasons = {int(found.rows[hit]): self._reason(found, hit) for hit in best}
        return Decision(reasons, found.unreadable, len(found.rows) - len(listed))

    def _reason(self, found: Found, hit: int) -> str:
        item, entry = self.index.items[found.items[hit]], found.entries[hit]
        shared = "is all of" if self.index.is_whole(entry) else f"is a {self.index.n}-gram of"
        return (
            f"'{self.index.ngram(entry)}' {shared} {item.benchmark} item {item.id} "
            f"(coverage {found.coverage[hit]:.2f})"
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
        """In tables of a few megabytes: a long text comes again with each of its hits."""
        texts, items = found.rows[listed], found.items[listed]
        total = np.cumsum(_sizes(rows.texts)[texts] + _sizes(self._item_text)[items])
        for some in np.split(listed, np.flatnonzero(np.diff(total // _HIT_BYTES)) + 1):
            if len(some):
                self._hits.write(self._table(rows, found, some))

    def _table(self, rows: Rows, found: Found, some: NDArray[np.intp]) -> pa.Table:
        taken, items = pa.array(found.rows[some]), pa.array(found.items[some])
        entries, of_hit = np.unique(found.entries[some], return_inverse=True)
        ngrams = pa.array([self.index.ngram(e) for e in entries.tolist()], pa.string())
        columns = {
            "row_number": rows.numbers.take(taken),
            "row_id": rows.ids.take(taken),
            "source": rows.sources.take(taken),
            "benchmark": self._benchmark.take(items),
            "item_id": self._item_id.take(items),
            "ngram": ngrams.take(pa.array(of_hit)),
            "coverage": found.coverage[some],
            "whole_item": self.index.is_whole(found.entries[some]),
            "row": _shortened(rows.texts.take(taken).cast(pa.large_string())),
            "item": self._item_text.take(items),
        }
        return pa.table({name: columns[name] for name in HITS.names}, schema=HITS)


def _sizes(texts: pa.Array) -> NDArray[np.int64]:
    """Bytes of each text."""
    sizes = pc.call_function("binary_length", [texts.cast(pa.large_binary())])
    return pc.fill_null(sizes, 0).to_numpy().astype(np.int64)


def _shortened(texts: pa.LargeStringArray) -> pa.StringArray:
    """No text longer than a hit holds."""
    options = pc.SliceOptions(0, LONGEST_TEXT)
    return pc.call_function("utf8_slice_codeunits", [texts], options).cast(pa.string())


@lru_cache(maxsize=1)
def benchmark_index(path: Path, digest: str, n: int, normalise: Normalisation) -> NgramIndex:
    """The index of a benchmarks file of this digest: one in every process, whatever its parts."""
    columns = ["source", "id", "prompt"]
    tables = (table.select(columns) for table in row_groups(path, columns))
    rows = (zip(*(c.to_pylist() for c in table.columns), strict=True) for table in tables)
    return NgramIndex((Item(*row) for some in rows for row in some), n, normalise)


def text_batches(
    file: pq.ParquetFile,
    columns: list[str] | None = None,
    groups: Iterable[int] | None = None,
    most_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of these row `groups` (None: all) in order, in batches of a few megabytes of text.

    A batch holds at least one row, and `most_rows` at most.
    """
    for number in range(file.metadata.num_row_groups) if groups is None else groups:
        group = file.metadata.row_group(number)
        chunks = [group.column(i) for i in range(group.num_columns)]
        size = sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if columns is None or chunk.path_in_schema in columns
        )
        rows = min(most_rows, max(1, group.num_rows * BATCH_BYTES // max(size, 1)))
        yield from file.iter_batches(rows, [number], columns, use_threads=False)


def decide_part(
    part: TablePart,
    folder: Path,
    *,
    source: Path,
    items: Path,
    digest: str,
    rule: DecontaminateSettings,
) -> None:
    """Write the hits of a part and, by number of the row in the table, why rows must go.

    Raises ValueError for a prompt that is no text.
    """
    index = benchmark_index(items, digest, rule.n, rule.normalize)
    reasons: list[tuple[int, str]] = []
    unlisted, before = 0, part.before
    with ArrowWriter(folder / "hits.parquet", HITS) as hits, pq.ParquetFile(source) as file:
        overlaps = Overlaps(index, rule.min_coverage, hits)
        columns = ["id", "source", "prompt"]
        for batch in text_batches(file, columns, range(part.first, part.last)):
            numbers = pa.array(range(before + 1, before + len(batch) + 1), pa.int64())
            rows = Rows(numbers, *(batch.column(name) for name in columns))
            decision = overlaps.decide(rows)
            if rows.texts.null_count or decision.unreadable:
                raise ValueError(
                    f"{source}, rows {before + 1} to {numbers[-1]}: a prompt is no text"
                )
            reasons += [(before + row, reason) for row, reason in decision.reasons.items()]
            unlisted += decision.unlisted
            before += len(batch)
    (folder / _DECIDED).write_bytes(orjson.dumps([reasons, unlisted]))


def decided(folder: Path) -> tuple[dict[int, str], int]:
    """What `decide_part` left: the reasons, and how many hits it did not list."""
    reasons, unlisted = orjson.loads((folder / _DECIDED).read_bytes())
    return dict(reasons), unlisted
