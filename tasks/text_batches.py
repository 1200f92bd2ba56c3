"""Rows of a parquet file in batches of a few megabytes of text, however long its rows are."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

BYTES = 8 << 20
MOST_ROWS = 16_384


def text_batches(
    file: pq.ParquetFile,
    columns: list[str] | None = None,
    groups: Iterable[int] | None = None,
    most_rows: int = MOST_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows in order, only `columns` (None: all) of only these row `groups` (None: all).

    Small row groups are read together, large ones in pieces. Memory is one row group's pages and
    one batch; a batch holds at least one row, and `most_rows` at most.
    """
    wanted = range(file.metadata.num_row_groups) if groups is None else groups
    together: list[int] = []
    rows, size = 0, 0
    for number in wanted:
        group = file.metadata.row_group(number)
        together.append(number)
        rows += group.num_rows
        size += _bytes(group, columns)
        if size >= BYTES or rows >= MOST_ROWS:
            yield from _read(file, together, columns, rows, size, most_rows)
            together, rows, size = [], 0, 0
    if together:
        yield from _read(file, together, columns, rows, size, most_rows)


def _read(
    file: pq.ParquetFile,
    groups: list[int],
    columns: list[str] | None,
    rows: int,
    size: int,
    most_rows: int,
) -> Iterator[pa.RecordBatch]:
    batch_rows = min(MOST_ROWS, most_rows, max(1, rows * BYTES // max(size, 1)))
    yield from file.iter_batches(
        batch_size=batch_rows, row_groups=groups, columns=columns, use_threads=False
    )


def _bytes(group: pq.RowGroupMetaData, columns: list[str] | None) -> int:
    """Bytes of the columns in one row group before compression."""
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if columns is None or chunk.path_in_schema in columns
    )
