"""Split a file of rows, JSONL or parquet, into those that stay and those that go.

Kept rows are what they were, byte for byte (JSONL) or column for column (parquet). Rejected rows
have one more field, `reason`. Rows that cannot be read are rejected too, with their place.
"""

import codecs
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eval.row_files import rows_of_longest
from tasks.data.overlaps.decontaminate_part import BATCH_BYTES, BATCH_ROWS, text_batches
from tasks.data.overlaps.overlaps import Decision, Rows

Decide = Callable[[Rows], Decision]
Counts = Counter[str]
"""Rows kept, rejected, (among the rejected) malformed, and hits unlisted (see `Decision`)."""
Batch = tuple[Rows, dict[int, str]]
"""Some rows, and what is wrong with those that cannot be read."""
_BATCH_LARGEST = 16
"""Times `LARGEST_BATCH`: what a batch may hold of a file whose rows repeat one long text."""


class NoSuchField(Exception):
    """The file has no such text field; the message names those there are."""


def filter_rows(path: Path, field: str, decide: Decide, out: Path) -> Counts:
    """Write kept and rejected rows below `out` in the format of `path`, in bounded memory.

    Raises NoSuchField, and ValueError for a damaged file.
    """
    counts: Counts = Counter(kept=0, rejected=0, malformed=0, unlisted=0)
    file = (_Parquet if path.suffix == ".parquet" else _JsonLines)(path, field)
    with file.files:
        for rows, errors in file.batches(out):
            decision = decide(rows)
            errors |= dict.fromkeys(decision.unreadable, f"field {field!r} is not UTF-8")
            malformed = {i: f"{file.noun} {rows.numbers[i]}: {e}" for i, e in errors.items()}
            reasons = decision.reasons | malformed
            file.write(reasons)
            counts["malformed"] += len(malformed)
            counts["unlisted"] += decision.unlisted
            counts["rejected"] += len(reasons)
            counts["kept"] += len(rows.texts) - len(reasons)
    return counts


class _JsonLines:
    """Lines are copied as they are; `reason` is spliced into the rejected ones."""

    noun = "line"

    def __init__(self, path: Path, field: str) -> None:
        self._path, self._field = path, field
        self._fields: dict[str, None] = {}
        self.files = ExitStack()

    def batches(self, out: Path) -> Iterator[Batch]:
        opener = gzip.open if self._path.suffix == ".gz" else open
        lines = self.files.enter_context(opener(self._path, "rb"))
        self._kept = self.files.enter_context((out / "kept.jsonl").open("wb"))
        self._rejected = self.files.enter_context((out / "rejected.jsonl").open("wb"))
        some: list[tuple[int, bytes]] = []
        number = size = 0
        try:
            for number, line in enumerate(lines, 1):
                if text := line.removeprefix(codecs.BOM_UTF8).strip():
                    some.append((number, text))
                    size += len(text)
                if size >= BATCH_BYTES or len(some) >= BATCH_ROWS:
                    yield self._batch(some)
                    some, size = [], 0
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{self._path} is damaged after line {number}: {error}") from error
        yield self._batch(some)
        if self._fields and self._field not in self._fields:
            raise _no_field(self._path, self._field, self._fields)

    def _batch(self, lines: list[tuple[int, bytes]]) -> Batch:
        self._lines = lines
        self._reason_names: list[str] = []
        errors: dict[int, str] = {}
        ids, texts = list[str](), list[str | None]()
        for place, (number, line) in enumerate(lines):
            value, error = _parsed(line)
            self._reason_names.append("" if value is None else _reason_name(value))
            row = value or {}
            text = row.get(self._field)
            if not error and self._field not in row:
                error = f"no field {self._field!r}"
            elif not error and not isinstance(text, str):
                error = f"field {self._field!r} is {type(text).__name__}, not text"
            if error:
                errors[place] = error
            if not self._fields or self._field in row:
                self._fields |= dict.fromkeys(row)
            ids.append(printable(row_id(row.get("id"), number)))
            texts.append(printable(text) if isinstance(text, str) else None)
        rows = Rows(
            numbers=pa.array([number for number, _ in lines], pa.int64()),
            ids=pa.array(ids, pa.string()),
            sources=pa.array([self._path.name] * len(lines), pa.string()),
            texts=pa.array(texts, pa.large_string()),
        )
        return rows, errors

    def write(self, reasons: dict[int, str]) -> None:
        for place, (_, line) in enumerate(self._lines):
            reason = reasons.get(place)
            if reason is None:
                self._kept.write(line + b"\n")
            else:
                self._rejected.write(_with_reason(line, self._reason_names[place], reason))


def _parsed(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The fields of a line, or what is wrong with it."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:  # the standard parser also takes NaN and integers beyond 64 bits
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            return None, f"no JSON: {error}"
    if not isinstance(value, dict):
        return None, f"a row must be a JSON object, this is a {type(value).__name__}"
    return value, ""


def _with_reason(line: bytes, name: str, reason: str) -> bytes:
    """The row with its reason; a line that is no object is quoted whole."""
    if not name:
        quoted = {"line": line.decode("utf-8", "replace"), "reason": reason}
        return orjson.dumps(quoted) + b"\n"
    row = line[:-1].rstrip()
    comma = b"" if row == b"{" else b","
    return row + comma + orjson.dumps(name) + b":" + orjson.dumps(reason) + b"}\n"


class _Parquet:
    """Every column stays as it was; `reason` is one more of the rejected rows."""

    noun = "row"

    def __init__(self, path: Path, field: str) -> None:
        self._path, self._field = path, field
        self.files = ExitStack()

    def batches(self, out: Path) -> Iterator[Batch]:
        before = 0
        try:
            file = self.files.enter_context(pq.ParquetFile(self._path))
            schema = _without_views(file.schema_arrow)
            self._check_text_field(schema)
            reason = pa.field(_reason_name(schema.names), pa.string())
            self._kept, self._rejected = (
                self.files.enter_context(pq.ParquetWriter(out / name, s, compression="zstd"))
                for name, s in (
                    ("kept.parquet", schema), ("rejected.parquet", schema.append(reason))
                )
            )  # fmt: skip
            most = _BATCH_LARGEST * rows_of_longest(self._path, file.metadata)
            for batch in text_batches(file, most_rows=min(BATCH_ROWS, most)):
                self._batch = batch.cast(schema)
                yield self._rows(before)
                before += len(batch)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's, not the file's
            raise ValueError(f"{self._path} is damaged after row {before}: {error}") from error

    def _check_text_field(self, schema: pa.Schema) -> None:
        if self._field not in schema.names:
            raise _no_field(self._path, self._field, schema.names)
        kind = schema.field(self._field).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        tests = ("string", "large_string", "binary", "large_binary", "null")
        if not any(getattr(pa.types, f"is_{name}")(value) for name in tests):
            raise NoSuchField(f"{self._path}: field {self._field!r} holds {kind}, not text")

    def _rows(self, before: int) -> Batch:
        count = len(self._batch)
        own = _ids(self._batch.column("id")) if "id" in self._batch.schema.names else [None] * count
        texts = self._batch.column(self._field)
        if pa.types.is_null(texts.type):
            texts = texts.cast(pa.large_string())
        rows = Rows(
            numbers=pa.array(range(before + 1, before + count + 1), pa.int64()),
            ids=pa.array(map(row_id, own, range(before + 1, before + count + 1)), pa.string()),
            sources=pa.array([self._path.name] * count, pa.string()),
            texts=texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts,
        )
        missing = enumerate(texts.is_null().to_pylist()) if texts.null_count else ()
        absent = f"field {self._field!r} is NoneType, not text"
        return rows, {place: absent for place, null in missing if null}

    def write(self, reasons: dict[int, str]) -> None:
        lost = [place in reasons for place in range(len(self._batch))]
        why = pa.array([reasons[i] for i in sorted(reasons)], pa.string())
        self._kept.write_batch(
            self._batch.filter(pa.array([not gone for gone in lost], pa.bool_()))
        )
        columns = [*self._batch.filter(pa.array(lost, pa.bool_())).columns, why]
        self._rejected.write_batch(pa.record_batch(columns, schema=self._rejected.schema))


def _without_views(schema: pa.Schema) -> pa.Schema:
    """The schema with ordinary text for string views, which Arrow can read but not filter."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [field.with_type(plain.get(field.type, field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _ids(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # the file says text and holds other bytes
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]


def printable(text: str) -> str:
    """Lone surrogates, which JSON may hold and UTF-8 may not, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def row_id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return str(value) if isinstance(value, (str, int)) and value != "" else str(number)


def _no_field(path: Path, field: str, fields: Iterable[str]) -> NoSuchField:
    return NoSuchField(f"{path} has no field {field!r}; it has: {', '.join(fields)}")


def _reason_name(fields: Iterable[str]) -> str:
    """What the field for the reason is called beside these."""
    taken, name = set(fields), "reason"
    while name in taken:
        name = f"decontaminate_{name}"
    return name
