"""Parquet tables of records: schemas, writers, streaming readers and lookup by id."""

import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .problem import Record

ROWS_PER_GROUP = 4096
BYTES_PER_GROUP = 64 << 20
GROUPS_IN_MEMORY = 4
R = TypeVar("R", bound=Record)
_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _plain_type(annotation: Any) -> pa.DataType | None:
    """The Arrow type of a scalar annotation (or Optional or Literal scalar); None means JSON."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return pa.string()
    if origin in (typing.Union, types.UnionType):
        members = [a for a in members if a is not type(None)]
        return _plain_type(members[0]) if len(members) == 1 else None
    return _plain_type(members[0]) if origin is typing.Annotated else _ARROW.get(annotation)


@cache
def arrow_schema(record: type[Record]) -> tuple[pa.Schema, frozenset[str]]:
    """The Arrow schema of a record, and the names of the columns that hold JSON."""
    plain = {name: _plain_type(field.annotation) for name, field in record.model_fields.items()}
    json_columns = frozenset(name for name, kind in plain.items() if kind is None)
    return pa.schema({name: kind or pa.string() for name, kind in plain.items()}), json_columns


class ArrowWriter(AbstractContextManager["ArrowWriter"]):
    """Append Arrow tables to one parquet file. A row group closes with the row that fills it, by
    `ROWS_PER_GROUP` or `BYTES_PER_GROUP` of text: groups depend on the rows alone."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._room_rows, self._room_bytes = ROWS_PER_GROUP, BYTES_PER_GROUP

    def write(self, table: pa.Table) -> None:
        texts = [c for c in table.columns if c.type in (pa.string(), pa.large_string())]
        sizes = [pc.fill_null(pc.call_function("binary_length", [c]), 0).to_numpy() for c in texts]
        of_row = sum(sizes, np.zeros(len(table), np.int64))
        until = np.concatenate([[0], np.cumsum(of_row)])  # bytes of text before a row
        start = 0
        while start < len(table):
            by_bytes = int(np.searchsorted(until, until[start] + self._room_bytes))
            end = min(start + self._room_rows, by_bytes)
            stop = min(end, len(table))
            self._waiting.append(table.slice(start, stop - start))
            self._room_rows -= stop - start
            self._room_bytes -= int(until[stop] - until[start])
            if end <= len(table):
                self._flush()
            self.rows += stop - start
            start = stop

    def _flush(self) -> None:
        if self._waiting:
            group = pa.concat_tables(self._waiting)
            self._writer.write_table(group, row_group_size=max(len(group), 1))
        self._waiting, self._room_rows, self._room_bytes = [], ROWS_PER_GROUP, BYTES_PER_GROUP

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()


class TableWriter(AbstractContextManager["TableWriter"]):
    """Append records to one parquet file; `rows` counts them."""

    def __init__(self, path: Path, record: type[Record]) -> None:
        self.rows = 0
        self._schema, self._json = arrow_schema(record)
        self._writer = ArrowWriter(path, self._schema)
        self._buffer: list[dict[str, Any]] = []
        self._buffered = 0

    def write(self, row: Record) -> None:
        values = row.model_dump(mode="json")
        for name in self._json:
            if values[name] is not None:
                values[name] = orjson.dumps(values[name]).decode()
        self._buffer.append(values)
        self._buffered += sum(len(v) for v in values.values() if isinstance(v, str))
        self.rows += 1
        if len(self._buffer) >= ROWS_PER_GROUP or self._buffered >= BYTES_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        self._writer.write(pa.Table.from_pylist(self._buffer, schema=self._schema))
        self._buffer, self._buffered = [], 0

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.__exit__()


def write_table(path: Path, record: type[R], rows: Iterable[R]) -> int:
    with TableWriter(path, record) as writer:
        for row in rows:
            writer.write(row)
    return writer.rows


def row_groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns=columns)


def column(path: Path, name: str) -> Iterator[Any]:
    for table in row_groups(path, [name]):
        yield from table.column(0).to_pylist()


def to_records(table: pa.Table, record: type[R]) -> Iterator[R]:
    _, json_columns = arrow_schema(record)
    for values in table.to_pylist():
        for name in json_columns:
            if values.get(name) is not None:
                values[name] = orjson.loads(values[name])
        yield record.model_validate(values)


def read_table(path: Path, record: type[R]) -> Iterator[R]:
    for table in row_groups(path):
        yield from to_records(table, record)


def count_rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows


class Lookup(Generic[R]):
    """`get(id)`: one row group is read at a time and the last few stay in memory, for askers who go
    about in the order of the file. Of two rows with one id the first counts."""

    def __init__(self, path: Path, record: type[R]) -> None:
        file = pq.ParquetFile(path)
        self._places: dict[str, tuple[int, int]] = {}
        for number, table in enumerate(row_groups(path, ["id"])):
            for row, id_ in enumerate(table.column(0).to_pylist()):
                self._places.setdefault(id_, (number, row))
        self._group = lru_cache(GROUPS_IN_MEMORY)(
            lambda number: list(to_records(file.read_row_group(number), record))
        )

    def get(self, id_: str) -> R | None:
        group, row = self._places.get(id_, (-1, 0))
        return self._group(group)[row] if group >= 0 else None
