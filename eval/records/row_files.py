"""Rows of data files, whoever wrote them: JSONL, JSON, CSV and TSV, also packed, and parquet,
streamed with their place; a bad one is a `Row` with an `error`, a missing or damaged file an
exception. Memory holds a batch of rows, and of a JSON array all."""

import codecs
import csv
import glob
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from ...configs.settings.explain import ConfigError

_PLAIN, _PACKED = (".jsonl", ".json", ".csv", ".tsv"), (".gz", ".zst")
SUFFIXES = (*_PLAIN, *(f"{plain}{packed}" for plain in _PLAIN for packed in _PACKED), ".parquet")
_DAMAGE = (pa.ArrowException, EOFError, zlib.error, csv.Error)
LARGEST_ROW = 128 << 20
"""Bytes of one row. The test suites of the longest public rows are of some tens of megabytes."""
TOO_LONG = f"longer than {LARGEST_ROW >> 20} MiB, the most a row may have"
MOST_UNPACKED = 500
"""Times the size of its file. Text packs to a tenth, repeated text to a fiftieth."""
FREE_UNPACKED = 1 << 30  # bytes that a file may unpack to whatever its own size
_LONG_NUMBER = re.compile(rb"(?<![\d.])\d{19}")  # orjson makes floats of integers beyond 64 bits
LARGEST_ARRAY = 1 << 30  # bytes of a file that is one JSON array, which is read whole
LARGEST_BATCH = 256 << 20
"""Bytes that a batch may decode to when every row is the longest text of its dictionaries."""
ROWS_PER_BATCH = 256
BYTES_PER_BATCH = 16 << 20
CHUNK = 1 << 20
# In thrift's compact protocol: the type of a page and its unpacked size, a zigzag number.
_PAGE_HEADER = re.compile(rb"\x15[\x80-\xff]*[\x00-\x7f]\x15([\x80-\xff]*[\x00-\x7f])", re.DOTALL)


class Row(NamedTuple):
    """One row, or what is wrong with it. `number` counts lines or rows from 1."""

    file: str
    number: int
    value: dict[str, Any] | None
    error: str = ""
    raw: str = ""  # the unreadable text, when `value` is None


class Cut(NamedTuple):
    """A share of a file that can be read apart: bytes of whole lines, or row groups of parquet."""

    start: int
    end: int
    before: int  # Lines or rows before it.


def cuts(path: Path, size: int) -> list[Cut]:
    """The shares of a file, of about `size` bytes each and none empty. A JSON array or a packed
    file has one place to begin at: it is not cut, nor is a row group."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        ends = list(accumulate(g.num_rows for g in groups))
        share = [end // size for end in accumulate((g.total_byte_size for g in groups), initial=0)]
        first = [i for i in range(len(groups)) if not i or share[i] > share[i - 1]]
        places = [(i, ends[i - 1] if i else 0) for i in first]
        last = len(groups)
    elif path.suffix == ".jsonl":
        places, last = _line_starts(path, size), path.stat().st_size
    else:
        return []
    return [Cut(start, end, n) for (start, n), (end, _) in pairwise([*places, (last, 0)])]


def _line_starts(path: Path, size: int) -> list[tuple[int, int]]:
    """Where the first line begins, and the first one after every `size` bytes; the lines before."""
    places, lines, at = [(0, 0)], 0, 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            done = 0
            while (goal := places[-1][0] + size - at) < len(chunk):
                newline = chunk.find(b"\n", max(goal, done))
                if newline < 0:
                    break
                lines += chunk.count(b"\n", done, newline + 1)
                done = newline + 1
                places.append((at + done, lines))
            lines += chunk.count(b"\n", done)
            at += len(chunk)
    return [place for place in places if place[0] < at]


def find_files(patterns: Iterable[str], root: Path, setting: str, advice: str = "") -> list[Path]:
    """The files that `patterns` name below `root`, in order, each once. Raises FileNotFoundError
    with the pattern, its `setting` and `advice`, ConfigError for a format that is not read."""
    chosen: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        full = str(path) if path.is_absolute() else f"{glob.escape(str(root))}/{path}"
        files = [Path(m) for m in sorted(glob.glob(full, recursive=True)) if Path(m).is_file()]
        if (root / path).is_file():  # a name may have brackets
            files = [root / path]
        if not files:
            absent = f"{setting}: no file {pattern} below {root.absolute()}"
            raise FileNotFoundError("; ".join(filter(None, (absent, advice))))
        for file in files:
            if not file.name.endswith(SUFFIXES):
                raise ConfigError([f"{setting}: {file.name} is none of {', '.join(SUFFIXES)}"])
            chosen[file] = None
    return list(chosen)


def stem(path: Path) -> str:
    """A data file's name without the suffix of its format: `a.v1` of `a.v1.jsonl.gz`."""
    end = max((s for s in SUFFIXES if path.name.endswith(s)), key=len, default="")
    return path.name.removesuffix(end) or path.name


def read_rows(path: Path, root: Path | None = None, cut: Cut | None = None) -> Iterator[Row]:
    """The rows of a file, or a share of it, named by its path below `root`. ValueError: damaged."""
    name = str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name
    if path.suffix == ".parquet":
        rows = _parquet_rows(path, cut)
    elif {".csv", ".tsv"} & {*path.suffixes[-2:]}:
        rows = _table_rows(path)
    else:
        rows = _json_rows(path, cut)
    number = cut.before if cut else 0
    try:
        for number, value, error, raw in rows:
            if error or isinstance(value, dict):
                yield Row(name, number, value, error, raw)
            else:
                kind = f"a row must be a JSON object, this is a {type(value).__name__}"
                yield Row(name, number, None, kind, str(value))
    except (*_DAMAGE, OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk, and no word for a damaged page
            raise
        damage = f"is damaged after row {number} ({error}): fetch the file again"
        raise ValueError(f"{path} {damage}") from error


Read = tuple[int, Any, str, str]  # number, value (None with an error), error, raw text


def _refuse_bomb(size: int, path: Path) -> None:
    """Raises ValueError for a file that is made to fill memory or disk."""
    if size > FREE_UNPACKED and size > MOST_UNPACKED * path.stat().st_size:
        raise ValueError(f"it unpacks to over {MOST_UNPACKED} times its size")


def _parquet_rows(path: Path, cut: Cut | None) -> Iterator[Read]:
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        _refuse_bomb(sum(g.total_byte_size for g in groups), path)
        read = range(cut.start, cut.end) if cut else range(len(groups))
        groups = [groups[i] for i in read]
        average = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=1)
        fitting = max(1, min(ROWS_PER_BATCH, BYTES_PER_BATCH // max(average, 1)))
        rows = min(fitting, rows_of_longest(path, groups))
        number, size = cut.before if cut else 0, 0
        for batch in file.iter_batches(rows, list(read)):
            size += batch.nbytes
            _refuse_bomb(size, path)
            for value, error in _batch_values(batch):
                number += 1
                yield number, value, error, ""


def _batch_values(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Of a batch that cannot be read as one, each row apart."""
    wrong = TOO_LONG
    if batch.nbytes <= LARGEST_ROW:
        try:
            yield from [(value, "") for value in batch.to_pylist()]
            return
        except (ValueError, OverflowError) as error:  # no UTF-8, or a date beyond the calendar
            wrong = f"cannot be read: {error}"
    if len(batch) == 1:
        yield None, wrong
    else:
        for i in range(len(batch)):
            yield from _batch_values(batch.slice(i, 1))


def rows_of_longest(path: Path, groups: Iterable[pq.RowGroupMetaData]) -> int:
    """How many rows of these groups fit in `LARGEST_BATCH`, whatever they are; at least one. A
    dictionary page may hold one text of gigabytes that every row repeats."""
    longest = 1
    with path.open("rb") as file:
        for group in groups:
            size = 0
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    file.seek(chunk.dictionary_page_offset)
                    if header := _PAGE_HEADER.match(file.read(32)):
                        digits = enumerate(header[1])
                        size += sum((digit & 0x7F) << 7 * place for place, digit in digits) >> 1
            longest = max(longest, size)
    return max(1, LARGEST_BATCH // longest)


def unpacked(path: Path) -> IO[bytes]:
    if path.suffix == ".zst":
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _table_rows(path: Path) -> Iterator[Read]:
    """Rows of texts, named by the first line."""
    csv.field_size_limit(LARGEST_ROW)
    with io.TextIOWrapper(unpacked(path), "utf-8-sig", newline="") as text:
        dialect = "excel-tab" if ".tsv" in path.suffixes[-2:] else "excel"
        table = csv.DictReader(text, dialect=dialect, strict=True)
        names = [name for name in table.fieldnames or () if name]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError([f"{path}: two columns are called {twice[0]}: rename one"])
        for number, value in enumerate(table, 1):
            _refuse_bomb(text.buffer.tell(), path)
            if None in value or None in value.values():
                values = json.dumps([*value.values()])
                yield number, None, "more or fewer values than columns", values
            else:
                yield number, value, "", ""


_ONE_VALUE = re.compile(rb"\[|\{[ \t\r]*+\n")  # a list, or a row over several lines


def _json_rows(path: Path, cut: Cut | None) -> Iterator[Read]:
    with unpacked(path) as stream:
        start = stream.read(CHUNK).removeprefix(codecs.BOM_UTF8).lstrip()
    with unpacked(path) as stream:  # from the beginning: what is packed by zstd cannot go back
        if cut:
            stream.seek(cut.start)
        if not _ONE_VALUE.match(start) or ".jsonl" in path.suffixes[-2:]:
            yield from _lines(stream, path, cut)
            return
        text = stream.read(LARGEST_ARRAY + 1)
        _refuse_bomb(len(text), path)
        if len(text) > LARGEST_ARRAY:
            most = f"an array may have {LARGEST_ARRAY >> 20} MiB"
            raise ConfigError([f"{path}: {most}; write one row a line (.jsonl)"])
        values = _loads(text.removeprefix(codecs.BOM_UTF8))
        del text
        if isinstance(values, dict):  # a row of several lines, or an object around the rows
            values = values["data"] if isinstance(values.get("data"), list) else [values]
        for number, value in enumerate(values, 1):
            yield number, value, "", ""


def _lines(stream: IO[bytes], path: Path, cut: Cut | None) -> Iterator[Read]:
    """The lines that are not empty. Of one longer than `LARGEST_ROW` only the start is kept."""
    number, read = cut.before if cut else 0, 0
    size = cut.end - cut.start if cut else math.inf
    while read < size and (line := stream.readline(LARGEST_ROW + 1)):
        text = line if number else line.removeprefix(codecs.BOM_UTF8)
        number += 1
        complete = len(line) <= LARGEST_ROW or line.endswith(b"\n")
        read += len(line)
        while line and not line.endswith(b"\n"):
            _refuse_bomb(read, path)
            line = stream.readline(CHUNK)
            read += len(line)
        _refuse_bomb(read, path)
        if not complete:
            yield number, None, TOO_LONG, text[:1000].decode("utf-8", "replace")
        elif text.strip():
            try:
                yield number, _loads(text), "", ""
            except (ValueError, RecursionError) as error:
                yield number, None, f"no JSON: {error}", text.decode("utf-8", "replace")


def _loads(text: bytes) -> Any:
    if _LONG_NUMBER.search(text):
        return json.loads(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)  # which also takes NaN
