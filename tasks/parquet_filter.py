"""Split a parquet file: every column as it was, `reason` is one more of the rejected rows."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eval.parquet_pages import rows_of_longest
from tasks.overlaps import Rows
from tasks.repeated_ids import RepeatedIds
from tasks.row_filter import (
    Counts,
    Decide,
    NoSuchField,
    has_id,
    no_field,
    not_text,
    reason_name,
    row_id,
)
from tasks.text_batches import text_batches

_BATCH_LARGEST = 16
"""Times `LARGEST_BATCH`: what a batch may hold of a file whose rows repeat one long text."""


def filter_parquet(path: Path, field: str, decide: Decide, out: Path) -> Counts:
    """Write `kept.parquet` and `rejected.parquet` below `out`, in bounded memory.

    Raises NoSuchField, and ValueError for a damaged file.
    """
    counts: Counts = Counter()
    before = 0
    repeated = RepeatedIds()
    try:
        with pq.ParquetFile(path) as file:
            schema = _without_views(file.schema_arrow)
            _check_text_field(path, field, schema)
            reasoned = schema.append(pa.field(reason_name(schema.names), pa.string()))
            most = _BATCH_LARGEST * rows_of_longest(path, file.metadata)
            with (
                pq.ParquetWriter(out / "kept.parquet", schema, compression="zstd") as kept,
                pq.ParquetWriter(out / "rejected.parquet", reasoned, compression="zstd") as gone,
            ):
                for batch in (b.cast(schema) for b in text_batches(file, most_rows=most)):
                    rows = _rows(batch, field, before, path.name, repeated)
                    reasons = _batch_reasons(rows, field, decide, counts)
                    before += batch.num_rows
                    keep = pa.array([r is None for r in reasons], pa.bool_())
                    lost = pa.array([r is not None for r in reasons], pa.bool_())
                    whys = pa.array([r for r in reasons if r is not None], pa.string())
                    kept.write_batch(batch.filter(keep))
                    columns = [*batch.filter(lost).columns, whys]
                    gone.write_batch(pa.record_batch(columns, schema=reasoned))
    except pa.ArrowException as error:
        raise ValueError(f"{path} is damaged after row {before}: {error}") from error
    except OSError as error:
        if error.errno is not None:  # the disk's, not the file's
            raise
        raise ValueError(f"{path} is damaged after row {before}: {error}") from error
    counts["repeated_ids"] = repeated.count()
    return counts


def _without_views(schema: pa.Schema) -> pa.Schema:
    """The schema with ordinary text for string views, which Arrow can read but not filter."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    fields = [field.with_type(plain.get(field.type, field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _check_text_field(path: Path, field: str, schema: pa.Schema) -> None:
    if field not in schema.names:
        raise no_field(path, field, schema.names)
    kind = schema.field(field).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = ("string", "large_string", "binary", "large_binary", "null")
    if not any(getattr(pa.types, f"is_{name}")(value) for name in tests):
        raise NoSuchField(f"{path}: field {field!r} holds {kind}, not text")


def _rows(
    batch: pa.RecordBatch, field: str, before: int, source: str, repeated: RepeatedIds
) -> Rows:
    count = batch.num_rows
    own = _ids(batch.column("id")) if "id" in batch.schema.names else [None] * count
    for value in own:
        if has_id(value):
            repeated.add(str(value))
    ids = [row_id(value, number) for number, value in enumerate(own, before + 1)]
    texts = batch.column(field)
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    if pa.types.is_null(texts.type):
        texts = texts.cast(pa.large_string())
    return Rows(
        numbers=pa.array(range(before + 1, before + count + 1), pa.int64()),
        ids=pa.array(ids, pa.string()),
        sources=pa.array([source] * count, pa.string()),
        texts=texts,
    )


def _ids(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # the file says text and holds other bytes
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]


def _batch_reasons(rows: Rows, field: str, decide: Decide, counts: Counts) -> list[str | None]:
    decision = decide(rows)
    reasons: list[str | None] = [decision.reasons.get(i) for i in range(len(rows.texts))]
    malformed = dict.fromkeys(decision.unreadable, f"field {field!r} is not UTF-8")
    if rows.texts.null_count:
        missing = rows.texts.is_null().to_pylist()
        malformed |= {i: not_text(field, "NoneType") for i, null in enumerate(missing) if null}
    for place, error in malformed.items():
        reasons[place] = f"row {rows.numbers[place]}: {error}"
    counts["malformed"] += len(malformed)
    counts["unlisted"] += decision.unlisted
    counts["rejected"] += sum(reason is not None for reason in reasons)
    counts["kept"] += sum(reason is None for reason in reasons)
    return reasons
