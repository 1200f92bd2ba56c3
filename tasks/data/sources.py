"""The declared sources (files, hub datasets, lookup tables) cut into parts, and one part collected.

The rows of a hub dataset are those of one commit, learnt before the first row is read. Nothing here
imports Prefect, so that the worker processes of `collect` start in half a second.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from configs.files import replace_text
from configs.settings.sources import DATA_FORMATS, CollectSettings, LookupTable, Source, Table
from eval.records import Problem, Rejected, problem_id
from eval.row_files import Row, find_files, read_rows
from eval.tables import TableWriter
from tasks.data.generated import generated_problems
from tasks.data.row_to_problem import BadField, Tables, field_of, prompt_of, text_of, to_problem
from tasks.stage.progress import report

ROWS_PER_REPORT = 500
LONGEST_ROW = 1_000_000
"""Characters of a rejected row that are kept; of a longer one the start tells enough."""
KEPT, REJECTED, COUNTS = "kept.parquet", "rejected.parquet", "counts.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REASONS = {  # by the hub's own kinds of error, the narrower before the wider
    "GatedRepoError": "access to it is restricted: accept its terms on the hub and set HF_TOKEN",
    "RepositoryNotFoundError": "the hub has none of this name, or it is private: set HF_TOKEN",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "the hub cannot be reached and the cache lacks it",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and the cache lacks it",
}


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
    pieces: tuple[Piece, ...] = ()


def planned(settings: CollectSettings, scratch: Path) -> tuple[list[Part], dict[int, Path]]:
    """All parts in order, and for each source with lookup tables a JSON file of their texts.

    The hub is asked about its datasets and the tables are read now, unless an earlier run did:
    what was found is remembered below `scratch`, so that a resumed run reads the commits it began
    with. Raises FileNotFoundError, or ValueError when the hub cannot be asked.
    """
    memory = scratch / "commits.json"
    known = json.loads(memory.read_text()) if memory.exists() else {}

    def pieces(table: Table, name: str, *, cut: bool) -> list[Piece]:
        if table.files:
            return list(map(Piece, _files(table, settings, name)))
        if name not in known:
            commit = resolved(table, name)
            known[name] = commit, max(_opened(table, commit, name).num_shards, 1) if cut else 1
        commit, of = known[name]
        return [Piece(None, commit, shard, of) for shard in range(of)]

    parts, looked_up = list[Part](), dict[int, dict[str, list[Piece]]]()
    for place, source in enumerate(settings.sources):
        if source.kind == "generated":
            parts.append(Part(place))
        elif source.limit:  # counts over all pieces
            parts.append(Part(place, tuple(pieces(source, source.name, cut=False))))
        else:
            parts += [Part(place, (p,)) for p in pieces(source, source.name, cut=True)]
        if source.lookup:
            looked_up[place] = {
                name: pieces(table, f"{source.name}/{name}", cut=False)
                for name, table in source.lookup.tables.items()
            }
    replace_text(memory, json.dumps(known))
    texts = {place: scratch / f"texts-{place}.json" for place in looked_up}
    for place, path in texts.items():
        if not path.exists():
            _write_texts(path, settings.sources[place], looked_up[place], settings)
    return parts, texts


def _write_texts(
    path: Path, source: Source, pieces: Mapping[str, list[Piece]], settings: CollectSettings
) -> None:
    """Keep the texts of the lookup tables, in the order of their rows; some tens of MB."""
    texts = {
        name: [
            _storable(text_of(row.value or {}, table.text_field))
            for piece in pieces[name]
            for row in piece_rows(piece, table, Path(settings.root), f"{source.name}/{name}")
        ]
        for name, table in _lookup_tables(source).items()
    }
    replace_text(path, orjson.dumps(texts).decode())


def _lookup_tables(source: Source) -> Mapping[str, LookupTable]:
    return source.lookup.tables if source.lookup else {}


def _files(table: Table, settings: CollectSettings, name: str) -> list[Path]:
    advice = "--set data.root=DIR names the folder that holds it"
    return find_files(table.files, Path(settings.root), f"source {name!r}, files", advice)


def collected_files(settings: CollectSettings) -> list[Path]:
    """The local files that `collect` reads, whose bytes are part of its key; raises
    FileNotFoundError that names the source."""
    return [
        file
        for source in settings.sources
        for table in (source, *_lookup_tables(source).values())
        if table.files
        for file in _files(table, settings, source.name)
    ]


# ---------------------------------------------------------------- the hub


def resolved(table: Table, name: str) -> str:
    """The commit that `table.revision` stands for now; empty for a local clone.

    Raises ValueError that names the source when the hub cannot be asked.
    """
    if Path(table.dataset).is_dir():
        return ""
    if _COMMIT.fullmatch(table.revision):
        return table.revision
    from huggingface_hub import HfApi

    with _explained(table, name):
        return HfApi().dataset_info(table.dataset, revision=table.revision).sha or ""


def hub_rows(table: Table, piece: Piece, name: str) -> Iterator[Row]:
    """The rows of a piece, in order. Raises ValueError that names dataset and row."""
    rows, place = _opened(table, piece.commit, name), table.dataset
    if piece.of > 1:
        rows = rows.shard(num_shards=piece.of, index=piece.shard, contiguous=True)
        place += f" piece {piece.shard + 1} of {piece.of}"
    number = 0
    try:
        for number, value in enumerate(rows, 1):
            yield Row(place, number, dict(value))
    except Exception as error:  # a file that is no JSON, a schema that changes, a lost connection
        raise ValueError(
            f"source {name!r}: {place} cannot be read after row {number}: {why_not(error)}"
        ) from error


def _opened(table: Table, commit: str, name: str) -> Any:
    """The dataset at this commit, streamed."""
    import datasets  # takes a second, and most runs read files

    local = Path(table.dataset).is_dir()
    if table.data_files:
        base = table.dataset if local else f"hf://datasets/{table.dataset}@{commit}"
        what = [DATA_FORMATS[table.data_files[0].removesuffix(".gz").rpartition(".")[2]]]
        how: dict[str, Any] = {
            "data_files": {table.split: [f"{base}/{file}" for file in table.data_files]}
        }
    else:
        what = [table.dataset, table.config] if table.config else [table.dataset]
        how = {} if local else {"revision": commit}
    with _explained(table, name):
        return datasets.load_dataset(*what, **how, split=table.split, streaming=True)


@contextmanager
def _explained(table: Table, name: str) -> Iterator[None]:
    """The hub raises its own kinds of error: not found, gated, no network."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"source {name!r}: cannot load dataset={table.dataset} revision={table.revision} "
            f"split={table.split}: {why_not(error)}. Without a network, name local copies of its "
            f"data files in `files`"
        ) from error


def why_not(error: BaseException) -> str:
    """Why the hub did not give a dataset or a model, in a few words."""
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
    kinds = [kind.__name__ for kind in type(error).__mro__]
    for kind in kinds:
        if kind in _REASONS:
            return _REASONS[kind]
    if {"TransportError", "ConnectionError", "TimeoutError"} & set(kinds):
        return f"the hub cannot be reached ({first_line})"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the hub refuses the key in HF_TOKEN (HTTP {status})"
    return f"the hub answers HTTP {status}" if status else first_line


# ---------------------------------------------------------------- one part


def collect_part(
    part: Part, folder: Path, *, settings: CollectSettings, seed: int, texts: Mapping[int, Path]
) -> None:
    """Write the problems, rejects and counts of one part to `folder`."""
    source = settings.sources[part.source]
    tables = orjson.loads(texts[part.source].read_bytes()) if part.source in texts else {}
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
                report(0, 0, f"{source.name}: {number:,} rows")
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


def piece_rows(piece: Piece, table: Table, root: Path, name: str) -> Iterator[Row]:
    """The rows of one piece, each with its place."""
    if piece.file is None:
        return hub_rows(table, piece, name)
    return read_rows(piece.file, root, needed_columns(table) if isinstance(table, Source) else ())


def needed_columns(source: Source) -> frozenset[str]:
    """Top-level fields that the source's rows are made into problems from."""
    fields = [p.field for p in source.prompt_parts] or [source.prompt_field]
    if source.domain == "math":
        fields.append(source.answer_field)
    else:
        fields += [*source.tests_field.split("+"), source.fn_name_field, source.checker_field]
        fields += [source.time_limit_field, source.memory_field]
    if source.lookup:
        fields += [*source.lookup.table_fields, source.lookup.index_field]
    names = {f.strip().partition(".")[0] for f in (*fields, source.date_field, *source.where)}
    return frozenset(names - {""})


def _is_wanted(row: dict[str, Any], where: Mapping[str, Any]) -> bool:
    found = {name: field_of(row, name) for name in where}
    return all(
        (found[name] if isinstance(found[name], bool | int | str) else "")
        in (value if isinstance(value, tuple) else (value,))
        for name, value in where.items()
    )


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
    reason = _storable(f"{row.file} row {row.number}: {reason}")
    return Rejected(id=known_id, source=source.name, reason=reason, row=_storable(original))


def _storable(text: str) -> str:
    """Lone surrogates, which no table can hold, become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
