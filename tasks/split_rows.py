"""Split a table of problems into kept and rejected rows without decoding those that stay."""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval.records import Problem, Rejected
from eval.tables import ArrowWriter, TableWriter, to_records
from tasks.progress import report


class SplitCounts(NamedTuple):
    """Rows kept and rejected, by source in the order the sources first appear."""

    kept: Counter[str]
    rejected: Counter[str]

    def metrics(self) -> dict[str, float]:
        """`kept`, `rejected`, and both for every source."""
        return {
            "kept": float(self.kept.total()),
            "rejected": float(self.rejected.total()),
            **{f"kept/{name}": float(n) for name, n in self.kept.items()},
            **{f"rejected/{name}": float(n) for name, n in self.rejected.items()},
        }


class RowSplit:
    """Writes `kept.parquet` and `rejected.parquet` below `out`, row group by row group of `source`.

    Memory holds one row group. The bytes written depend on the rows alone, not on how `source` was
    cut into row groups. Use as a context manager.
    """

    def __init__(self, source: Path, out: Path) -> None:
        self.counts = SplitCounts(Counter(), Counter())
        self._before = 0
        with ExitStack() as files:
            self._file = files.enter_context(pq.ParquetFile(source))
            kept = ArrowWriter(out / "kept.parquet", self._file.schema_arrow)
            self._kept = files.enter_context(kept)
            rejected = TableWriter(out / "rejected.parquet", Rejected)
            self._rejected = files.enter_context(rejected)
            self._files = files.pop_all()

    def take(self, group: int, reasons: Mapping[int, str]) -> int:
        """Split the next row group; returns the rows so far.

        `reasons` maps the number of a row of the table (from 0) to why it goes.
        """
        # One thread: the writer has another, and Arrow's own cost half as much again as they do.
        table = self._file.read_row_group(group, use_threads=False)
        numbers = range(self._before, self._before + len(table))
        gone = [number for number in numbers if number in reasons] if reasons else []
        stays = np.ones(len(table), np.bool_)
        lost = np.array(gone, np.int64) - self._before
        stays[lost] = False
        kept = table.filter(pa.array(stays)) if gone else table
        self._kept.write(kept)
        self.counts.kept.update(_count(kept.column("source")))
        problems = to_records(table.take(pa.array(lost)), Problem)
        for number, problem in zip(gone, problems, strict=True):
            self.counts.rejected[problem.source] += 1
            self._rejected.write(_rejected(problem, reasons[number]))
        self._before += len(table)
        return self._before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)


def split_rows(source: Path, reasons: Mapping[int, str], out: Path) -> SplitCounts:
    """All of `source` at once: `RowSplit` with the reasons of every row."""
    meta = pq.read_metadata(source)
    with RowSplit(source, out) as split:
        for group in range(meta.num_row_groups):
            report(split.take(group, reasons), meta.num_rows)
    return split.counts


def _count(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value occurs, in the order in which they first do."""
    counted = pc.call_function("value_counts", [column])
    return dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))


def _rejected(problem: Problem, reason: str) -> Rejected:
    original = problem.model_dump_json()
    return Rejected(id=problem.id, source=problem.source, reason=reason, row=original)
