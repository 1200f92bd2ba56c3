"""Records as parquet: typed columns, streamed both ways, in constant memory."""

import types
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eval.records import Record

ROWS_PER_GROUP = 1024
R = TypeVar("R", bound=Record)
_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _plain_type(annotation: Any) -> pa.DataType | None:
    """The Arrow type of a scalar annotation (or Optional or Literal scalar); None means JSON."""
    if annotation in _ARROW:
        return _ARROW[annotation]
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return pa.string()
    if origin is typing.Annotated:
        return _plain_type(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        return _plain_type(members[0]) if len(members) == 1 else None
    return None


@cache
def arrow_schema(record: type[Record]) -> tuple[pa.Schema, frozenset[str]]:
    """The Arrow schema of a record, and the names of the columns that hold JSON."""
    plain = {n: _plain_type(f.annotation) for n, f in record.model_fields.items()}
    fields = [pa.field(n, t if t is not None else pa.string()) for n, t in plain.items()]
    return pa.schema(fields), frozenset(n for n, t in plain.items() if t is None)


class TableWriter:
    """Append records to one parquet file; `rows` counts them. Use as a context manager."""

    def __init__(self, path: Path, record: type[Record]) -> None:
        self.rows = 0
        self._schema, self._json = arrow_schema(record)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._buffer: list[dict[str, Any]] = []

    def write(self, row: Record) -> None:
        values = row.model_dump(mode="json")
        for name in self._json:
            if values[name] is not None:
                values[name] = orjson.dumps(values[name]).decode()
        self._buffer.append(values)
        self.rows += 1
        if len(self._buffer) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._writer.write_table(pa.Table.from_pylist(self._buffer, schema=self._schema))
            self._buffer = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()


def write_table(path: Path, record: type[R], rows: Iterable[R]) -> int:
    """Write all `rows` to `path`; returns how many."""
    with TableWriter(path, record) as writer:
        for row in rows:
            writer.write(row)
    return writer.rows


def read_table(path: Path, record: type[R]) -> Iterator[R]:
    """Stream the records of one parquet file."""
    _, json_columns = arrow_schema(record)
    file = pq.ParquetFile(path)
    for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
        for values in batch.to_pylist():
            for name in json_columns:
                if values.get(name) is not None:
                    values[name] = orjson.loads(values[name])
            yield record.model_validate(values)
    file.close()


def count_rows(path: Path) -> int:
    return pq.read_metadata(path).num_rows
