"""What dedup needs of each prompt, computed part by part and kept on disk until it is published.

A part is some row groups of the table and holds, in row order, `digests.npy` (128 bits a prompt),
`ids.npy` (128 bits an id) and, for near-duplicates, `keys.npy` (band keys), `texts.bin` (the
folded prompts back to back) and `ends.npy` (where each ends). Memory holds one row group while a
part is made, and of all parts together the digests, the lengths and one band of keys.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from tasks.data.duplicates.first_rows import digests
from tasks.data.duplicates.folding import Folded, concatenate, fold, unfolded

if TYPE_CHECKING:  # loading its compiled code takes time that exact removal need not spend
    from tasks.data.duplicates.minhash import Banding


class PromptPart(NamedTuple):
    """Row groups first … last-1 of a table of problems."""

    source: Path
    first: int
    last: int


def prompt_parts(source: Path, rows: int) -> list[PromptPart]:
    """Cut a table into parts of at least `rows` rows (the last may have fewer)."""
    groups = pq.read_metadata(source)
    parts, first, size = [], 0, 0
    for number in range(groups.num_row_groups):
        size += groups.row_group(number).num_rows
        if size >= rows or number == groups.num_row_groups - 1:
            parts.append(PromptPart(source, first, number + 1))
            first, size = number + 1, 0
    return parts


def compute_part(part: PromptPart, folder: Path, shingle: int, banding: "Banding | None") -> None:
    """Fill `folder` with the files of a part; without `banding` the digests alone."""
    prompts, ids, keys, lengths = [], [], [], []
    with (folder / "texts.bin").open("wb") as texts:
        for folded, id_digests in _row_groups(part):
            prompts.append(digests(folded))
            ids.append(id_digests)
            if banding is not None:
                from tasks.data.duplicates.minhash import band_keys

                keys.append(band_keys(folded, shingle, banding))
                lengths.append(np.diff(folded.ends))
                texts.write(folded.data.data)
    np.save(folder / "digests.npy", np.concatenate(prompts))
    np.save(folder / "ids.npy", np.concatenate(ids))
    if banding is not None:
        np.save(folder / "keys.npy", np.concatenate(keys, axis=1))
        np.save(folder / "ends.npy", np.cumsum(np.concatenate([[0], *lengths])))


def _row_groups(part: PromptPart) -> Iterator[tuple[Folded, np.ndarray]]:
    """The folded prompts of each row group, and the digests of its ids."""
    with pq.ParquetFile(part.source) as file:
        for number in range(part.first, part.last):
            table = file.read_row_group(number, columns=["prompt", "id"], use_threads=False)
            name = "prompt"
            try:
                folded = fold(table.column(name))
                name = "id"
                yield folded, digests(unfolded(table.column(name)))
            except ValueError as error:
                raise ValueError(f"{part.source}, row group {number}, {name}: {error}") from error


class ComputedParts:
    """The parts of a table, read back as one."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._ends: list[np.ndarray] = []
        self._before = np.zeros(1, np.int64)
        self.lengths = np.zeros(0, np.int64)
        """Bytes of every folded prompt, int64 [N], after `open_texts`."""

    def digests(self, name: str) -> np.ndarray:
        """uint64 [N, 2] of the prompts (`digests`) or of the `ids`."""
        files = [np.load(f / f"{name}.npy", mmap_mode="r") for f in self._folders]
        return np.concatenate([np.zeros((0, 2), np.uint64), *files])

    def open_texts(self) -> None:
        """Learn where the texts are, once there are any."""
        self._ends = [np.load(folder / "ends.npy") for folder in self._folders]
        self._before = np.cumsum([0] + [len(e) - 1 for e in self._ends])
        self.lengths = np.concatenate([self.lengths, *map(np.diff, self._ends)])

    def band(self, number: int) -> np.ndarray:
        """Keys of one band: uint64 [N]."""
        keys = [np.load(f / "keys.npy", mmap_mode="r")[number] for f in self._folders]
        return np.concatenate([np.zeros(0, np.uint64), *keys])

    def texts(self, rows: np.ndarray) -> Folded:
        """The texts of ascending `rows`, none of them empty."""
        cuts = np.searchsorted(rows, self._before)
        found = []
        for number, folder in enumerate(self._folders):
            wanted = rows[cuts[number] : cuts[number + 1]] - self._before[number]
            if len(wanted):
                data = np.asarray(np.memmap(folder / "texts.bin", np.uint8, "r"))
                found.append(Folded(data, self._ends[number]).take(wanted))
        return concatenate(found)
