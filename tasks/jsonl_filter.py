"""Split a JSONL file: lines are copied as they are, `reason` is spliced into the rejected ones."""

import codecs
import gzip
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import orjson
import pyarrow as pa

from tasks.overlaps import Rows
from tasks.repeated_ids import RepeatedIds
from tasks.row_filter import (
    Counts,
    Decide,
    has_id,
    no_field,
    not_text,
    reason_name,
    row_id,
)
from tasks.text_batches import BYTES, MOST_ROWS

_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


def printable(text: str) -> str:
    """Lone surrogates, which JSON may hold and UTF-8 may not, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class _Line(NamedTuple):
    """One line of a JSONL file and what is known of it."""

    bytes: bytes
    error: str
    """What is wrong with it, or empty."""
    id: str
    text: str | None
    name: str | None
    """What its field for the reason is called; None: the line is no object."""


class _JsonLines:
    """Collects lines until they are worth a search, then writes them."""

    def __init__(self, source: str, decide: Decide, kept: IO[bytes], rejected: IO[bytes]) -> None:
        self.counts: Counts = Counter()
        self._source, self._decide = source, decide
        self._kept, self._rejected = kept, rejected
        self._lines: list[_Line] = []
        self._numbers: list[int] = []
        self._bytes = 0

    def add(self, line: _Line, number: int) -> None:
        self._lines.append(line)
        self._numbers.append(number)
        self._bytes += len(line.bytes)
        if self._bytes >= BYTES or len(self._lines) >= MOST_ROWS:
            self.flush()

    def flush(self) -> None:
        lines = self._lines
        decision = self._decide(
            Rows(
                numbers=pa.array(self._numbers, pa.int64()),
                ids=pa.array([line.id for line in lines], pa.string()),
                sources=pa.array([self._source] * len(lines), pa.string()),
                texts=pa.array([line.text for line in lines], pa.large_string()),
            )
        )
        self.counts["unlisted"] += decision.unlisted
        for place, (line, number) in enumerate(zip(lines, self._numbers, strict=True)):
            malformed = f"line {number}: {line.error}" if line.error else None
            reason = malformed or decision.reasons.get(place)
            self.counts["malformed"] += bool(line.error)
            self.counts["rejected" if reason else "kept"] += 1
            if reason is None:
                self._kept.write(line.bytes + b"\n")
            else:
                self._rejected.write(_with_reason(line, reason))
        self._lines, self._numbers, self._bytes = [], [], 0


def filter_jsonl(path: Path, field: str, decide: Decide, out: Path) -> Counts:
    """Write `kept.jsonl` and `rejected.jsonl` below `out`, in bounded memory.

    Raises NoSuchField, and ValueError for a damaged file.
    """
    number, known_fields, has_field = 0, [], False
    repeated = RepeatedIds()
    with (
        _open(path) as lines,
        (out / "kept.jsonl").open("wb") as kept,
        (out / "rejected.jsonl").open("wb") as rejected,
    ):
        written = _JsonLines(path.name, decide, kept, rejected)
        try:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8).strip()
                if not text:
                    continue
                value, error = _parse(text)
                known_fields = known_fields or list(value or ())
                has_field = has_field or field in (value or {})
                if value is not None and has_id(value.get("id")):
                    repeated.add(str(value["id"]))
                written.add(_line(text, value, error, field, number), number)
            written.flush()
        except _DAMAGE as error:
            raise ValueError(f"{path} is damaged after line {number}: {error}") from error
    if known_fields and not has_field:
        raise no_field(path, field, known_fields)
    written.counts["repeated_ids"] = repeated.count()
    return written.counts


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _parse(line: bytes) -> tuple[dict[str, Any] | None, str]:
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


def _line(line: bytes, value: dict[str, Any] | None, error: str, field: str, number: int) -> _Line:
    if value is None:
        return _Line(line, error, str(number), None, None)
    text = value.get(field)
    if field not in value:
        error = f"no field {field!r}"
    elif not isinstance(text, str):
        error = not_text(field, type(text).__name__)
    readable = None if error else printable(cast(str, text))
    id_ = printable(row_id(value.get("id"), number))
    return _Line(line, error, id_, readable, reason_name(value))


def _with_reason(line: _Line, reason: str) -> bytes:
    """The row with its reason; a line that is no object is quoted whole."""
    if line.name is None:
        quoted = {"line": line.bytes.decode("utf-8", "replace"), "reason": reason}
        return orjson.dumps(quoted) + b"\n"
    row = line.bytes[:-1].rstrip()
    comma = b"" if row == b"{" else b","
    return row + comma + orjson.dumps(line.name) + b":" + orjson.dumps(reason) + b"}\n"
