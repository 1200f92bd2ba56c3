"""What the declared sources hold, cut into parts: files, hub datasets, and their lookup tables.

Files are part of what a stage computes: `collected_files` and `recorded_files` name them for the
stage's key, which then changes with their bytes. Nothing here imports Prefect, so that the worker
processes of `collect` start in half a second.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import orjson

from configs.files import replace_text
from configs.settings.data import SampleSettings
from configs.settings.sources import CollectSettings, LookupTable, Source, Table
from eval.row_files import Row, find_files, read_rows
from tasks.data.hub import hub_rows, resolved, shards
from tasks.data.row_to_problem import text_of
from tasks.stage.parts import computed_parts

TEXTS = "texts.json"


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
