"""Word n-grams that texts share with benchmark items: one exact index over all of them.

The compiled loops of `ngram_kernel` hash words where they lie in an Arrow column and compare what
the hashes propose byte by byte; texts become Python objects only where something is shared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.words import Normalisation

if TYPE_CHECKING:
    from tasks import ngram_texts

HITS_AT_ONCE = 1 << 16
PAIRS_AT_ONCE = 1 << 20

_Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]
_NOTHING: _Columns = (np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0, int))


class Item(NamedTuple):
    """One benchmark problem."""

    benchmark: str
    id: str
    text: str


class Overlap(NamedTuple):
    """What a text shares with one item."""

    item: Item
    ngram: str
    """The first shared n-gram of the text; all words of an item shorter than n."""
    coverage: float
    """Share of the item's distinct n-grams that the text contains, in (0, 1]."""
    whole_item: bool
    """The item is shorter than n words and was found whole."""


class Found(NamedTuple):
    """What a column of texts shares with the items: one entry of each array a (text, item)."""

    rows: NDArray[np.int64]
    """Number of the text in the column, ascending; within a text the best covered item first."""
    items: NDArray[np.int64]
    """Number of the item in the index."""
    coverage: NDArray[np.float64]
    """Share of the item's distinct n-grams that the text contains, in (0, 1]."""
    entries: NDArray[np.int64]
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
        from tasks import ngram_kernel, ngram_texts

        if not 1 <= n <= ngram_kernel.LONGEST:
            raise ValueError(f"n = {n}: an n-gram has 1 to {ngram_kernel.LONGEST} words")
        self.n = n
        self.items = list(items)
        self._kernel = ngram_kernel
        self._reader = ngram_texts.Reader(normalise)
        words, starts, ends = self._normalise_items()
        self.wordless = [item for item, count in zip(self.items, words, strict=True) if not count]
        self._enter_ngrams(np.flatnonzero(words >= n), starts, ends, int(words.sum()))
        self._enter_short(np.flatnonzero((words > 0) & (words < n)), starts, ends)
        self._seen = np.full(len(self._grams.starts) + len(self._short_items), -1, np.int64)
        self._searched = 0
        room = HITS_AT_ONCE + len(self._seen)
        self._hits = np.empty(room, np.int64), np.empty(room, np.int64)

    @property
    def short_items(self) -> int:
        """How many items are matched whole."""
        return len(self._short_items)

    def overlaps(self, text: str) -> list[Overlap]:
        """All items that one text shares an n-gram with, the best covered first."""
        found = self.search(pa.array([text], pa.large_string()))
        return [
            Overlap(self.items[i], self.ngram(e), c, self.is_whole(e))
            for i, c, e in zip(
                *(a.tolist() for a in (found.items, found.coverage, found.entries)), strict=True
            )
        ]

    def search(self, texts: pa.Array) -> Found:
        """What every text of a column shares with the items; null shares nothing.

        Raises TypeError for a column that holds no text.
        """
        pieces, unreadable = self._reader.read(texts)
        found = [part for piece in pieces for part in self._search(piece)] or [_NOTHING]
        rows, items, coverage, entries = map(np.concatenate, zip(*found, strict=True))
        if len(pieces) > 1:
            order = np.argsort(rows, kind="stable")
            rows, items, coverage, entries = (a[order] for a in (rows, items, coverage, entries))
        return Found(rows, items, coverage, entries, unreadable)

    def ngram(self, entry: int) -> str:
        """The words of an entry, with single spaces."""
        grams = len(self._grams.starts)
        table, number = (self._grams, entry) if entry < grams else (self._short, entry - grams)
        return bytes(self._blob[table.starts[number] : table.ends[number]]).decode()

    def is_whole(self, entry: int) -> bool:
        """Whether an entry is all of an item shorter than n words."""
        return entry >= len(self._grams.starts)

    def metrics(self) -> dict[str, float]:
        """How many items there are, and which are not found by their n-grams."""
        return {
            "items": float(len(self.items)),
            "items_matched_whole": float(self.short_items),
            "items_without_words": float(len(self.wordless)),
        }

    def _search(self, texts: "ngram_texts.Texts") -> Iterator[_Columns]:
        first = 0
        while first < len(texts.rows):
            hit_text, hit_entry = self._hits
            first, hits = self._kernel.find(
                texts.data, texts.starts, texts.ends, self._reader.rule,
                self._blob, self.n, self._grams, self._short, self._short_places,
                self._seen, self._searched, first, hit_text, hit_entry,
            )  # fmt: skip
            rows, entries = texts.rows[hit_text[:hits]], hit_entry[:hits].copy()
            for start, stop in self._blocks(rows, entries):
                yield self._overlaps(rows[start:stop], entries[start:stop])
        self._searched += len(texts.rows)

    def _normalise_items(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """All items as words with single spaces in `_blob`; their word counts and places."""
        texts = pa.array([item.text for item in self.items], pa.large_string())
        pieces, _ = self._reader.read(texts)
        words, starts, ends = (np.zeros(len(self.items), np.int64) for _ in range(3))
        blobs, before = [], 0
        for piece in pieces:
            blob = np.empty(int((piece.ends - piece.starts).sum()), np.uint8)
            counts, begins, stops = (np.empty(len(piece.rows), np.int64) for _ in range(3))
            used = self._kernel.normalise(
                blob, begins, stops, counts, piece.data, piece.starts, piece.ends, self._reader.rule
            )
            blobs.append(blob[:used])
            words[piece.rows] = counts
            starts[piece.rows], ends[piece.rows] = begins + before, stops + before
            before += used
        self._blob = np.concatenate([np.zeros(0, np.uint8), *blobs])
        self._blob.flags.writeable = False
        return words, starts, ends

    def _enter_ngrams(
        self, long: NDArray[np.intp], starts: NDArray[np.int64], ends: NDArray[np.int64], room: int
    ) -> None:
        table = self._kernel.empty_table(room)
        seen, pair_gram, pair_item = np.full(room, -1), np.empty(room, int), np.empty(room, int)
        grams, pairs = self._kernel.enter_ngrams(
            table, self._blob, starts[long], ends[long], self._reader.rule, self.n,
            seen, pair_gram, pair_item,
        )  # fmt: skip
        pair_gram, pair_item = pair_gram[:pairs], long[pair_item[:pairs]]
        self._grams = table.of_size(grams)
        self._gram_count = np.bincount(pair_item, minlength=len(self.items))
        # Items of gram g: _gram_items[_gram_ends[g] : _gram_ends[g + 1]]
        self._gram_items = pair_item[np.argsort(pair_gram, kind="stable")]
        self._gram_ends = np.zeros(grams + 1, np.int64)
        np.cumsum(np.bincount(pair_gram, minlength=grams), out=self._gram_ends[1:])

    def _enter_short(
        self, short: NDArray[np.intp], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        """Enter the short items, each under its rarest word: what is looked for in a text."""
        self._short_items = short
        self._short = self._kernel.empty_table(len(short))
        texts = [bytes(self._blob[starts[item] : ends[item]]).split() for item in short]
        frequency = Counter(word for words in texts for word in words)
        places = [
            min(range(len(words)), key=lambda i, w=words: (frequency[w[i]], -len(w[i])))
            for words in texts
        ]
        for entry, (item, words, place) in enumerate(zip(short, texts, places, strict=True)):
            begin = starts[item] + sum(len(word) + 1 for word in words[:place])
            self._kernel.enter_by_word(
                self._short, entry, self._blob, starts[item], ends[item],
                begin, begin + len(words[place]),
            )  # fmt: skip
        self._short_places = np.array(places, np.int64)

    def _blocks(
        self, rows: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> Iterator[tuple[int, int]]:
        """Ranges of hits, each whole texts, of not many more than PAIRS_AT_ONCE (text, item)."""
        if not len(rows):
            return
        long = entries < len(self._grams.starts)
        items = np.ones(len(rows), np.int64)
        items[long] = np.diff(self._gram_ends)[entries[long]]
        last_of_text = np.append(np.flatnonzero(np.diff(rows)), len(rows) - 1)
        block = np.cumsum(items)[last_of_text] // PAIRS_AT_ONCE
        stops = last_of_text[np.append(np.flatnonzero(np.diff(block)), len(block) - 1)] + 1
        yield from zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True)

    def _overlaps(self, rows: NDArray[np.int64], entries: NDArray[np.int64]) -> _Columns:
        """Hits (text, n-gram or short item), in the order of the texts, as (text, item)."""
        grams = len(self._grams.starts)
        long, whole = np.flatnonzero(entries < grams), np.flatnonzero(entries >= grams)
        gram_rows, gram_items, firsts, counts = self._items_of(rows[long], entries[long])
        row = np.concatenate([gram_rows, rows[whole]])
        item = np.concatenate([gram_items, self._short_items[entries[whole] - grams]])
        coverage = np.concatenate([counts / self._gram_count[gram_items], np.ones(len(whole))])
        entry = np.concatenate([firsts, entries[whole]])
        order = np.lexsort((item, entry >= grams, -coverage, row))
        return row[order], item[order], coverage[order], entry[order]

    def _items_of(
        self, rows: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For every (text, item) that share n-grams: both, the first such n-gram, how many."""
        begins = self._gram_ends[entries]
        sizes = self._gram_ends[entries + 1] - begins
        hit = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(hit)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        item = self._gram_items[begins[hit] + within]
        pairs = rows[hit] * len(self.items) + item
        unique, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        row, of_item = np.divmod(unique, max(len(self.items), 1))
        return row, of_item, entries[hit[first]], counts
