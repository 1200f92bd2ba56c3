"""Split any JSONL or parquet file into kept and rejected rows by a decision on one text field.

Kept rows are what they were, byte for byte (JSONL) or column for column (parquet). Rejected rows
have one more field, `reason`. Rows that cannot be read are rejected too, with their line.
"""

import codecs
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

DAMAGE = (pa.ArrowException, EOFError, gzip.BadGzipFile, zlib.error)
ROWS_PER_BATCH = 1024

Decide = Callable[[str, str], str | None]
"""(row id, text) → why the row goes, or None."""


class NoSuchField(Exception):
    """No row of the file has the text field; the message names those there are."""


def filter_rows(path: Path, field: str, decide: Decide, out: Path) -> Counter[str]:
    """Write `kept` and `rejected` below `out` in the format of `path`, in constant memory.

    Returns the counts kept, rejected and (among the rejected) malformed. Raises NoSuchField, and
    ValueError for a damaged file.
    """
    if path.suffix == ".parquet":
        return _filter_parquet(path, field, decide, out)
    return _filter_jsonl(path, field, decide, out)


def row_id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return str(value) if isinstance(value, (str, int)) and value != "" else str(number)


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _filter_jsonl(path: Path, field: str, decide: Decide, out: Path) -> Counter[str]:
    """Lines are copied as they are; `reason` is spliced into the rejected ones."""
    counts: Counter[str] = Counter()
    number, known_fields, has_field = 0, {}, False
    with (
        _open(path) as lines,
        (out / "kept.jsonl").open("wb") as kept,
        (out / "rejected.jsonl").open("wb") as rejected,
    ):
        try:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8).strip()
                if not text:
                    continue
                value, error = _parse(text)
                known_fields = known_fields or value or {}
                has_field = has_field or field in (value or {})
                error = error or _malformed(value, field)
                if error or value is None:
                    reason: str | None = f"line {number}: {error}"
                else:
                    reason = decide(row_id(value.get("id"), number), value[field])
                counts["malformed"] += bool(error)
                counts["rejected" if reason else "kept"] += 1
                if reason is None:
                    kept.write(text + b"\n")
                else:
                    rejected.write(_with_reason(text, value, reason))
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged after line {number}: {error}") from error
    if known_fields and not has_field:
        raise _no_field(path, field, known_fields)
    return counts


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


def _malformed(value: dict[str, Any] | None, field: str) -> str:
    if value is None or field not in value:
        return f"no field {field!r}"
    if not isinstance(value[field], str):
        return f"field {field!r} is {type(value[field]).__name__}, not text"
    return ""


def _with_reason(line: bytes, value: dict[str, Any] | None, reason: str) -> bytes:
    """The row with its reason; a line that is no object is quoted whole."""
    if value is None:
        quoted = {"line": line.decode("utf-8", "replace"), "reason": reason}
        return orjson.dumps(quoted) + b"\n"
    comma = b"," if value else b""
    name = _reason_name(value)
    return line[:-1].rstrip() + comma + orjson.dumps(name) + b":" + orjson.dumps(reason) + b"}\n"


def _reason_name(fields: Any) -> str:
    return "reason" if "reason" not in fields else "decontaminate_reason"


def _no_field(path: Path, field: str, fields: Any) -> NoSuchField:
    return NoSuchField(f"{path} has no field {field!r}; it has: {', '.join(fields)}")


def _filter_parquet(path: Path, field: str, decide: Decide, out: Path) -> Counter[str]:
    """Batch by batch, every column as it was; `reason` is one more column of the rejected."""
    counts: Counter[str] = Counter()
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if field not in schema.names:
                raise _no_field(path, field, schema.names)
            reasoned = schema.append(pa.field(_reason_name(schema.names), pa.string()))
            with (
                pq.ParquetWriter(out / "kept.parquet", schema, compression="zstd") as kept,
                pq.ParquetWriter(out / "rejected.parquet", reasoned, compression="zstd") as gone,
            ):
                for batch in file.iter_batches(batch_size=ROWS_PER_BATCH):
                    reasons = _batch_reasons(batch, field, decide, number, counts)
                    number += len(reasons)
                    keep = pa.array([r is None for r in reasons], pa.bool_())
                    lost = pa.array([r is not None for r in reasons], pa.bool_())
                    whys = pa.array([r for r in reasons if r is not None], pa.string())
                    kept.write_batch(batch.filter(keep))
                    columns = [*batch.filter(lost).columns, whys]
                    gone.write_batch(pa.record_batch(columns, schema=reasoned))
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged after row {number}: {error}") from error
    return counts


def _batch_reasons(
    batch: pa.RecordBatch, field: str, decide: Decide, before: int, counts: Counter[str]
) -> list[str | None]:
    texts = batch.column(field).to_pylist()
    ids = batch.column("id").to_pylist() if "id" in batch.schema.names else [None] * len(texts)
    reasons: list[str | None] = []
    for number, (id_, text) in enumerate(zip(ids, texts, strict=True), before + 1):
        error = _malformed({field: text}, field)
        reason = f"row {number}: {error}" if error else decide(row_id(id_, number), text)
        counts["malformed"] += bool(error)
        counts["rejected" if reason else "kept"] += 1
        reasons.append(reason)
    return reasons
