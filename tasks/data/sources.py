"""The declared sources (files, hub datasets, lookup tables) cut into parts, and one part collected.

Files are part of what a stage computes: `collected_files` and `recorded_files` name them for the
stage's key, which then changes with their bytes. Nothing here imports Prefect, so that the worker
processes of `collect` start in half a second.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from configs.files import replace_text
from configs.settings.data import SampleSettings
from configs.settings.sources import CollectSettings, LookupTable, Source, Table
from eval.records import Problem, Rejected, problem_id
from eval.row_files import Row, find_files, read_rows
from eval.tables import TableWriter
from tasks.data.generated import generated_problems
from tasks.data.hub import hub_rows, resolved, shards
from tasks.data.row_to_problem import BadField, Tables, field_of, prompt_of, text_of, to_problem
from tasks.stage.parts import computed_parts
from tasks.stage.progress import report

TEXTS = "texts.json"
ROWS_PER_REPORT = 500
LONGEST_ROW = 1_000_000
"""Characters of a rejected row that are kept; of a longer one the start tells enough."""
KEPT, REJECTED, COUNTS = "kept.parquet", "rejected.parquet", "counts.json"


class Piece(NamedTuple):
    """Rows of a table that are read together: a local file, or a share of a hub dataset."""

    file: Path | None = None
    commit: str = ""
    shard: int = 0
    of: int = 1


class Part(NamedTuple):
    """Rows of one source that one process reads."""

    source: int
    """Its place among the sources."""
    pieces: tuple[Piece, ...]
    last: bool
    """Of its source."""
    number: int
    of: int
    """Place among all parts, for the progress display."""


class LookupPart(NamedTuple):
    """A lookup table of a source."""

    source: int
    table: str
    pieces: tuple[Piece, ...]


def planned(settings: CollectSettings, scratch: Path) -> tuple[list[Part], list[LookupPart]]:
    """All parts in order, and all lookup tables; asks the hub about hub datasets.

    Its answers are remembered below `scratch`, so that a resumed run reads the commits it began
    with. Raises FileNotFoundError, or ValueError when the hub cannot be asked.
    """
    memory = scratch / "commits.json"
    known = json.loads(memory.read_text()) if memory.exists() else {}

    def pieces(table: Table, name: str, *, cut: bool) -> tuple[Piece, ...]:
        if table.files:
            return tuple(map(Piece, _files(table, settings, name)))
        if name not in known:
            commit = resolved(table, name)
            known[name] = commit, shards(table, commit, name) if cut else 1
        commit, of = known[name]
        return tuple(Piece(None, commit, shard, of) for shard in range(of))

    cuts: list[tuple[int, tuple[Piece, ...], bool]] = []
    lookups: list[LookupPart] = []
    for place, source in enumerate(settings.sources):
        if source.kind == "generated":
            cuts.append((place, (), True))
            continue
        found = pieces(source, source.name, cut=source.limit is None)
        groups = [found] if source.limit else [(piece,) for piece in found]
        cuts += [(place, group, n == len(groups)) for n, group in enumerate(groups, 1)]
        for name, table in _lookup_tables(source).items():
            of_table = pieces(table, f"{source.name}/{name}", cut=False)
            lookups.append(LookupPart(place, name, of_table))
    replace_text(memory, json.dumps(known))
    return [Part(*cut, number, len(cuts)) for number, cut in enumerate(cuts)], lookups


def piece_rows(piece: Piece, table: Table, root: Path, name: str) -> Iterator[Row]:
    """The rows of one piece, each with its place."""
    if piece.file is None:
        return hub_rows(table, piece.commit, name, piece.shard, piece.of)
    return read_rows(piece.file, root, needed_columns(table) if isinstance(table, Source) else ())


def needed_columns(source: Source) -> frozenset[str]:
    """Top-level fields that the source's rows are made into problems from; empty for all."""
    fields = [p.field for p in source.prompt_parts] or [source.prompt_field]
    if source.domain == "math":
        fields.append(source.answer_field)
    else:
        fields += source.tests_field.split("+")
        fields += [source.fn_name_field, source.setup_field, source.checker_field]
        fields += [source.time_limit_field, source.memory_field]
    if source.lookup:
        fields += [*source.lookup.table_fields, source.lookup.index_field]
    names = {f.strip().partition(".")[0] for f in (*fields, source.date_field, *source.where)}
    return frozenset() if "." in fields else frozenset(names - {""})


def lookup_texts(
    settings: CollectSettings, lookups: list[LookupPart], scratch: Path
) -> dict[int, dict[str, Path]]:
    """Source → table → JSON list of its texts, read now unless an earlier run did."""
    compute = partial(write_texts, settings=settings)
    folders = computed_parts(scratch, lookups, compute, settings.runtime.workers)
    files: dict[int, dict[str, Path]] = {}
    for part, folder in zip(lookups, folders, strict=True):
        files.setdefault(part.source, {})[part.table] = folder / TEXTS
    return files


def write_texts(part: LookupPart, folder: Path, *, settings: CollectSettings) -> None:
    """Keep the texts of a lookup table, in the order of its rows; some tens of MB."""
    source = settings.sources[part.source]
    table, name = _lookup_tables(source)[part.table], f"{source.name}/{part.table}"
    texts = [
        text_of(row.value or {}, table.text_field).encode("utf-8", "replace").decode()
        for piece in part.pieces
        for row in piece_rows(piece, table, Path(settings.root), name)
    ]
    (folder / TEXTS).write_bytes(orjson.dumps(texts))


def _lookup_tables(source: Source) -> Mapping[str, LookupTable]:
    return source.lookup.tables if source.lookup else {}


def _files(table: Table, settings: CollectSettings, name: str) -> list[Path]:
    advice = "--set data.root=DIR names the folder that holds it"
    return find_files(table.files, Path(settings.root), f"source {name!r}, files", advice)


def collected_files(settings: CollectSettings) -> list[Path]:
    """The local files that `collect` reads; raises FileNotFoundError that names the source."""
    return [
        file
        for source in settings.sources
        for table in (source, *_lookup_tables(source).values())
        if table.files
        for file in _files(table, settings, source.name)
    ]


def recorded_files(settings: SampleSettings) -> list[Path]:
    """The files of recorded answers that `distill` reads, if its engine reads any."""
    engine = settings.engine
    return find_files(engine.files, Path(), "engine.files") if engine.kind == "recorded" else []


def collect_part(
    part: Part,
    folder: Path,
    *,
    settings: CollectSettings,
    seed: int,
    texts: Mapping[int, Mapping[str, Path]],
) -> None:
    """Write the problems, rejects and counts of one part to `folder`."""
    source = settings.sources[part.source]
    files = texts.get(part.source, {})
    tables = {name: orjson.loads(file.read_bytes()) for name, file in files.items()}
    left_out = 0
    with (
        TableWriter(folder / KEPT, Problem) as kept,
        TableWriter(folder / REJECTED, Rejected) as rejected,
    ):
        rows = read_source(part, source, Path(settings.root), seed, tables)
        for number, row in enumerate(rows, 1):
            if isinstance(row, Problem):
                kept.write(row)
            elif isinstance(row, Rejected):
                rejected.write(row)
            else:
                left_out += 1
            if number % ROWS_PER_REPORT == 0:
                report(part.number, part.of, f"{source.name}: {number:,} rows")
            if kept.rows == source.limit:
                break
    counts = {"kept": kept.rows, "rejected": rejected.rows, "left_out": left_out}
    (folder / COUNTS).write_text(json.dumps(counts))


def read_source(
    part: Part, source: Source, root: Path, seed: int, tables: Tables
) -> Iterator[Problem | Rejected | None]:
    """The rows of one part in order, good and bad; None for one that `where` leaves out."""
    if source.kind == "generated":
        yield from generated_problems(source, seed)
    for piece in part.pieces:
        for row in piece_rows(piece, source, root, source.name):
            wanted = row.value is None or _is_wanted(row.value, source.where)
            yield checked(row, source, tables) if wanted else None


def _is_wanted(row: dict[str, Any], where: Mapping[str, Any]) -> bool:
    for name, value in where.items():
        found = field_of(row, name)
        allowed = value if isinstance(value, tuple) else (value,)
        if (found if isinstance(found, bool | int | str) else "") not in allowed:
            return False
    return True


def checked(row: Row, source: Source, tables: Tables | None = None) -> Problem | Rejected:
    """The row as a Problem, or why it is none."""
    reason = row.error
    if row.value is not None:
        try:
            return to_problem(row.value, source, tables)
        except (ValueError, RecursionError) as error:
            reason = str(error)
    try:
        known_id = problem_id(prompt_of(row.value or {}, source, tables))
    except BadField:
        known_id = ""
    original = row.raw if row.value is None else json.dumps(row.value, default=str)
    if len(original) > LONGEST_ROW:
        original = f"{original[:1000]}… ({len(original):,} characters)"
    return Rejected(
        id=known_id,
        source=source.name,
        reason=_storable(f"{row.file} row {row.number}: {reason}"),
        row=_storable(original),
    )


def _storable(text: str) -> str:
    """Lone surrogates, which no table can hold, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
