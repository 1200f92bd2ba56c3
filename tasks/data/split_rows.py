"""A table of problems cut into parts, and split into kept and rejected rows without decoding."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eval.records import Problem, Rejected
from eval.tables import ArrowWriter, TableWriter, to_records
from tasks.stage.progress import report


class TablePart(NamedTuple):
    """Row groups first … last−1 of a table, and the rows before them."""

    first: int
    last: int
    before: int


def table_parts(source: Path, rows: int) -> list[TablePart]:
    """At least one part of at least `rows` rows (the last may have fewer), along row groups."""
    parts: list[TablePart] = []
    meta = pq.read_metadata(source)
    first, before, size = 0, 0, 0
    for number in range(meta.num_row_groups):
        size += meta.row_group(number).num_rows
        if size >= rows or number == meta.num_row_groups - 1:
            parts.append(TablePart(first, number + 1, before))
            first, before, size = number + 1, before + size, 0
    return parts or [TablePart(0, 0, 0)]


class RowSplit:
    """Takes the row groups of a table one by one; made by `row_split`."""

    def __init__(self, file: pq.ParquetFile, kept: ArrowWriter, rejected: TableWriter) -> None:
        self.kept: Counter[str] = Counter()
        """Rows by source, in the order in which the sources first appear."""
        self.rejected: Counter[str] = Counter()
        self._file, self._kept, self._rejected = file, kept, rejected
        self._rows = 0

    def take(self, group: int, reasons: Mapping[int, str]) -> int:
        """Split the next row group; returns the rows so far.

        `reasons` maps the number of a row of the table (from 0) to why it goes.
        """
        # One thread: the writer has another, and Arrow's own cost half as much again as they do.
        table = self._file.read_row_group(group, use_threads=False)
        before, self._rows = self._rows, self._rows + len(table)
        gone = [row for row in range(before, self._rows) if row in reasons] if reasons else []
        stays = np.ones(len(table), np.bool_)
        stays[np.array(gone, np.int64) - before] = False
        kept = table.filter(pa.array(stays)) if gone else table
        self._kept.write(kept)
        self.kept.update(kept.column("source").to_pylist())
        lost = to_records(table.filter(pa.array(~stays)), Problem)
        for row, problem in zip(gone, lost, strict=True):
            self.rejected[problem.source] += 1
            self._rejected.write(
                Rejected(
                    id=problem.id,
                    source=problem.source,
                    reason=reasons[row],
                    row=problem.model_dump_json(),
                )
            )
        return self._rows

    def metrics(self) -> dict[str, float]:
        """`kept`, `rejected`, and both for every source."""
        return {
            "kept": float(self.kept.total()),
            "rejected": float(self.rejected.total()),
            **{f"kept/{name}": float(n) for name, n in self.kept.items()},
            **{f"rejected/{name}": float(n) for name, n in self.rejected.items()},
        }


@contextmanager
def row_split(source: Path, out: Path) -> Iterator[RowSplit]:
    """Write `kept.parquet` and `rejected.parquet` below `out`, row group by row group of `source`.

    Memory holds one row group. The bytes written depend on the rows alone, not on how `source` was
    cut into row groups.
    """
    with (
        pq.ParquetFile(source) as file,
        ArrowWriter(out / "kept.parquet", file.schema_arrow) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        yield RowSplit(file, kept, rejected)


def split_rows(source: Path, reasons: Mapping[int, str], out: Path) -> RowSplit:
    """All of `source` at once: `row_split` with the reasons of every row."""
    meta = pq.read_metadata(source)
    with row_split(source, out) as split:
        for group in range(meta.num_row_groups):
            report(split.take(group, reasons), meta.num_rows)
    return split
