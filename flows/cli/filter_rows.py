"""`klear decontaminate SOURCE --against FILE… --out DIR`: the decontaminate stage for any file.

kept.jsonl             rows that share nothing, with all of their fields
rejected.jsonl         the others, with one more field `reason`; also rows that cannot be read, with
                       their place
hits.parquet           (row, benchmark item) pairs that share an n-gram
decontamination.html   what they mean: common wording, real leaks, both texts
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...configs.settings.data import DecontaminateSettings
from ...configs.settings.explain import ConfigError
from ...eval.answers import writable
from ...eval.records.row_files import Row, read_rows
from ...eval.records.tables import ArrowWriter
from ...eval.rows.fields import BadField
from ...eval.rows.reading import named_files
from ...eval.rows.shape import text_of_problem
from ...tasks.data.contamination import (
    BATCH_BYTES,
    BATCH_ROWS,
    HITS,
    PAGE,
    ROW,
    Overlaps,
    write_page,
)
from ...tasks.data.ngrams import Item, NgramIndex
from ...tasks.report.page import render_text

OUTPUTS = ("kept.jsonl", "rejected.jsonl", "hits.parquet", PAGE)


def filter_file(
    source: Path,
    against: tuple[Path, ...],
    out: Path,
    settings: DecontaminateSettings,
    text_field: str = "",
) -> None:
    """Write what is kept and rejected of a file below `out`, and print the counts. Raises
    ValueError for a damaged file."""
    if out.resolve() == source.resolve().parent and source.name in OUTPUTS:
        raise ConfigError([f"--out {out} would replace {source}; name another folder"])
    try:
        items = _items(against, text_field)
        index = NgramIndex(items, settings.n, settings.normalize, settings.min_words)
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as folder:
            work = Path(folder)
            with ArrowWriter(work / "hits.parquet", HITS) as hits:
                overlaps = Overlaps(index, settings.min_coverage, hits)
                counts = filter_rows(source, text_field, overlaps.decide, work)
            figures = write_page(work, index, settings, counts)
            for name in OUTPUTS:
                os.replace(work / name, out / name)
    finally:
        with suppress(OSError):  # it holds results, or never was
            out.rmdir()
    facts = {**figures, **counts, "n": settings.n, "out": out, "page": out / PAGE}
    print(render_text("terminal/decontamination.txt", **facts))


def _items(paths: tuple[Path, ...], text_field: str) -> Iterator[Item]:
    """Of each benchmark, named by its file, or by the whole path where two files are called so."""
    for benchmark, path in named_files(list(dict.fromkeys(paths))).items():
        row = None
        for row in read_rows(path):
            if row.value is None:
                raise ValueError(f"{path} line {row.number}: {row.error}")
            try:
                text = text_of_problem(row.value, text_field if text_field in row.value else "")
            except BadField as error:
                raise ConfigError([f"{path} row {row.number} has no text: {error}"]) from error
            yield Item(benchmark, _id(row.value.get("id"), row.number), writable(text))
        if row is None:
            raise ConfigError([f"{path} holds no rows: nothing would be protected"])


def filter_rows(
    path: Path, field: str, decide: Callable[[pa.RecordBatch], dict[int, str]], out: Path
) -> Counter[str]:
    """Write kept and rejected rows below `out`, in bounded memory. A row that cannot be read is
    rejected as `line`.

    Counts rows kept, rejected and, among the rejected, malformed. Raises ConfigError where no row
    has a text in `field`, and ValueError for a damaged file.
    """
    counts = Counter[str](kept=0, rejected=0, malformed=0)
    with open(out / "kept.jsonl", "wb") as keep, open(out / "rejected.jsonl", "wb") as reject:
        for batch in _batches(path):
            read = [_text(row, field) for row in batch]
            errors = [error for _, error in read]
            values = [row.value or ({"line": row.raw.strip()} if row.raw else {}) for row in batch]
            texts = [None if text is None else writable(text) for text, _ in read]
            numbers = [row.number for row in batch]
            ids = [_id(value.get("id"), n) for value, n in zip(values, numbers, strict=True)]
            sources, text = pa.array([path.name] * len(ids)), pa.array(texts, pa.large_string())
            arrays = [pa.array(numbers, pa.int64()), pa.array(ids), sources, text]
            reasons = decide(pa.record_batch(arrays, names=list(ROW)))
            reasons |= {i: f"row {numbers[i]}: {error}" for i, error in enumerate(errors) if error}
            keep.writelines(_line(row) for i, row in enumerate(values) if i not in reasons)
            for i, reason in sorted(reasons.items()):
                name = "reason"
                while name in values[i]:  # the row brings a reason of its own
                    name = f"decontaminate_{name}"
                reject.write(_line({**values[i], name: reason}))
            counts["malformed"] += sum(map(bool, errors))
            counts["rejected"] += len(reasons)
            counts["kept"] += len(batch) - len(reasons)
    if counts["malformed"] == counts["kept"] + counts["rejected"] > 0:
        what = f"a text in {field!r}" if field else "a problem in a field that is known"
        wrong = f"no row of {path} has {what}; name another field by --text-field"
        raise ConfigError([wrong])
    return counts


def _batches(path: Path) -> Iterator[list[Row]]:
    """The rows of a file, a few megabytes at a time."""
    batch, size = list[Row](), 0
    for row in read_rows(path):
        batch.append(row)
        size += len(str(row.value))
        if size >= BATCH_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _text(row: Row, field: str) -> tuple[str | None, str]:
    """The text to look at, or why there is none."""
    if row.value is None:
        return None, row.error
    try:
        return text_of_problem(row.value, field), ""
    except BadField as error:
        return None, str(error)


def _line(row: dict[str, Any]) -> bytes:
    """As JSON; what of a parquet file JSON has no word for as text: dates, bytes in hex digits."""
    text = json.dumps(
        row, ensure_ascii=False, default=lambda v: v.hex() if isinstance(v, bytes) else str(v)
    )
    # A lone surrogate, which UTF-8 cannot hold, stays the escape that it was in JSON.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return writable(str(value)) if isinstance(value, str | int) and value != "" else str(number)
