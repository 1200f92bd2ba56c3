"""The declared sources (files, hub datasets, lookup tables) cut into parts, and one part collected.

The rows of a hub dataset are those of one commit, learnt before the first row is read. Nothing here
imports Prefect, so that the worker processes of `collect` start in half a second.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ...configs.files import files_in, replace_text
from ...configs.settings.sources import DATA_FORMATS, CollectSettings, Source, Table
from ...eval.answers import writable
from ...eval.progress import report
from ...eval.records import Problem, PublishedRate, Record, Rejected, Trace, problem_id
from ...eval.records.row_files import Cut, Row, cuts, find_files, read_rows
from ...eval.records.tables import TableWriter
from ...eval.rows.fields import BadField, field_of, text_of
from ...eval.rows.golds import chance_of_guessing, unjudgeable
from ...eval.rows.reading import numbered, read_row
from ...eval.rows.to_problem import Tables, pass_rate_of, prompt_of, traces_of
from .generated import generated_problems

ROWS_PER_REPORT = 500
PART_BYTES = 256 << 20
"""Of a file, about: what a kill loses of one that can be cut."""
LONGEST_ROW = 1_000_000
"""Characters of a rejected row that are kept."""
KEPT, REJECTED, COUNTS = "kept.parquet", "rejected.parquet", "counts.json"
WAYS = "ways.json"
TRACES, PASS_RATES = "traces.parquet", "pass_rates.parquet"
GOLDS = UNJUDGEABLE, GUESSABLE = "unjudgeable", "guessable"
"""Problems whose gold nobody can match, and whose gold guessing matches, as counts name them."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Piece(NamedTuple):
    """Rows of a table that are read together: a local file or a share of it, or a share of a hub
    dataset."""

    file: Path | None = None
    cut: Cut | None = None
    commit: str = ""
    shard: int = 0
    shards: int = 1
    options_from: int = 0
    """What the dataset counts options from, where its rows are read by shape."""


class Collected(NamedTuple):
    """A row that can be used, with what others have published about it."""

    problem: Problem
    traces: list[Trace]
    rate: PublishedRate | None
    way: str = ""
    """How the row was read, where its fields were not named."""


class Part(NamedTuple):
    """Rows of one source that one process reads."""

    source: int
    """Its place among the sources."""
    pieces: tuple[Piece, ...] = ()


def planned(settings: CollectSettings, scratch: Path) -> list[Part]:
    """All parts in order: a file, a share of one larger than `PART_BYTES` or of a hub dataset each,
    or a whole source where rows are counted (`limit`), looked up or generated.

    The hub is asked about its datasets now, unless an earlier run did: what it said is remembered
    below `scratch`, so that a resumed run reads the commits it began with. So is where large files
    are cut. Raises FileNotFoundError, or ValueError when the hub cannot be asked.
    """
    memory, parts = scratch / f"planned-{PART_BYTES}.json", list[Part]()
    remembered = json.loads(memory.read_text()) if memory.exists() else {}
    for place, source in enumerate(settings.sources):
        if source.kind == "hub":
            if source.name not in remembered:
                commit = resolved(source, source.name)
                rows = piece_rows(Piece(commit=commit), source, Path(), source.name)
                remembered[source.name] = {
                    "commit": commit,
                    "shards": _opened(source, commit, source.name).num_shards,
                    "options_from": numbered(rows, source).options_from,
                }
            dataset = Piece(**remembered[source.name])
            pieces = [dataset._replace(shard=shard) for shard in range(max(dataset.shards, 1))]
        else:
            pieces = [Piece(file) for file in _files(source, settings, source.name)]
        if source.limit or source.lookup or source.kind == "generated":
            parts.append(Part(place, tuple(pieces)))
            continue
        for piece in pieces:
            shares: list[Any] = []
            if piece.file and piece.file.stat().st_size > PART_BYTES:
                report(0, 0, f"{source.name}: where to cut {piece.file.name}")
                name = str(piece.file)
                shares = remembered[name] = remembered.get(name) or cuts(piece.file, PART_BYTES)
            cut = [piece._replace(cut=Cut(*share)) for share in shares]
            parts += [Part(place, (share,)) for share in cut or [piece]]
    replace_text(memory, json.dumps(remembered))
    return parts


def _looked_up(source: Source, settings: CollectSettings) -> Tables:
    """The texts of each lookup table; some tens of MB."""
    texts = dict[str, dict[str, str]]()
    for key, table in (source.lookup.tables if source.lookup else {}).items():
        name, files = f"{source.name}/{key}", _files(table, settings, source.name)
        for piece in map(Piece, files) if files else [Piece(commit=resolved(table, name))]:
            table_texts = texts.setdefault(key, {})
            for row in piece_rows(piece, table, Path(settings.root), name):
                value, key_field = row.value or {}, table.key_field
                if not key_field or (value and is_wanted(value, table.where)):
                    name_of_row = str(field_of(value, key_field) if key_field else len(table_texts))
                    table_texts[name_of_row] = text_of(value, table.text_field)
    return texts


def _files(table: Table, settings: CollectSettings, name: str) -> list[Path]:
    advice = "--set data.root=DIR names the folder that holds it"
    return find_files(table.files, Path(settings.root), f"source {name!r}, files", advice)


def collected_files(settings: CollectSettings) -> list[Path | tuple[str, Path]]:
    """The local files that `collect` reads and keys by, those of a clone by their names in it;
    raises FileNotFoundError."""
    files = list[Path | tuple[str, Path]]()
    for source in settings.sources:
        for table in (source, *(source.lookup.tables.values() if source.lookup else ())):
            files += _files(table, settings, source.name)
            if table.dataset and Path(table.dataset).is_dir():
                clone = files_in(Path(table.dataset))
                files += [(name, f) for name, f in clone if ".git" not in Path(name).parts]
    return files


def resolved(table: Table, name: str) -> str:
    """The commit that `table.revision` stands for now; empty for a local clone. Raises ValueError
    that names the source when the hub cannot be asked."""
    if Path(table.dataset).is_dir():
        return ""
    if _COMMIT.fullmatch(table.revision):
        return table.revision
    from huggingface_hub import HfApi

    with _explained(table, name):
        return HfApi().dataset_info(table.dataset, revision=table.revision).sha or ""


def piece_rows(piece: Piece, table: Table, root: Path, name: str) -> Iterator[Row]:
    """The rows of a piece, each with its place. Raises ValueError that names the dataset."""
    if piece.file:
        yield from read_rows(piece.file, root, piece.cut)
        return
    rows, place = _opened(table, piece.commit, name), table.dataset
    if piece.shards > 1:
        rows = rows.shard(num_shards=piece.shards, index=piece.shard, contiguous=True)
        place += f" piece {piece.shard + 1} of {piece.shards}"
    with _explained(table, name):  # a file that is no JSON, a schema that changes, no connection
        for number, value in enumerate(rows, 1):
            yield Row(place, number, dict(value))


def _opened(table: Table, commit: str, name: str) -> Any:
    """The dataset at this commit, streamed."""
    import datasets  # takes a second, and most runs read files

    what = table.dataset
    options: dict[str, Any] = {"name": table.config or None, "revision": commit or None}
    if table.data_files:
        base = f"hf://datasets/{table.dataset}@{commit}" if commit else table.dataset
        what = DATA_FORMATS[table.data_files[0].removesuffix(".gz").rpartition(".")[2]]
        options = {"data_files": {table.split: [f"{base}/{file}" for file in table.data_files]}}
    with _explained(table, name):
        rows = datasets.load_dataset(what, **options, split=table.split, streaming=True)
        features: Any = rows.features
        if features and "null" in str(features.arrow_schema.types):
            # The first file has a column without a value: the others say what it holds.
            config: Any = datasets.load_dataset_builder(what, **options).config
            reader = type(config).__name__.removesuffix("Config").lower()
            schemas: list[Any] = [
                datasets.load_dataset(reader, data_files=[file], split="train", streaming=True)
                for file in config.data_files[table.split]
            ]
            schema = _common([s.features.arrow_schema for s in schemas])
            options["features"] = datasets.Features.from_arrow_schema(schema)
            rows = datasets.load_dataset(what, **options, split=table.split, streaming=True)
        return rows


def _common(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """That all files of a dataset can be read by; what holds no value in any is a text."""
    schema = pa.unify_schemas(
        [each.remove_metadata() for each in schemas], promote_options="permissive"
    )
    fields = (
        field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema
    )
    return pa.schema(fields)


@contextmanager
def _explained(table: Table, name: str) -> Iterator[None]:
    """The hub raises its own kinds of error: not found, gated, no network."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"source {name!r}: cannot read dataset={table.dataset} revision={table.revision} "
            f"split={table.split}: {why_not(error)}. Without a network, name local copies of its "
            f"data files in `files`"
        ) from error


def why_not(error: BaseException) -> str:
    """What the hub's library says of a dataset or a model that it cannot give, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def tables_of(sources: Iterable[Source]) -> dict[str, type[Record]]:
    """The files that rows of these sources go to, and what each holds."""
    tables: dict[str, type[Record]] = {KEPT: Problem, REJECTED: Rejected}
    for source in sources:
        tables |= {TRACES: Trace} if source.trace_fields else {}
        tables |= {PASS_RATES: PublishedRate} if source.pass_rate_field else {}
    return tables


def collect_part(part: Part, folder: Path, *, settings: CollectSettings, seed: int) -> None:
    """Write the problems, their published answers, rejects and counts of one part to `folder`."""
    source = settings.to_read(part.source)
    left_out, golds = 0, Counter[str](dict.fromkeys(GOLDS, 0))
    ways = Counter[str]()
    with ExitStack() as stack:
        tables = {
            name: stack.enter_context(TableWriter(folder / name, record))
            for name, record in tables_of([source]).items()
        }
        for number, row in enumerate(read_source(part, settings, seed), 1):
            if isinstance(row, Collected):
                tables[KEPT].write(row.problem)
                golds.update(kind_of_gold(row.problem))
                ways.update([row.way] if row.way else [])
                of_it = {"problem_id": row.problem.id}
                for trace in row.traces:
                    tables[TRACES].write(trace.model_copy(update=of_it))
                if row.rate:
                    tables[PASS_RATES].write(row.rate.model_copy(update=of_it))
            elif row:
                tables[REJECTED].write(row)
            left_out += row is None
            if number % ROWS_PER_REPORT == 0:
                report(0, 0, f"{source.name}: {number:,} rows")
            if tables[KEPT].rows == source.limit:
                break
    counts = {Path(name).stem: table.rows for name, table in tables.items()}
    (folder / COUNTS).write_text(json.dumps({**counts, **golds, "left_out": left_out}))
    (folder / WAYS).write_text(json.dumps(ways))


def kind_of_gold(problem: Problem) -> list[str]:
    """Those of GOLDS that the problem's gold is."""
    return [
        name
        for name, is_one in zip(GOLDS, (unjudgeable, chance_of_guessing), strict=True)
        if is_one(problem)
    ]


def read_source(
    part: Part, settings: CollectSettings, seed: int
) -> Iterator[Collected | Rejected | None]:
    """The rows of one part in order, good and bad; None for one that `where` leaves out."""
    source = settings.to_read(part.source)
    if source.kind == "generated":
        yield from (Collected(p, [], None) for p in generated_problems(source, seed))
    tables = _looked_up(source, settings)
    for piece in part.pieces:
        if piece.file:
            as_file = numbered(read_rows(piece.file), source)
        else:
            as_file = source.model_copy(update={"options_from": piece.options_from})
        for row in piece_rows(piece, source, Path(settings.root), source.name):
            wanted = row.value is None or is_wanted(row.value, source.where)
            yield checked(row, as_file, tables) if wanted else None


def is_wanted(row: dict[str, Any], where: Mapping[str, Any]) -> bool:
    for name, wanted in where.items():
        value = field_of(row, name)
        plain = "" if value is None or value in ([], {}) else value
        if not any(_is_one(plain, w) for w in (wanted if isinstance(wanted, tuple) else (wanted,))):
            return False
    return True


def _is_one(value: Any, wanted: bool | int | str) -> bool:
    if isinstance(value, str) and isinstance(wanted, str) and wanted.endswith("*"):
        return value.startswith(wanted[:-1])
    return value == wanted


def checked(row: Row, source: Source, tables: Tables | None = None) -> Collected | Rejected:
    """The row as a Problem with what is published about it, or why it is none."""
    reason = row.error
    if row.value is not None:
        try:
            traces, rate = traces_of(row.value, source), pass_rate_of(row.value, source)
            problem, way = read_row(row.value, source, tables)
            own = problem.model_copy(update={"id": problem_id(problem.prompt)})  # not the row's id
            return Collected(own, traces, rate, way)
        except (ValueError, RecursionError) as error:
            reason = str(error)
    try:
        known_id = problem_id(prompt_of(row.value or {}, source, tables))
    except BadField:
        known_id = ""
    original = row.raw if row.value is None else json.dumps(row.value, default=str)
    reason = writable(f"{row.file} row {row.number}: {reason}")
    kept = writable(original[:LONGEST_ROW])
    return Rejected(id=known_id, source=source.name, reason=reason, row=kept)
