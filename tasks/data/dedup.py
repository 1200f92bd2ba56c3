"""Dedup: every query once (§3.1, §3.2.1); near-duplicates too, where settings ask for it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...configs.settings.data import DedupSettings
from ...eval.records.tables import row_groups
from ..engine.parts import computed_parts
from ..engine.stage import Metrics, stage
from ..store.store import SCRATCH, Artifact
from .split_rows import split_rows, table_parts

KEPT, EXACT, NEAR = range(3)
KINDS = ("kept", "exact", "near")
REASONS = ("", "same query as {}", "near-duplicate of {}")


def find_duplicates(
    source: Path, scratch: Path, settings: DedupSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Decide about every row of a table of problems. Queries are equal where their ids are, which
    are digests of the normalised prompts.

    Returns what became of each row (uint8 [N]: KEPT, EXACT or NEAR) and the first row of the same
    query or of the group (int64 [N], else itself); the verified pairs of rows that joined groups
    (int64 [P, 2]) and their similarities (float64 [P]). Parts finished below `scratch` are used.
    """
    match = _first_of_same(source)
    kind = np.where(match < np.arange(len(match)), EXACT, KEPT).astype(np.uint8)
    if not settings.near:
        return kind, match, np.zeros((0, 2), np.int64), np.zeros(0)
    # Compiled code: loading it takes longer than reading a small table.
    from .near_duplicates import PROMPTS, near_groups, sign_part

    rows = settings.runtime.rows_per_part
    compute, parts = partial(sign_part, source=source, settings=settings), table_parts(source, rows)
    signed = computed_parts(scratch / f"signed-{rows}", parts, compute, settings.runtime.workers)
    folders = list(signed)
    files = (pa.ipc.open_file(pa.memory_map(str(folder / PROMPTS))) for folder in folders)
    table = pa.concat_tables([file.read_all() for file in files])  # mapped, not copied
    left = np.flatnonzero(kind == KEPT)
    bands = table.drop(["text"]).columns
    pairs, jaccard, first = near_groups(
        table["text"], bands, left, jaccard=settings.jaccard, shingle=settings.shingle
    )
    near = left[first[left] != left]
    kind[near], match[near] = NEAR, first[near]
    return kind, match, pairs, jaccard


def _first_of_same(source: Path) -> np.ndarray:
    """The first row of the same id, for each row (int64 [N]); by sorting, which takes half the
    memory of a hash table."""
    groups = (table["id"].cast(pa.binary()).to_numpy() for table in row_groups(source, ["id"]))
    ids = np.concatenate([np.zeros(0, "S1"), *(group.astype("S") for group in groups)])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = ids[1:] != ids[:-1]
    starts = np.flatnonzero(is_first)
    match = np.empty(len(ids), np.int64)
    match[order] = np.repeat(order[starts], np.diff(starts, append=len(ids)))
    return match


@stage(version=2, group="data")
def dedup(out: Path, problems: Artifact, *, settings: DedupSettings) -> Metrics:
    """Keep the first problem of every query, in order; rejected rows name the one kept.

    With `near`, groups joined by word-shingle Jaccard ≥ `jaccard` keep their first problem as
    well. A prompt shorter than a shingle is near only to a prompt of the same words.
    `duplicates.parquet` lists each duplicate beside the problem that stands for it;
    `near_pairs.parquet` the verified pairs that joined groups.
    """
    source = problems.file("kept.parquet")
    kind, match, pairs, jaccard = find_duplicates(source, out / SCRATCH, settings)
    rows = np.flatnonzero((kind == EXACT) | (kind == NEAR))
    first = match[rows]
    kept = np.where(kind[first] == NEAR, match[first], first)
    names = _Names(source, np.unique(np.concatenate([rows, first, kept, pairs.ravel()])))
    theirs, standing = names.of(rows), names.of(kept)
    duplicates = {
        "row": rows,
        "id": theirs["id"],
        "source": theirs["source"],
        "kind": np.array(KINDS)[kind[rows]],
        "duplicate_of": standing["id"],
        "duplicate_of_row": kept,
        "duplicate_of_source": standing["source"],
    }
    pq.write_table(pa.table(duplicates), out / "duplicates.parquet", compression="zstd")
    if settings.near:
        one, two = (names.of(pairs[:, side])["id"] for side in (0, 1))
        joined = pa.table({"id": one, "duplicate_id": two, "jaccard": jaccard})
        pq.write_table(joined, out / "near_pairs.parquet", compression="zstd")

    counts = split_rows(source, _reasons(kind, match, names), out)
    rejected = {f"rejected_{KINDS[k]}": int((kind == k).sum()) for k in (EXACT, NEAR)}
    return {**counts, **rejected}


class _Names:
    """Id and source of those rows that are duplicates, or stand for one."""

    def __init__(self, source: Path, rows: np.ndarray) -> None:
        columns = {"id": pa.string(), "source": pa.string()}
        tables, before = [pa.schema(columns).empty_table()], 0
        for table in row_groups(source, [*columns]):
            some = slice(*np.searchsorted(rows, [before, before + len(table)]))
            tables.append(table.take(pa.array(rows[some] - before)))
            before += len(table)
        self._rows, self._table = rows, pa.concat_tables(tables).combine_chunks()

    def of(self, rows: np.ndarray) -> pa.Table:
        return self._table.take(np.searchsorted(self._rows, rows))

    def id(self, row: int) -> str:
        return self._table["id"][np.searchsorted(self._rows, row)].as_py()


def _reasons(kind: np.ndarray, match: np.ndarray, names: _Names) -> Iterator[tuple[int, str]]:
    """The rows that go, ascending, and why."""
    for row in np.flatnonzero(kind).tolist():
        first = int(match[row])
        reason = REASONS[kind[row]].format(names.id(first))
        if kind[row] == EXACT and kind[first] == NEAR:
            reason += ", " + REASONS[NEAR].format(names.id(int(match[first])))
        yield row, reason
