"""Rows of data files, whoever wrote them: JSONL, JSON (both also .gz) and parquet.

Rows are streamed with their place, so that a bad one can be named. A bad row is a `Row` with an
`error`; a missing or damaged file is an exception, for nothing after the damage can be trusted.
Memory holds a batch of rows, never a file. A row longer than `LARGEST_ROW` is a bad row.
"""

import codecs
import glob
import gzip
import json
import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from configs.settings.explain import ConfigError

CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")


def array_values(stream: IO[bytes], largest: int) -> Iterator[Any]:
    """Stream the elements of the array in `stream`, which may begin with a byte order mark.

    Memory holds one element and as much text again. Raises ValueError where the text is no JSON
    array: text that is not UTF-8, an element longer than `largest` characters, or anything after
    the closing bracket. (ijson would give fractions as Decimal and refuse long integers.)
    """
    text = _Text(stream, largest)
    text.take("[")
    goes_on = text.next() != "]"
    while goes_on:
        yield text.value()
        goes_on = text.next() == ","
        if goes_on:
            text.take(",")
    text.take("]")
    if found := text.next():
        raise ValueError(f"{found!r} after the end of the array")


class _Text:
    """Decoded text with a cursor; what lies behind the cursor is forgotten."""

    def __init__(self, stream: IO[bytes], largest: int) -> None:
        self._stream, self._largest = stream, largest
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._place, self._ended = "", 0, False

    def _read(self, size: int) -> bool:
        """Append up to `size` bytes of text; False at the end of the stream."""
        if self._ended:
            return False
        data = self._stream.read(size)
        self._ended = not data
        self._text = self._text[self._place :] + self._decoder.decode(data, final=self._ended)
        self._place = 0
        return not self._ended

    def next(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            self._place = _SPACE.match(self._text, self._place).end()  # type: ignore[union-attr]
            if self._place < len(self._text) or not self._read(CHUNK):
                return self._text[self._place : self._place + 1]

    def take(self, character: str) -> None:
        found = self.next()
        if found != character:
            raise ValueError(f"{character!r} expected, not {found or 'the end'!r}")
        self._place += 1

    def value(self) -> Any:
        """One element. Reads twice as much whenever the text so far does not hold all of it."""
        self.next()
        size = CHUNK
        while True:
            try:
                value, end = self._scan(self._text, self._place)
            except json.JSONDecodeError:
                if len(self._text) - self._place > self._largest:
                    raise ValueError(f"an element of over {self._largest:,} characters") from None
                if not self._read(size):
                    raise
                size *= 2
                continue
            if end == len(self._text) and self._read(size):
                continue  # a number may go on in the next chunk
            self._place = end
            return value


LARGEST_BATCH = 256 << 20
"""Bytes that a batch may decode to when every row is the longest text of its dictionaries."""
_HEADER_BYTES = 32
_INTEGER = 0x15  # of thrift's compact protocol: the next field, an i32


def rows_of_longest(path: Path, metadata: pq.FileMetaData) -> int:
    """How many rows fit in `LARGEST_BATCH`, whatever they are; at least one."""
    longest = 1
    with path.open("rb") as file:
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            size = 0
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    file.seek(chunk.dictionary_page_offset)
                    size += _unpacked_size(file.read(_HEADER_BYTES))
            longest = max(longest, size)
    return max(1, LARGEST_BATCH // longest)


def _unpacked_size(header: bytes) -> int:
    """The second field of a page header, `uncompressed_page_size`; 0 when it is none."""
    place, numbers = 0, []
    while len(numbers) < 2 and place < len(header) and header[place] == _INTEGER:
        place, shift, value = place + 1, 0, 0
        while place < len(header):
            value |= (header[place] & 0x7F) << shift
            shift += 7
            place += 1
            if header[place - 1] < 0x80:
                break
        numbers.append((value >> 1) ^ -(value & 1))  # zigzag
    return max(numbers[1], 0) if len(numbers) == 2 else 0


SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
LARGEST_ROW = 128 << 20
"""Bytes of one row. The test suites of the longest public rows are of some tens of megabytes."""
MOST_UNPACKED = 500
"""Times the size of its file. Text packs to a tenth, repeated text to a fiftieth."""
FREE_UNPACKED = 1 << 30
"""Bytes that a file may unpack to whatever its own size."""
ROWS_PER_BATCH = 256
BYTES_PER_BATCH = 16 << 20


class Row(NamedTuple):
    """One row, or what is wrong with it. `number` counts lines or rows from 1."""

    file: str
    number: int
    value: dict[str, Any] | None
    error: str = ""
    raw: str = ""
    """The unreadable text, when `value` is None."""


def find_files(patterns: Iterable[str], root: Path, setting: str, advice: str = "") -> list[Path]:
    """The files that `patterns` name below `root`, in order, each once.

    Raises FileNotFoundError with the pattern, the name of the `setting` that holds it and `advice`,
    and ConfigError for a file of a format that is not read.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        full = str(path) if path.is_absolute() else f"{glob.escape(str(root))}/{path}"
        matches = sorted(glob.glob(full, recursive=True))
        files = [Path(m) for m in matches if Path(m).is_file()]
        if not files:
            absent = f"{setting}: no file {pattern} below {root.absolute()}"
            raise FileNotFoundError(f"{absent}{f'; {advice}' if advice else ''}")
        for file in files:
            if not file.name.endswith(SUFFIXES):
                raise ConfigError([f"{setting}: {file.name} is none of {', '.join(SUFFIXES)}"])
            found[file] = None
    return list(found)


def name_below(root: Path | None, path: Path) -> str:
    """What the rows of a file are named by: its path below `root`, or its name elsewhere."""
    return str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name


def read_rows(
    path: Path, root: Path | None = None, columns: Collection[str] = (), name: str = ""
) -> Iterator[Row]:
    """Stream the rows of one file, named by `name` or else by its path below `root`.

    Only `columns` are read of a parquet file that has them all; any other file is read whole, so
    that a message can say which fields there are.
    """
    name = name or name_below(root, path)
    if path.suffix == ".parquet":
        return _parquet_rows(path, name, columns)
    return _json_rows(path, name)


def _parquet_rows(path: Path, name: str, columns: Collection[str]) -> Iterator[Row]:
    number = 0
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            known = file.schema_arrow.names
            all_there = columns and set(columns) <= set(known)
            chosen = [c for c in known if c in columns] if all_there else None
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
            _refuse_bomb(sum(g.total_byte_size for g in groups), path)
            longest = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=1)
            fitting = min(ROWS_PER_BATCH, BYTES_PER_BATCH // max(longest, 1))
            rows = min(max(1, fitting), rows_of_longest(path, file.metadata))
            batches = file.iter_batches(batch_size=rows, columns=chosen)
            unpacked = 0
            for batch in batches:
                unpacked += batch.nbytes
                _refuse_bomb(unpacked, path)
                for value, error in _batch_values(batch):
                    number += 1
                    yield Row(name, number, value, error)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:  # not Arrow's word for a damaged page
            raise
        raise _damaged(path, number, error) from error


def _refuse_bomb(unpacked: int, path: Path) -> None:
    """Raises ValueError for a file that is made to fill memory or disk."""
    if unpacked > FREE_UNPACKED and unpacked > MOST_UNPACKED * path.stat().st_size:
        raise ValueError(f"it unpacks to over {MOST_UNPACKED} times its size")


def _batch_values(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any] | None, str]]:
    if batch.nbytes <= LARGEST_ROW:
        try:
            yield from [(value, "") for value in batch.to_pylist()]
            return
        except (ValueError, OverflowError):  # text that is not UTF-8, a date beyond the calendar
            pass
    for i in range(len(batch)):
        row = batch.slice(i, 1)
        if row.nbytes > LARGEST_ROW:
            yield None, _too_long()
            continue
        try:
            value = row.to_pylist()[0]
        except (ValueError, OverflowError) as error:
            yield None, f"cannot be read: {error}"
        else:
            yield value, ""


def _json_rows(path: Path, name: str) -> Iterator[Row]:
    number = 0
    try:
        with _open(path) as stream:
            first = _first_byte(stream)
            if first == b"[" and not path.name.endswith((".jsonl", ".jsonl.gz")):
                for number, value in enumerate(array_values(stream, LARGEST_ROW), 1):
                    _refuse_packed_bomb(stream, path)
                    yield _checked(name, number, value)
                return
            for number, (line, whole) in enumerate(_lines(stream, path), 1):
                if not whole:
                    raw = line.decode("utf-8", "replace")
                    yield Row(name, number, None, _too_long(), raw)
                elif line.strip():
                    yield _parse(name, number, line)
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, RecursionError) as error:
        raise _damaged(path, number, error) from error


def _lines(stream: IO[bytes], path: Path) -> Iterator[tuple[bytes, bool]]:
    """(line, whole). Of a line longer than `LARGEST_ROW` only the start is kept."""
    mark = codecs.BOM_UTF8
    while line := stream.readline(LARGEST_ROW + 1):
        whole = len(line) <= LARGEST_ROW or line.endswith(b"\n")
        start = line.removeprefix(mark) if whole else line[:1000]
        while line and not line.endswith(b"\n"):
            _refuse_packed_bomb(stream, path)
            line = stream.readline(1 << 20)
        _refuse_packed_bomb(stream, path)
        yield start, whole
        mark = b""


def _refuse_packed_bomb(stream: IO[bytes], path: Path) -> None:
    if path.suffix == ".gz":
        _refuse_bomb(stream.tell(), path)


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _first_byte(stream: IO[bytes]) -> bytes:
    """The first byte that is neither mark nor white space; the stream stays at its start."""
    if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        stream.seek(0)
    while (byte := stream.read(1)).isspace():
        pass
    stream.seek(0)
    return byte


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


def _too_long() -> str:
    return f"longer than {LARGEST_ROW >> 20} MiB, the most a row may have"


def _damaged(path: Path, number: int, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged after row {number} ({error}): fetch the file again")
