"""`klear decontaminate IN --against FILE… --out DIR`: the decontaminate stage for any file.

kept.jsonl or kept.parquet   rows that share nothing, with all of their fields
rejected.parquet             the others as JSON, with the reason, as of the stage; also rows that
                             cannot be read, with their place
hits.parquet                 (row, benchmark item) pairs that share an n-gram
decontamination.html         what they mean: common wording, real leaks, both texts
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from cyclopts import Parameter, validators
from cyclopts.types import Directory

from configs.loading import load_group
from configs.settings.data import DecontaminateSettings
from configs.settings.explain import ConfigError
<<<<<<< HEAD
from eval.records import Rejected
from eval.row_files import Row, read_rows
from eval.tables import ArrowWriter, TableWriter
=======
from eval.answers import writable
from eval.row_files import SUFFIXES, Row, read_rows
from eval.tables import ArrowWriter
>>>>>>> house-7
from tasks.data.decontamination_page import PAGE, write_page
from tasks.data.ngrams import Item, NgramIndex
from tasks.data.overlaps import BATCH_BYTES, BATCH_ROWS, HITS, ROW, Overlaps

ITEM_FIELDS = ("prompt", "problem", "question", "text", "question_content")
<<<<<<< HEAD
OUTPUTS = ("kept.jsonl", "kept.parquet", "rejected.parquet", "hits.parquet", PAGE)
Decide = Callable[[pa.RecordBatch], tuple[dict[int, str], list[int]]]
=======
SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev", "eval", "data"})
OUTPUTS = ("kept.jsonl", "kept.parquet", "rejected.jsonl", "rejected.parquet", "hits.parquet", PAGE)
Decide = Callable[[pa.RecordBatch], dict[int, str]]
>>>>>>> house-7
"""As `Overlaps.decide`."""
_is_data = validators.Path(exists=True, dir_okay=False, ext=("jsonl", "json", "gz", "parquet"))


def decontaminate(
    source: Annotated[Path, Parameter(validator=_is_data)],
    /,
    *,
    against: Annotated[tuple[Path, ...], Parameter(validator=_is_data, consume_multiple=True)],
    out: Directory,
    n: int = 9,
    normalize: str = "alnum",
    min_coverage: float = 0.0,
    text_field: str = "prompt",
) -> int:
    """Remove problems that share n-grams with benchmarks.

    Args:
        source: JSONL, JSON (both also .gz) or parquet.
        against: Benchmarks, same formats; text in prompt, problem, question, text or
            question_content, or in --text-field.
        out: Folder to write.
        n: Words an n-gram.
        normalize: Words: alnum, runs of letters and digits; or whitespace, split at white space.
        min_coverage: Reject only if this share of an item's n-grams is shared; default: any.
        text_field: Field of IN.
    """
    options = (f"n={n}", f"normalize={normalize}", f"min_coverage={min_coverage}")
    settings = load_group(DecontaminateSettings, options)
    if out.resolve() == source.resolve().parent and source.name in OUTPUTS:
        raise ConfigError([f"--out {out} would replace {source}; name another folder"])
    try:
        index = NgramIndex(_items(against, text_field), settings.n, settings.normalize)
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out, prefix=".partial-") as folder:
            work = Path(folder)
            with ArrowWriter(work / "hits.parquet", HITS) as hits:
                overlaps = Overlaps(index, settings.min_coverage, hits)
                counts = filter_rows(source, text_field, overlaps.decide, work)
            rows, malformed = counts["kept"] + counts["rejected"], counts["malformed"]
            how = {"rows": rows, "removed": counts["rejected"] - malformed, "malformed": malformed}
            figures = write_page(work, index, settings, **how)
            for name in OUTPUTS:  # an earlier run may have left files of another format
                (out / name).unlink(missing_ok=True)
                if (work / name).exists():
                    os.replace(work / name, out / name)
    except ValueError as error:  # a damaged file
        print(f"klear decontaminate: {error}", file=sys.stderr)
        return 1
    print(
        f"{counts['kept']:,} kept, {counts['rejected']:,} rejected ({malformed:,} malformed: their "
        f"reasons name the place) → {out}\n{figures['rows_any_ngram']:,.0f} rows share a "
        f"{settings.n}-gram or a whole short item, {figures['rows_coverage_50']:,.0f} of them half "
        f"of an item or more: see {out / PAGE}"
    )
    return 0


def _items(paths: Sequence[Path], text_field: str) -> Iterator[Item]:
    """Benchmarks are called by the stems of their files; by their paths where stems are alike."""
    stems = {path: path.name.split(".")[0] for path in paths}
    fields = list(dict.fromkeys((text_field, *ITEM_FIELDS)))
    for path, stem in stems.items():
        benchmark = stem if list(stems.values()).count(stem) == 1 else str(path)
        row = None
        for row in read_rows(path):
            if row.value is None:
                raise ValueError(f"{path} line {row.number}: {row.error}")
            texts = [text for f in fields if isinstance(text := row.value.get(f), str)]
            if not texts:
                wanted, has = ", ".join(fields), ", ".join(row.value)
                place = f"{path} row {row.number}"
                raise ConfigError([f"{place} has no text in {wanted}; it has: {has}"])
<<<<<<< HEAD
            yield Item(benchmark, _id(row.value, row.number), _printable(texts[0]))
=======
            id_ = _id(value.get("id"), row.number)
            id_ = f"{id_} (row {row.number})" if id_ in ids else id_
            ids.add(id_)
            yield Item(benchmark, id_, writable(texts[0]))
>>>>>>> house-7
        if row is None:
            raise ConfigError([f"{path} holds no rows: nothing would be protected"])


def filter_rows(path: Path, field: str, decide: Decide, out: Path) -> Counter[str]:
    """Write kept and rejected rows below `out`, in bounded memory.

    Counts rows kept, rejected and, among the rejected, malformed. Raises ConfigError where no row
    has a text in `field`, and ValueError for a damaged file.
    """
    counts = Counter[str](kept=0, rejected=0, malformed=0)
<<<<<<< HEAD
    batches = _batches(path)
    first = next(batches, [])  # a damaged file fails here, by its name
    with TableWriter(out / "rejected.parquet", Rejected) as rejected, _kept(path, out) as keep:
        for batch in filter(None, chain([first], batches)):
            numbers, ids = (
                [row.number for row in batch],
                [_id(row.value, row.number) for row in batch],
            )
            found = [(row.value or {}).get(field) for row in batch]
            texts = [_printable(text) if isinstance(text, str) else None for text in found]
            columns = numbers, ids, [path.name] * len(batch), texts
            told = map(pa.array, columns, (pa.int64(), pa.string(), pa.string(), pa.large_string()))
            reasons, _ = decide(pa.record_batch([*told], names=list(ROW)))
            for i, row in enumerate(batch):
                if texts[i] is None:
                    wrong = row.error or f"field {field!r} is {type(found[i]).__name__}, not text"
                    reasons[i] = f"row {row.number}: {wrong}"
            for i, why in sorted(reasons.items()):
                row = _printable(batch[i].raw) or json.dumps(batch[i].value, default=str)
                rejected.write(Rejected(id=ids[i], source=path.name, reason=why, row=row))
            keep([row.value for i, row in enumerate(batch) if i not in reasons])
            counts["malformed"] += texts.count(None)
=======
    with _writer(path, out) as write:
        for batch in _batches(path):
            errors = [_trouble(row, field) for row in batch]
            values = [row.value or ({"line": row.raw.strip()} if row.raw else {}) for row in batch]
            texts = [
                None if error else writable(value[field])
                for value, error in zip(values, errors, strict=True)
            ]
            numbers = [row.number for row in batch]
            ids = [_id(value.get("id"), n) for value, n in zip(values, numbers, strict=True)]
            told = (pa.array(numbers, pa.int64()), pa.array(ids), pa.array([path.name] * len(ids)))
            table = pa.record_batch([*told, pa.array(texts, pa.large_string())], names=list(ROW))
            reasons = decide(table)
            reasons |= {i: f"row {numbers[i]}: {error}" for i, error in enumerate(errors) if error}
            write(values, reasons)
            counts["malformed"] += sum(map(bool, errors))
>>>>>>> house-7
            counts["rejected"] += len(reasons)
            counts["kept"] += len(batch) - len(reasons)
    if counts["malformed"] == counts["kept"] + counts["rejected"] > 0:
        wrong = f"no row of {path} has a text in {field!r}; name another field by --text-field"
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


@contextmanager
def _kept(path: Path, out: Path) -> Iterator[Callable[[list[Any]], object]]:
    """A function that writes rows as they were: of a parquet file with its columns, what a
    dictionary stands for plainly."""
    if path.suffix == ".parquet":
        schema = pq.read_schema(path)
        for place, column in enumerate(schema):
            if pa.types.is_dictionary(column.type):
                schema = schema.set(place, column.with_type(column.type.value_type))
        with pq.ParquetWriter(out / "kept.parquet", schema, compression="zstd") as table:
            yield lambda rows: table.write_table(pa.Table.from_pylist(rows, schema))
    else:
        # A lone surrogate, which UTF-8 cannot hold, stays the escape that it was in JSON.
        with (out / "kept.jsonl").open("w", encoding="utf-8", errors="backslashreplace") as lines:
            yield lambda rows: lines.writelines(
                json.dumps(row, ensure_ascii=False) + "\n" for row in rows
            )


<<<<<<< HEAD
def _printable(text: str) -> str:
    """Lone surrogates, which JSON may hold and UTF-8 may not, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _id(row: Mapping[str, object] | None, number: int) -> str:
    """The row's own id, or its number from 1."""
    value = (row or {}).get("id")
    return _printable(str(value)) if isinstance(value, str | int) and value != "" else str(number)
=======
def _id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return writable(str(value)) if isinstance(value, str | int) and value != "" else str(number)


def _reason_name(fields: Collection[str]) -> str:
    """What the field for the reason is called beside these."""
    name = "reason"
    while name in fields:
        name = f"decontaminate_{name}"
    return name


def _print_summary(
    counts: Counter[str], figures: Mapping[str, float], out: Path, settings: DecontaminateSettings
) -> None:
    number = {name: f"{int(value):,}" for name, value in {**figures, **counts}.items()}
    print(f"{number['kept']} kept, {number['rejected']} rejected → {out}")
    print(
        f"{number['rows_any_ngram']} rows share a {settings.n}-gram or a whole short item with "
        f"{number['items']} benchmark items: {number['rows_coverage_50']} real leaks that share "
        f"half of an item or more, {number['rows_boilerplate']} with common wording only"
    )
    if counts["malformed"]:
        print(f"{number['malformed']} of the rejected are malformed: their reasons name the place")
    print(f"page: {out / PAGE}")
>>>>>>> house-7
