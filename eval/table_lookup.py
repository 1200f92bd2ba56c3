"""Records of a parquet file by id, read when asked for."""

from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow.parquet as pq

from eval.records import Record
from eval.tables import row_groups, to_records

R = TypeVar("R", bound=Record)
GROUPS_IN_MEMORY = 4


class Lookup(Generic[R]):
    """`get(id)`: one row group is read at a time and the last few stay in memory.

    Made for askers that go through the ids in about the order of the file, as samples do with
    their problems. Of two rows with one id the first counts. Memory is one id a row and
    `GROUPS_IN_MEMORY` row groups.
    """

    def __init__(self, path: Path, record: type[R], id_column: str = "id") -> None:
        self._record = record
        self._file = pq.ParquetFile(path)
        self._rows: dict[str, int] = {}
        ids = (i for t in row_groups(path, [id_column]) for i in t.column(id_column).to_pylist())
        for row, id_ in enumerate(ids):
            self._rows.setdefault(id_, row)
        meta = self._file.metadata
        sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        self._starts = [0, *accumulate(sizes)]
        self._groups: OrderedDict[int, list[R]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, id_: str) -> R | None:
        """The record with this id, or None."""
        row = self._rows.get(id_)
        if row is None:
            return None
        group = bisect_right(self._starts, row) - 1
        return self._group(group)[row - self._starts[group]]

    def _group(self, number: int) -> list[R]:
        if number in self._groups:
            self._groups.move_to_end(number)
            return self._groups[number]
        table = self._file.read_row_group(number)
        self._groups[number] = list(to_records(table, self._record))
        while len(self._groups) > GROUPS_IN_MEMORY:
            self._groups.popitem(last=False)
        return self._groups[number]
