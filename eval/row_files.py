"""Rows of data files, whoever wrote them: JSONL, JSON (both also .gz) and parquet.

Rows are streamed with their place, so that a bad one can be named. A bad row is a `Row` with an
`error`; a missing or damaged file is an exception, for nothing after the damage can be trusted.
A JSON array is the one format that is held in memory whole.
"""

import glob
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
ROWS_PER_BATCH = 256


class Row(NamedTuple):
    """One row, or what is wrong with it. `number` counts lines or rows from 1."""

    file: str
    number: int
    value: dict[str, Any] | None
    error: str = ""
    raw: str = ""
    """The unreadable text, when `value` is None."""


def find_files(patterns: Iterable[str], root: Path, setting: str) -> list[Path]:
    """The files that `patterns` name below `root`, in order, each once.

    Raises FileNotFoundError with the pattern and the name of the `setting` that holds it.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(str(root / Path(pattern).expanduser()), recursive=True))
        files = [Path(m) for m in matches if Path(m).is_file()]
        if not files:
            raise FileNotFoundError(f"{setting}: no file {pattern} below {root.absolute()}")
        for file in files:
            if not file.name.endswith(SUFFIXES):
                raise ValueError(f"{setting}: {file.name} is none of {', '.join(SUFFIXES)}")
            found[file] = None
    return list(found)


def read_rows(path: Path, root: Path | None = None) -> Iterator[Row]:
    """Stream the rows of one file, which are named by its path below `root`."""
    name = str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name
    return _parquet_rows(path, name) if path.suffix == ".parquet" else _json_rows(path, name)


def _parquet_rows(path: Path, name: str) -> Iterator[Row]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
                for value in batch.to_pylist():
                    number += 1
                    yield Row(name, number, value)
    except pa.ArrowException as error:
        raise _damaged(path, number, error) from error


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    number = 0
    try:
        with _open(path) as stream:
            first = _first_byte(stream)
            if first == b"[" and not path.name.endswith((".jsonl", ".jsonl.gz")):
                yield from _array_rows(path, name, stream)
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield _parse(name, number, line)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, number, error) from error


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _first_byte(stream: IO[bytes]) -> bytes:
    """The first byte that is no white space; the stream stays at its start."""
    while (byte := stream.read(1)).isspace():
        pass
    stream.seek(0)
    return byte


def _array_rows(path: Path, name: str, stream: IO[bytes]) -> Iterator[Row]:
    try:
        values = json.loads(stream.read())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, 0, error) from error
    for number, value in enumerate(values, 1):
        yield _checked(name, number, value)


def _parse(file: str, number: int, line: bytes) -> Row:
    try:
        value: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:  # the standard parser also takes NaN and integers beyond 64 bits
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Row(file, number, None, f"no JSON: {error}", line.decode("utf-8", "replace"))
    return _checked(file, number, value)


def _checked(file: str, number: int, value: Any) -> Row:
    if isinstance(value, dict):
        return Row(file, number, value)
    kind = type(value).__name__
    return Row(file, number, None, f"a row must be a JSON object, this is a {kind}", str(value))


def _damaged(path: Path, number: int, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged after row {number} ({error}): fetch the file again")
