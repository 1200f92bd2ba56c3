"""Split a file of rows, JSONL or parquet, into those that stay and those that go.

Kept rows are what they were, byte for byte (JSONL) or column for column (parquet). Rejected rows
have one more field, `reason`. Rows that cannot be read are rejected too, with their place.
"""

import codecs
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from eval.row_files import rows_of_longest
from tasks.data.overlaps.overlaps import BATCH_BYTES, BATCH_ROWS, Decision, Rows, text_batches

_LONGEST_ROWS = 16
"""Times what `rows_of_longest` allows: a batch of a file whose rows repeat one long text."""


class Line(NamedTuple):
    """A line that holds something; counted from 1."""

    number: int
    raw: bytes
    row: dict[str, Any] | None
    text: str | None
    error: str


class Batch(NamedTuple):
    """Some rows, what is wrong with those that cannot be read, and how they are written."""

    rows: Rows
    errors: dict[int, str]
    write: Callable[[dict[int, str]], None]
    """Takes the reasons of the rows that are rejected, by their number in the batch."""


class NoSuchField(Exception):
    """The file has no such text field."""


def filter_rows(
    path: Path, field: str, decide: Callable[[Rows], Decision], out: Path
) -> Counter[str]:
    """Write kept and rejected rows below `out` in the format of `path`, in bounded memory.

    Counts rows kept, rejected, (among the rejected) malformed, and hits unlisted (see `Decision`).
    Raises NoSuchField, and ValueError for a damaged file.
    """
    counts = Counter[str](kept=0, rejected=0, malformed=0, unlisted=0)
    batches, noun = (_parquet, "row") if path.suffix == ".parquet" else (_json_lines, "line")
    with closing(batches(path, field, out)) as some:
        for rows, errors, write in some:
            decision = decide(rows)
            errors |= dict.fromkeys(decision.unreadable, f"field {field!r} is not UTF-8")
            malformed = {i: f"{noun} {rows.numbers[i]}: {e}" for i, e in errors.items()}
            reasons = decision.reasons | malformed
            write(reasons)
            counts["malformed"] += len(malformed)
            counts["unlisted"] += decision.unlisted
            counts["rejected"] += len(reasons)
            counts["kept"] += len(rows.texts) - len(reasons)
    return counts


def _json_lines(path: Path, field: str, out: Path) -> Generator[Batch]:
    """Lines are copied as they are; `reason` is spliced into the rejected ones."""
    opener, fields, found = gzip.open if path.suffix == ".gz" else open, list[str](), False
    with (
        opener(path, "rb") as file,
        (out / "kept.jsonl").open("wb") as kept,
        (out / "rejected.jsonl").open("wb") as rejected,
    ):

        def write(reasons: dict[int, str]) -> None:
            for place, line in enumerate(lines):
                if place in reasons:
                    rejected.write(_with_reason(line, reasons[place]))
                else:
                    kept.write(line.raw + b"\n")

        for lines in _line_batches(file, path, field):
            fields = fields or next((list(line.row) for line in lines if line.row), [])
            found = found or any(field in line.row for line in lines if line.row)
            ids = [printable(row_id((line.row or {}).get("id"), line.number)) for line in lines]
            texts = pa.array([line.text for line in lines], pa.large_string())
            errors = {place: line.error for place, line in enumerate(lines) if line.error}
            yield Batch(_rows(path, [line.number for line in lines], ids, texts), errors, write)
    if fields and not found:
        raise NoSuchField(f"{path} has no field {field!r}; it has: {', '.join(fields)}")


def _line_batches(file: Iterable[bytes], path: Path, field: str) -> Iterator[list[Line]]:
    lines = list[Line]()
    number = size = 0
    try:
        for number, line in enumerate(file, 1):
            if raw := line.removeprefix(codecs.BOM_UTF8).strip():
                row, error = _parsed(raw)
                text = row.get(field) if row else None
                if row is not None and not isinstance(text, str):
                    error = _no_text(field, text) if field in row else f"no field {field!r}"
                readable = printable(text) if isinstance(text, str) else None
                lines.append(Line(number, raw, row, readable, error))
                size += len(raw)
            if size >= BATCH_BYTES or len(lines) >= BATCH_ROWS:
                yield lines
                lines, size = [], 0
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number}: {error}") from error
    yield lines


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


def _no_text(field: str, value: object) -> str:
    return f"field {field!r} is {type(value).__name__}, not text"


def _with_reason(line: Line, reason: str) -> bytes:
    """The row with its reason; a line that is no object is quoted whole."""
    if line.row is None:
        quoted = {"line": line.raw.decode("utf-8", "replace"), "reason": reason}
        return orjson.dumps(quoted) + b"\n"
    start, comma = line.raw[:-1].rstrip(), b"," if line.row else b""
    name, value = (orjson.dumps(text) for text in (_reason_name(line.row), reason))
    return start + comma + name + b":" + value + b"}\n"


def _parquet(path: Path, field: str, out: Path) -> Generator[Batch]:
    """Every column stays as it was; `reason` is one more of the rejected rows."""
    before = 0
    try:
        with ExitStack() as files:
            file = files.enter_context(pq.ParquetFile(path))
            schema = _without_views(file.schema_arrow)
            _check_text_field(path, field, schema)
            with_reason = schema.append(pa.field(_reason_name(schema.names), pa.string()))
            kept, rejected = (
                files.enter_context(pq.ParquetWriter(out / name, columns, compression="zstd"))
                for name, columns in (("kept.parquet", schema), ("rejected.parquet", with_reason))
            )

            def write(reasons: dict[int, str]) -> None:
                why = pa.array([reasons.get(i) for i in range(len(batch))], pa.string())
                kept.write_batch(batch.filter(why.is_null()))
                marked = pa.record_batch([*batch.columns, why], schema=with_reason)
                rejected.write_batch(marked.filter(why.is_valid()))

            most = _LONGEST_ROWS * rows_of_longest(path, file.metadata)
            for some in text_batches(file, most_rows=min(BATCH_ROWS, most)):
                batch = some.cast(schema)
                numbers = list(range(before + 1, before + len(batch) + 1))
                texts = batch.column(field)
                missing = np.flatnonzero(texts.is_null()).tolist() if texts.null_count else ()
                rows = _rows(path, numbers, _ids(batch, numbers), texts)
                yield Batch(rows, dict.fromkeys(missing, _no_text(field, None)), write)
                before += len(batch)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the file's
        raise ValueError(f"{path} is damaged after row {before}: {error}") from error


def _check_text_field(path: Path, field: str, schema: pa.Schema) -> None:
    if field not in schema.names:
        raise NoSuchField(f"{path} has no field {field!r}; it has: {', '.join(schema.names)}")
    kind = schema.field(field).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = ("string", "large_string", "binary", "large_binary", "null")
    if not any(getattr(pa.types, f"is_{name}")(value) for name in tests):
        raise NoSuchField(f"{path}: field {field!r} holds {kind}, not text")


def _ids(batch: pa.RecordBatch, numbers: list[int]) -> list[str]:
    """The rows' own ids; their numbers where there are none that can be read."""
    try:
        own = batch.column("id").to_pylist() if "id" in batch.schema.names else numbers
    except UnicodeDecodeError:  # the file says text and holds other bytes
        own = numbers
    return [row_id(value, number) for value, number in zip(own, numbers, strict=True)]


def _rows(path: Path, numbers: list[int], ids: list[str], texts: pa.Array) -> Rows:
    sources = pa.array([path.name] * len(texts), pa.string())
    return Rows(pa.array(numbers, pa.int64()), pa.array(ids, pa.string()), sources, texts)


def _without_views(schema: pa.Schema) -> pa.Schema:
    """The schema with ordinary text for string views, which Arrow can read but not filter."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [field.with_type(plain.get(field.type, field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def printable(text: str) -> str:
    """Lone surrogates, which JSON may hold and UTF-8 may not, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def row_id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return str(value) if isinstance(value, str | int) and value != "" else str(number)


def _reason_name(fields: Iterable[str]) -> str:
    """What the field for the reason is called beside these."""
    taken, name = set(fields), "reason"
    while name in taken:
        name = f"decontaminate_{name}"
    return name
