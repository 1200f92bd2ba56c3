"""Word n-grams that texts share with benchmark items: one exact index over all of them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.data.words import RULES, Normalisation

HITS_AT_ONCE = 1 << 13
_Ints = NDArray[np.int64]
_Columns = tuple[_Ints, _Ints, NDArray[np.float64], _Ints]
_NOTHING: _Columns = (np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0, int))


class Item(NamedTuple):
    """One benchmark problem."""

    benchmark: str
    id: str
    text: str


class Found(NamedTuple):
    """What a column of texts shares with the items: one entry of each array a (text, item)."""

    rows: _Ints
    """Number of the text in the column, ascending; within a text the best covered item first."""
    items: _Ints
    """Number of the item in the index."""
    coverage: NDArray[np.float64]
    """Share of the item's distinct n-grams that the text contains, in (0, 1]."""
    entries: _Ints
    """The first shared n-gram of the text, or the short item: see `NgramIndex.ngram`."""
    unreadable: list[int]
    """Numbers of the texts that are no UTF-8."""

    def best(self) -> NDArray[np.intp]:
        """Place of the best covered item of every text that shares something."""
        return np.flatnonzero(np.diff(self.rows, prepend=-1))


class NgramIndex:
    """One index over all items of all benchmarks.

    An item shorter than `n` words has no n-gram; it matches where all its words stand in the
    text in one piece. An item without any word (symbols only, under `alnum`) can match nothing
    and is listed in `wordless`.
    """

    def __init__(self, items: Iterable[Item], n: int, normalise: Normalisation) -> None:
        # The compiled modules take half a second to load, which most commands never need.
        from tasks.data import text_columns
        from tasks.data.overlaps import ngram_kernel

        if not 1 <= n <= ngram_kernel.LONGEST:
            raise ValueError(f"n = {n}: an n-gram has 1 to {ngram_kernel.LONGEST} words")
        self._find, self._read = ngram_kernel.find, text_columns.ascii_or_folded
        self.n, self.items, self._rule = n, list(items), RULES[normalise]
        self._bytes = text_columns.byte_rule(self._rule)
        texts = pa.array([item.text for item in self.items], pa.large_string())
        folded = text_columns.fold(texts, self._rule)
        self._blob, starts, ends = text_columns.buffers(folded)
        words = pc.call_function("count_substring", [folded], pc.MatchSubstringOptions(" "))
        words = np.where(starts < ends, words.to_numpy() + 1, 0)
        self.wordless = [self.items[i] for i in np.flatnonzero(words == 0)]
        self.short_items = int(np.count_nonzero((words > 0) & (words < n)))
        """How many items are matched whole."""

        room = int(words.sum())
        table = ngram_kernel.empty_table(room, len(self.items))
        seen, entry, item = np.full(room, -1), np.empty(room, int), np.empty(room, int)
        entries, pairs = ngram_kernel.enter(
            table, self._blob, starts, ends, self._bytes, n, seen, entry, item
        )
        self._table, entry, item = table, entry[:pairs], item[:pairs]
        self._whole = np.zeros(entries, np.bool_)
        self._whole[entry[words[item] < n]] = True
        # Items of entry e: _entry_items[_entry_ends[e] : _entry_ends[e + 1]]
        self._entries_of_item = np.bincount(item, minlength=len(self.items))
        self._entry_items = item[np.argsort(entry, kind="stable")]
        self._entry_ends = np.concatenate([[0], np.cumsum(np.bincount(entry, minlength=entries))])
        self._seen, self._searched = np.full(entries, -1), 0
        room = HITS_AT_ONCE + entries
        self._hits = np.empty(room, np.int64), np.empty(room, np.int64)

    def search(self, texts: pa.Array) -> Found:
        """What every text of a column shares with the items; null shares nothing.

        Raises TypeError for a column that holds no text.
        """
        read, unreadable = self._read(texts, self._rule)
        parts, first = [_NOTHING], 0
        while first < len(texts):
            first, hits = self._find(
                *read, self._bytes, self._blob, self.n, self._table,
                self._seen, self._searched, first, *self._hits,
            )  # fmt: skip
            parts.append(self._by_item(*(column[:hits] for column in self._hits)))
        self._searched += len(texts)
        rows, items, coverage, entries = map(np.concatenate, zip(*parts, strict=True))
        return Found(rows, items, coverage, entries, unreadable)

    def ngram(self, entry: int) -> str:
        """The words of an entry, with single spaces."""
        return bytes(self._blob[self._table.starts[entry] : self._table.ends[entry]]).decode()

    def is_whole(self, entries: _Ints | int) -> NDArray[np.bool_]:
        """Whether an entry is all of an item shorter than n words."""
        return self._whole[entries]

    def metrics(self) -> dict[str, float]:
        """How many items there are, and which are not found by their n-grams."""
        return {
            "items": float(len(self.items)),
            "items_matched_whole": float(self.short_items),
            "items_without_words": float(len(self.wordless)),
        }

    def _by_item(self, rows: _Ints, entries: _Ints) -> _Columns:
        """Hits (text, entry), in the order of the texts, as (text, item): see `Found`."""
        begins = self._entry_ends[entries]
        sizes = self._entry_ends[entries + 1] - begins
        hit = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(hit)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        many = max(len(self.items), 1)
        pairs = rows[hit] * many + self._entry_items[begins[hit] + within]
        unique, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        row, item = np.divmod(unique, many)
        coverage, entry = counts / self._entries_of_item[item], entries[hit[first]]
        order = np.lexsort((item, self._whole[entry], -coverage, row))
        return row[order], item[order], coverage[order], entry[order]
