"""A table of problems cut into parts, and split into kept and rejected rows without decoding."""

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...eval.progress import report
from ...eval.records import Problem, Rejected
from ...eval.records.tables import ArrowWriter, TableWriter, to_records

END = sys.maxsize, ""
"""After the last of the rows that go."""


class TablePart(NamedTuple):
    """Row groups first … last−1 of a table, and the rows before them."""

    first: int
    last: int
    before: int


def table_parts(source: Path, rows: int) -> list[TablePart]:
    """At least one part, of about `rows` rows, along row groups."""
    meta = pq.read_metadata(source)
    sizes = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
    before = np.cumsum([0, *sizes]).tolist()
    _, starts = np.unique(np.array(before[:-1], int) // rows, return_index=True)
    ends = [*starts.tolist(), len(sizes)]
    return [TablePart(a, b, before[a]) for a, b in pairwise(ends)] or [TablePart(0, 0, 0)]


def split_rows(source: Path, reasons: Iterable[tuple[int, str]], out: Path) -> dict[str, float]:
    """Write `kept.parquet` and `rejected.parquet` below `out`; returns `kept` and `rejected`, in
    all and for every source.

    `reasons` are of the rows that go, ascending: the number in the table, from 0, and why. Memory
    holds one row group. The bytes written depend on the rows alone, not on how `source` was cut
    into row groups.
    """
    kept_by, rejected_by = Counter[str](), Counter[str]()
    before, coming = 0, iter(reasons)
    row, reason = next(coming, END)
    with (
        pq.ParquetFile(source) as file,
        ArrowWriter(out / "kept.parquet", file.schema_arrow) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        for group in range(file.num_row_groups):
            # One thread: the writer has another, and Arrow's own cost half as much again.
            table = file.read_row_group(group, use_threads=False)
            goes, causes = np.zeros(len(table), np.bool_), list[str]()
            while row < before + len(table):
                goes[row - before] = True
                causes.append(reason)
                row, reason = next(coming, END)
            left = table.filter(pa.array(~goes))
            kept.write(left)
            kept_by.update(left["source"].to_pylist())
            lost = to_records(table.filter(pa.array(goes)), Problem)
            for p, cause in zip(lost, causes, strict=True):
                rejected_by[p.source] += 1
                original = p.model_dump_json()
                rejected.write(Rejected(id=p.id, source=p.source, reason=cause, row=original))
            before += len(table)
            report(before, file.metadata.num_rows)
    return {
        **{"kept": kept.rows, "rejected": rejected.rows},
        **{f"kept/{name}": n for name, n in kept_by.items()},
        **{f"rejected/{name}": n for name, n in rejected_by.items()},
    }
