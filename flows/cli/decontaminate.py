"""`klear decontaminate IN --against FILE… --out DIR`: the decontaminate stage for any file.

kept.jsonl or kept.parquet           rows that share nothing, as they were: byte for byte, or column
                                     for column
rejected.jsonl or rejected.parquet   the others, with one more field `reason`; also rows that cannot
                                     be read, with their place
hits.parquet                         (row, benchmark item) pairs that share an n-gram
decontamination.html                 what they mean: common wording, real leaks, both texts
"""

import codecs
import gzip
import json
import os
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cyclopts import Parameter

from configs.loading import load_group
from configs.settings.data import DecontaminateSettings
from configs.settings.explain import ConfigError
from eval.row_files import SUFFIXES, read_rows, rows_of_longest
from eval.tables import ArrowWriter
from tasks.data.decontamination_page import PAGE, write_page
from tasks.data.ngrams import Item, NgramIndex
from tasks.data.overlaps import BATCH_BYTES, BATCH_ROWS, HITS, ROW, Overlaps, text_batches

ITEM_FIELDS = ("prompt", "problem", "question", "text", "question_content")
SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev", "eval", "data"})
INPUTS = (".jsonl", ".jsonl.gz", ".parquet")
OUTPUTS = ("kept.jsonl", "kept.parquet", "rejected.jsonl", "rejected.parquet", "hits.parquet", PAGE)
LONGEST_ROWS = 16
"""Times what `rows_of_longest` allows: a batch of a file whose rows repeat one long text."""
Decide = Callable[[pa.RecordBatch], tuple[dict[int, str], list[int]]]
"""As `Overlaps.decide`."""
Batch = tuple[pa.RecordBatch, dict[int, str], Callable[[dict[int, str]], None]]
"""Some rows, what is wrong with those that cannot be read, and how they are written: a function
that takes the reason of each rejected one, by its number among them."""


def decontaminate(
    source: Path,
    /,
    *,
    against: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)],
    out: Path,
    n: int = 9,
    normalize: str = "alnum",
    min_coverage: float = 0.0,
    text_field: str = "prompt",
) -> int:
    """Remove problems that share n-grams with benchmarks.

    Args:
        source: JSONL, JSONL.gz or parquet.
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
    _check_paths(source, against, out)
    created = not out.exists()
    try:
        index = NgramIndex(_items(against, text_field), settings.n, settings.normalize)
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as folder:
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
    finally:
        if created:
            with suppress(OSError):  # it holds results, or never was
                out.rmdir()
    _print_summary(counts, figures, out, settings)
    return 0


def _check_paths(source: Path, against: tuple[Path, ...], out: Path) -> None:
    for path, suffixes in [(source, INPUTS), *((p, SUFFIXES) for p in against)]:
        if not path.is_file():
            raise ConfigError([f"no file {path}"])
        if not path.name.endswith(suffixes):
            raise ConfigError([f"{path} is none of {', '.join(suffixes)}"])
    if out.exists() and not out.is_dir():
        raise ConfigError([f"--out {out} is a file; name a folder"])
    if out.resolve() == source.resolve().parent and source.name in OUTPUTS:
        raise ConfigError([f"--out {out} would replace {source}; name another folder"])


def benchmark_names(paths: Sequence[Path]) -> list[str]:
    """File stems, or instead of a split's name that of the folder; both where that is not unique,
    and else the whole path."""
    parts = [(path.resolve().parent.name, path.name.split(".")[0]) for path in paths]
    names = [folder or stem if stem in SPLITS else stem for folder, stem in parts]
    for longer in (map("/".join, parts), map(str, paths)):
        times = Counter(names)
        names = [n if times[n] == 1 else more for n, more in zip(names, longer, strict=True)]
    return names


def _items(paths: tuple[Path, ...], text_field: str) -> Iterator[Item]:
    fields = list(dict.fromkeys((text_field, *ITEM_FIELDS)))
    paths = tuple(dict.fromkeys(paths))
    for path, benchmark in zip(paths, benchmark_names(paths), strict=True):
        row, ids = None, set[str]()
        for row in read_rows(path):
            if row.value is None:
                raise ValueError(f"{path} line {row.number}: {row.error}")
            value = row.value
            texts = [text for f in fields if isinstance(text := value.get(f), str)]
            if not texts:
                wanted, has = ", ".join(fields), ", ".join(value)
                place = f"{path} row {row.number}"
                raise ConfigError([f"{place} has no text in {wanted}; it has: {has}"])
            id_ = _id(value.get("id"), row.number)
            id_ = f"{id_} (row {row.number})" if id_ in ids else id_
            ids.add(id_)
            yield Item(benchmark, id_, _printable(texts[0]))
        if row is None:
            raise ConfigError([f"{path} holds no rows: nothing would be protected"])


def filter_rows(path: Path, field: str, decide: Decide, out: Path) -> Counter[str]:
    """Write kept and rejected rows below `out` in the format of `path`, in bounded memory.

    Counts rows kept, rejected and, among the rejected, malformed. Raises ConfigError where no row
    has a text in `field`, and ValueError for a damaged file.
    """
    counts = Counter[str](kept=0, rejected=0, malformed=0)
    batches, last = _parquet if path.suffix == ".parquet" else _json_lines, 0
    try:
        with closing(batches(path, field, out)) as some:
            for rows, errors, write in some:
                try:
                    reasons, unreadable = decide(rows)
                except TypeError as error:
                    raise ConfigError([f"{path} field {field!r}: {error}"]) from error
                errors |= dict.fromkeys(unreadable, f"field {field!r} is not UTF-8")
                numbers = rows.column("row_number").to_pylist()
                reasons |= {i: f"row {numbers[i]}: {error}" for i, error in errors.items()}
                write(reasons)
                counts.update(malformed=len(errors), rejected=len(reasons))
                counts["kept"] += len(numbers) - len(reasons)
                last = numbers[-1]
    except (pa.ArrowException, EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the file's
        raise ValueError(f"{path} is damaged after row {last}: {error}") from error
    if counts["malformed"] == counts["kept"] + counts["rejected"] > 0:
        wrong = f"no row of {path} has a text in {field!r}; name another field by --text-field"
        raise ConfigError([wrong])
    return counts


class Line(NamedTuple):
    """A line that holds something; `row` is empty where it is no object."""

    number: int
    raw: bytes
    row: dict[str, Any]
    text: str | None
    error: str


def _json_lines(path: Path, field: str, out: Path) -> Generator[Batch]:
    """Kept lines are copied as they are; one that is no object is rejected as `line`."""
    with (
        (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file,
        (out / "kept.jsonl").open("wb") as kept,
        (out / "rejected.jsonl").open("wb") as rejected,
    ):

        def write(reasons: dict[int, str]) -> None:
            for place, line in enumerate(lines):
                if place in reasons:
                    row = line.row or {"line": line.raw.decode(errors="replace")}
                    row = {**row, _reason_name(row): reasons[place]}
                    rejected.write(json.dumps(row).encode() + b"\n")
                else:
                    kept.write(line.raw + b"\n")

        for lines in _line_batches(file, field):
            numbers = [line.number for line in lines]
            ids = [_id(line.row.get("id"), line.number) for line in lines]
            texts = pa.array([line.text for line in lines], pa.large_string())
            errors = {place: line.error for place, line in enumerate(lines) if line.error}
            yield _rows(path, numbers, ids, texts), errors, write


def _line_batches(file: Iterable[bytes], field: str) -> Iterator[list[Line]]:
    lines, size = list[Line](), 0
    for number, line in enumerate(file, 1):
        if raw := line.removeprefix(codecs.BOM_UTF8).strip():
            lines.append(_line(number, raw, field))
            size += len(raw)
        if size >= BATCH_BYTES or len(lines) >= BATCH_ROWS:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def _line(number: int, raw: bytes, field: str) -> Line:
    try:
        row = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        return Line(number, raw, {}, None, f"no JSON: {error}")
    if not isinstance(row, dict):
        return Line(number, raw, {}, None, "a row must be a JSON object")
    text = row.get(field)
    if isinstance(text, str):
        return Line(number, raw, row, _printable(text), "")
    return Line(number, raw, row, None, f"field {field!r} is {type(text).__name__}, not text")


def _parquet(path: Path, field: str, out: Path) -> Generator[Batch]:
    """Every column stays as it was; `reason` is one more of the rejected rows."""
    with ExitStack() as files:
        file = files.enter_context(pq.ParquetFile(path))
        views = pa.string_view()  # Arrow reads them and cannot filter them
        plain = [
            f.with_type(pa.large_string()) if f.type == views else f for f in file.schema_arrow
        ]
        schema = pa.schema(plain, file.schema_arrow.metadata)
        if field not in schema.names:
            fields = ", ".join(schema.names)
            wrong = f"{path} has no field {field!r}; it has: {fields}; choose one by --text-field"
            raise ConfigError([wrong])
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

        before, most = 0, LONGEST_ROWS * rows_of_longest(path, file.metadata)
        for some in text_batches(file, most_rows=min(BATCH_ROWS, most)):
            batch = some.cast(schema)
            numbers = list(range(before + 1, before + len(batch) + 1))
            try:
                ids = batch.column("id").to_pylist() if "id" in schema.names else numbers
            except UnicodeDecodeError:  # the file says text and holds other bytes
                ids = numbers
            texts = batch.column(field)
            missing = np.flatnonzero(texts.is_null()).tolist()
            rows = _rows(path, numbers, list(map(_id, ids, numbers)), texts)
            yield rows, dict.fromkeys(missing, f"field {field!r} is missing"), write
            before += len(batch)


def _rows(path: Path, numbers: list[int], ids: list[str], texts: pa.Array) -> pa.RecordBatch:
    """What `Overlaps.decide` is told."""
    told = pa.array(numbers, pa.int64()), pa.array(ids), pa.array([path.name] * len(ids)), texts
    return pa.record_batch(list(told), names=list(ROW))


def _printable(text: str) -> str:
    """Lone surrogates, which JSON may hold and UTF-8 may not, become question marks."""
    return text.encode("utf-8", "replace").decode()


def _id(value: object, number: int) -> str:
    """The row's own id, or its number from 1."""
    return _printable(str(value)) if isinstance(value, str | int) and value != "" else str(number)


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
