"""Dedup: every query once (§3.1, §3.2.1); near-duplicates too, where settings ask for it."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.data_stages import DedupSettings
from eval.tables import row_groups
from tasks.parts import computed_parts
from tasks.split_rows import split_rows
from tasks.stage import Metrics, stage
from tasks.store import SCRATCH, Artifact

KEPT, EXACT, ID, NEAR = range(4)


class Verdicts(NamedTuple):
    """For every row what became of it, and the row it was compared with."""

    kind: np.ndarray
    """uint8 [N]: KEPT, EXACT, ID or NEAR."""
    match: np.ndarray
    """int64 [N]: the first row of the same query, of the same id, or of the group; else itself."""
    pairs: np.ndarray
    """int64 [P, 2]: the verified pairs that joined the groups of near-duplicates."""
    jaccard: np.ndarray
    """float64 [P]."""

    def kept_row(self, rows: np.ndarray) -> np.ndarray:
        """The kept row that stands for each of `rows`, which are duplicates."""
        first = self.match[rows]
        return np.where(self.kind[first] == NEAR, self.match[first], first)

    def mentioned(self) -> np.ndarray:
        """Rows that go, and those that they are compared with."""
        gone = np.flatnonzero(self.kind)
        first = self.match[gone]
        return np.concatenate([gone, first, self.match[first], self.pairs.ravel()])


def find_duplicates(source: Path, scratch: Path, settings: DedupSettings) -> Verdicts:
    """Decide about every row of a table of problems, reading its prompts and ids alone.

    Queries are equal when `normalise_prompt` makes them equal. Parts finished below `scratch` by
    an earlier run are used. Raises ValueError for a row without a prompt.
    """
    # Compiled code: loading it takes longer than reading a small table.
    from tasks.prompt_parts import ComputedParts, compute_part, prompt_parts

    runtime, banding = settings.runtime, None
    if settings.near:
        from tasks.near_duplicates import Banding

        banding = Banding.for_threshold(settings.jaccard, settings.permutations)
    compute = partial(compute_part, shingle=settings.shingle, banding=banding)
    cut = prompt_parts(source, runtime.rows_per_part)
    place = scratch / f"prompts-{runtime.rows_per_part}"
    parts = ComputedParts(list(computed_parts(place, cut, compute, runtime.workers)))

    kind, match = same_queries(parts.digests("digests"), parts.digests("ids"))
    if banding is None:
        return Verdicts(kind, match, np.zeros((0, 2), np.int64), np.zeros(0))
    from tasks.near_duplicates import near_groups

    parts.open_texts()
    left = np.flatnonzero(kind == KEPT)
    pairs, first = near_groups(
        parts, left, bands=banding.bands, jaccard=settings.jaccard, shingle=settings.shingle
    )
    near = left[first[left] != left]
    kind[near], match[near] = NEAR, first[near]
    return Verdicts(kind, match, *pairs)


def same_queries(prompts: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`kind` and `match` of every row by the digests [N, 2] of its prompt and its id.

    A row whose id an earlier row gave to another query is rejected, for later stages join by id;
    it stands for no other row of its own query.
    """
    from tasks.first_rows import first_rows

    kind, match = np.zeros(len(prompts), np.uint8), np.arange(len(prompts))
    rows = match.copy()
    while True:
        match[rows] = first_rows(prompts, rows)
        kept = rows[match[rows] == rows]
        first = first_rows(ids, kept)
        repeated = kept[first != kept]
        kind[repeated], match[repeated] = ID, first[first != kept]
        if not len(repeated):
            break
        rows = np.flatnonzero(kind == KEPT)
    kind[rows[match[rows] != rows]] = EXACT
    return kind, match


class Names:
    """Ids and sources of the rows that a report mentions, read in one pass."""

    def __init__(self, source: Path, rows: np.ndarray) -> None:
        self._rows = np.unique(rows)
        columns = ["id", "source"]
        found, before = [pq.read_schema(source).empty_table().select(columns)], 0
        for table in row_groups(source, columns):
            first, last = np.searchsorted(self._rows, [before, before + len(table)])
            found.append(table.take(pa.array(self._rows[first:last] - before)))
            before += len(table)
        self._table = pa.concat_tables(found).combine_chunks()

    def of(self, rows: np.ndarray) -> pa.Table:
        """`id` and `source` of `rows`, in their order."""
        return self._table.take(pa.array(np.searchsorted(self._rows, rows)))

    def id(self, row: int) -> str:
        return self._table["id"][int(np.searchsorted(self._rows, row))].as_py()


class Reasons(Mapping[int, str]):
    """Row → why it goes, for the rows that do; the text is made when it is asked for."""

    def __init__(self, verdicts: Verdicts, names: Names) -> None:
        self._match, self._names = verdicts.match, names
        self._kind = verdicts.kind.tobytes()
        self._rows = np.flatnonzero(verdicts.kind)

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and self._kind[row] != KEPT

    def __getitem__(self, row: int) -> str:
        if row not in self:
            raise KeyError(row)
        first = int(self._match[row])
        if self._kind[row] == ID:
            return f"id {self._names.id(first)} already names another query"
        if self._kind[row] == NEAR:
            return f"near-duplicate of {self._names.id(first)}"
        same = f"same query as {self._names.id(first)}"
        return f"{same}, {self[first]}" if self._kind[first] == NEAR else same

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows.tolist())

    def __len__(self) -> int:
        return len(self._rows)


def duplicate_table(verdicts: Verdicts, names: Names) -> pa.Table:
    """One line a duplicate, in row order, beside the kept problem that stands for it."""
    rows = np.flatnonzero((verdicts.kind == EXACT) | (verdicts.kind == NEAR))
    kept = verdicts.kept_row(rows)
    theirs, standing = names.of(rows), names.of(kept)
    kinds = pa.array(["", "exact", "", "near"]).take(pa.array(verdicts.kind[rows]))
    return pa.table(
        {
            "row": rows,
            "id": theirs["id"],
            "source": theirs["source"],
            "kind": kinds,
            "duplicate_of": standing["id"],
            "duplicate_of_row": kept,
            "duplicate_of_source": standing["source"],
        }
    )


def pair_table(verdicts: Verdicts, names: Names) -> pa.Table:
    """The pairs that joined groups of near-duplicates."""
    first, second = (names.of(verdicts.pairs[:, i])["id"] for i in (0, 1))
    return pa.table({"id": first, "duplicate_id": second, "jaccard": verdicts.jaccard})


@stage(version=2)
def dedup(out: Path, problems: Artifact, *, settings: DedupSettings) -> Metrics:
    """Keep the first problem of every query, in order; rejected rows name the one kept.

    With `near`, groups joined by word-shingle Jaccard ≥ `jaccard` keep their first problem as
    well. A prompt shorter than a shingle is near only to a prompt of the same words.
    `duplicates.parquet` lists each duplicate beside the problem that stands for it;
    `near_pairs.parquet` the verified pairs that joined groups.
    """
    source = problems.file("kept.parquet")
    verdicts = find_duplicates(source, out / SCRATCH, settings)
    names = Names(source, verdicts.mentioned())
    duplicates = duplicate_table(verdicts, names)
    pq.write_table(duplicates, out / "duplicates.parquet", compression="zstd")
    if settings.near:
        pairs = pair_table(verdicts, names)
        pq.write_table(pairs, out / "near_pairs.parquet", compression="zstd")
    counts = split_rows(source, Reasons(verdicts, names), out)
    kinds = {"exact": EXACT, "id": ID, "near": NEAR}
    return {
        **counts.metrics(),
        **{f"rejected_{n}": float(np.count_nonzero(verdicts.kind == k)) for n, k in kinds.items()},
    }
