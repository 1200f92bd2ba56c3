"""Deciding about one part of a table: what a worker process of the decontaminate stage does.

It imports no Prefect, so that workers start in a second.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from configs.settings.data import DecontaminateSettings
from eval.tables import ArrowWriter, row_groups
from tasks.data.overlaps.ngrams import Item, NgramIndex
from tasks.data.overlaps.overlaps import HITS, Overlaps, Rows
from tasks.data.overlaps.words import Normalisation

BATCH_BYTES = 8 << 20
BATCH_ROWS = 16_384
_DECIDED = "decided.json"


class Part(NamedTuple):
    """Row groups first … last−1 of a table of problems, and the rows before them."""

    first: int
    last: int
    before: int


def cut(source: Path, rows: int) -> list[Part]:
    """Parts of at least `rows` rows (the last may have fewer), along the row groups."""
    parts: list[Part] = []
    meta = pq.read_metadata(source)
    first, before, size = 0, 0, 0
    for number in range(meta.num_row_groups):
        size += meta.row_group(number).num_rows
        if size >= rows or number == meta.num_row_groups - 1:
            parts.append(Part(first, number + 1, before))
            first, before, size = number + 1, before + size, 0
    return parts


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
    part: Part, folder: Path, *, source: Path, items: Path, digest: str, rule: DecontaminateSettings
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
