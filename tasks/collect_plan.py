"""What `collect` will read, decided before it reads: pieces, commits, lookup tables."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from configs.sources import CollectSettings, LookupTable, Source, Table
from eval.card_facts import SourceFacts
from tasks.parts import computed_parts
from tasks.sources import TEXTS, Piece, pieces, write_texts

KEPT, REJECTED, COMMITS = "kept.parquet", "rejected.parquet", "commits.json"


class Part(NamedTuple):
    """Rows of one source that are read together."""

    source: int
    """Its place among the sources."""
    pieces: tuple[Piece, ...]
    last: bool
    """Of its source."""
    number: int = 0
    of: int = 1
    """Place among all parts, for the progress display."""


class LookupPart(NamedTuple):
    """One piece of a lookup table of a source."""

    source: str
    table: str
    piece: Piece


def planned(settings: CollectSettings, scratch: Path) -> tuple[list[Part], list[LookupPart]]:
    """All parts in order, and the pieces of all lookup tables.

    What the hub said is remembered below `scratch`, so that a run that goes on reads the commits
    it began with. Raises ValueError when the hub cannot be asked.
    """
    memory = _Commits(scratch / COMMITS)
    root = Path(settings.root)
    cut: list[tuple[int, tuple[Piece, ...], bool]] = []
    lookups: list[LookupPart] = []
    for place, source in enumerate(settings.sources):
        if source.kind == "generated":
            cut.append((place, (), True))
            continue
        found = memory.pieces(source, root, source.name, one=source.limit is not None)
        groups = [tuple(found)] if source.limit else [(piece,) for piece in found]
        cut += [(place, group, group is groups[-1]) for group in groups]
        for name, table in _tables(source).items():
            of_table = memory.pieces(table, root, f"{source.name}/{name}")
            lookups += [LookupPart(source.name, name, piece) for piece in of_table]
    memory.keep()
    parts = [Part(*fields, number, len(cut)) for number, fields in enumerate(cut)]
    return parts, lookups


class _Commits:
    """Commit and number of pieces of each hub table, on file once all are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[str, int]] = {}
        if path.exists():
            self._known = {n: (c, of) for n, (c, of) in json.loads(path.read_text()).items()}

    def pieces(self, table: Table, root: Path, name: str, *, one: bool = False) -> list[Piece]:
        if table.files:
            return pieces(table, root, name)
        if name not in self._known:
            found = pieces(table, root, name, one=one)
            self._known[name] = (found[0].commit, len(found))
        commit, of = self._known[name]
        return [Piece(commit=commit, shard=shard, of=of) for shard in range(of)]

    def keep(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partly = self._path.with_suffix(".partial")
        partly.write_text(json.dumps(self._known))
        os.replace(partly, self._path)


def lookup_texts(
    settings: CollectSettings, lookups: Sequence[LookupPart], scratch: Path
) -> dict[str, dict[str, list[Path]]]:
    """source → table → files of its texts in order, read now unless an earlier run did."""
    by_name = {s.name: s for s in settings.sources}
    compute = partial(_write_lookup, sources=by_name, root=Path(settings.root))
    folders = computed_parts(scratch, lookups, compute, settings.runtime.workers)
    found: dict[str, dict[str, list[Path]]] = {}
    for part, folder in zip(lookups, folders, strict=True):
        found.setdefault(part.source, {}).setdefault(part.table, []).append(folder / TEXTS)
    return found


def _write_lookup(
    part: LookupPart, folder: Path, *, sources: Mapping[str, Source], root: Path
) -> None:
    table = _tables(sources[part.source])[part.table]
    write_texts(part.piece, table, root, f"{part.source}/{part.table}", folder)


def _tables(source: Source) -> Mapping[str, LookupTable]:
    return source.lookup.tables if source.lookup else {}


def source_facts(settings: CollectSettings, parts: Sequence[Part]) -> Iterator[SourceFacts]:
    """What each source is, and the commit that was read of it."""
    commits = {p.source: p.pieces[0].commit for p in parts if p.pieces}
    for place, source in enumerate(settings.sources):
        yield SourceFacts(
            name=source.name,
            dataset=_dataset(source),
            revision=commits.get(place, ""),
            licence=source.licence,
        )


def _dataset(source: Source) -> str:
    if source.kind == "generated":
        return f"generated: {source.family}"
    if source.kind == "hub":
        return source.dataset
    return f"{source.dataset} (local files)" if source.dataset else ", ".join(source.files)
