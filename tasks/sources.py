"""What a declared source reads: local files or a hub dataset, in pieces, and the tables it looks
prompts up in.

Files are part of what a stage computes: `collected_files` and `recorded_files` name them for the
stage's key, which then changes with their bytes.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from configs.data_stages import SampleSettings
from configs.sources import CollectSettings, LookupTable, Source, Table
from eval.row_files import Row, find_files, name_below, read_rows
from tasks.hub import hub_rows, resolved, shards
from tasks.row_fields import text_of

TEXTS = "texts.parquet"
_TEXT_SCHEMA = pa.schema([pa.field("text", pa.string())])
_ROWS_PER_GROUP = 4096


class Piece(NamedTuple):
    """Rows of a table that are read together: a local file, or a share of a hub dataset."""

    file: Path | None = None
    name: str = ""
    """What messages call the file, wherever a copy of it is read."""
    commit: str = ""
    shard: int = 0
    of: int = 1


def pieces(table: Table, root: Path, name: str, *, one: bool = False) -> list[Piece]:
    """All rows of a table in order, cut where they can be; asks the hub about hub datasets.

    `one`: a hub dataset in one piece. Raises FileNotFoundError, or ValueError for the hub.
    """
    if table.files:
        return [Piece(file, name_below(root, file)) for file in _files(table, root, name)]
    commit = resolved(table, name)
    of = 1 if one else shards(table, commit, name)
    return [Piece(commit=commit, shard=shard, of=of) for shard in range(of)]


def piece_rows(piece: Piece, table: Table, root: Path, name: str) -> Iterator[Row]:
    """The rows of one piece, each with its place."""
    if piece.file is None:
        return hub_rows(table, piece.commit, name, piece.shard, piece.of)
    columns = needed_columns(table) if isinstance(table, Source) else ()
    return read_rows(piece.file, root, columns, piece.name)


def needed_columns(source: Source) -> frozenset[str]:
    """Top-level fields that the source's rows are made into problems from."""
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


def write_texts(piece: Piece, table: LookupTable, root: Path, name: str, folder: Path) -> None:
    """Keep the texts of a lookup table, in the order of its rows, in `folder`/texts.parquet."""
    waiting: list[str] = []
    with pq.ParquetWriter(folder / TEXTS, _TEXT_SCHEMA, compression="zstd") as writer:
        for row in piece_rows(piece, table, root, name):
            text = text_of(row.value or {}, table.text_field)
            waiting.append(text.encode("utf-8", "replace").decode())  # lone surrogates
            if len(waiting) == _ROWS_PER_GROUP:
                writer.write_table(pa.table({"text": waiting}, schema=_TEXT_SCHEMA))
                waiting = []
        writer.write_table(pa.table({"text": waiting}, schema=_TEXT_SCHEMA))


class KeptTexts:
    """The texts of `write_texts`, one after the other; memory holds them, some tens of MB."""

    def __init__(self, files: list[Path]) -> None:
        self._texts = pa.concat_tables(map(pq.read_table, files)).column("text")

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int, /) -> str | None:
        return self._texts[index].as_py()


def kept_texts(files: Mapping[str, list[Path]]) -> dict[str, KeptTexts]:
    """The tables of a source's lookup, by name."""
    return {name: KeptTexts(of_table) for name, of_table in files.items()}


def _files(table: Table, root: Path, name: str) -> list[Path]:
    advice = "--set data.root=DIR names the folder that holds it"
    return find_files(table.files, root, f"source {name!r}, files", advice)


def _tables(source: Source) -> Iterator[Table]:
    yield source
    yield from source.lookup.tables.values() if source.lookup else ()


def collected_files(settings: CollectSettings) -> list[Path]:
    """The local files that `collect` reads; raises FileNotFoundError that names the source."""
    root = Path(settings.root)
    return [
        file
        for source in settings.sources
        for table in _tables(source)
        if table.files
        for file in _files(table, root, source.name)
    ]


def recorded_files(settings: SampleSettings) -> list[Path]:
    """The files of recorded answers that `distill` reads, if its engine reads any."""
    engine = settings.engine
    return find_files(engine.files, Path(), "engine.files") if engine.kind == "recorded" else []
