"""Word n-grams that texts share with benchmark items: one exact index over all of them.

The compiled loops of `ngram_kernel` hash words where they lie in an Arrow column and compare what
the hashes propose byte by byte. Words beyond ASCII take the Python rule of `words`, once for each
that occurs, and are put into the text before it is searched.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.data.overlaps.words import RULES, Normalisation

HITS_AT_ONCE = 1 << 13
FOREIGN_WORDS = 1 << 16
"""Words beyond ASCII that are remembered in their folded form."""
_TEXT_TYPES = ("string", "large_string", "binary", "large_binary")
_Ints = NDArray[np.int64]
_Columns = tuple[_Ints, _Ints, NDArray[np.float64], _Ints]
_NOTHING: _Columns = (np.zeros(0, int), np.zeros(0, int), np.zeros(0), np.zeros(0, int))


class Item(NamedTuple):
    """One benchmark problem."""

    benchmark: str
    id: str
    text: str


class _Texts(NamedTuple):
    """Text i is data[starts[i]:ends[i]], and number rows[i] of the column it comes from."""

    rows: _Ints
    data: NDArray[np.uint8]
    starts: _Ints
    ends: _Ints


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
        # The compiled module takes half a second to load, which most commands never need.
        from tasks.data.overlaps import ngram_kernel

        if not 1 <= n <= ngram_kernel.LONGEST:
            raise ValueError(f"n = {n}: an n-gram has 1 to {ngram_kernel.LONGEST} words")
        self._kernel, self.n, self.items = ngram_kernel, n, list(items)
        self._rule = _byte_rule(normalise)
        words_of = RULES[normalise]

        def folded(word: bytes) -> bytes | None:
            try:
                return " ".join(words_of(word.decode())).encode()
            except UnicodeDecodeError:
                return None

        self._folded = lru_cache(FOREIGN_WORDS)(folded)
        words = [words_of(item.text) for item in self.items]
        texts = [" ".join(some).encode() for some in words]
        self._blob = np.frombuffer(b" ".join(texts) or b" ", np.uint8)
        ends = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64) - 1
        starts = ends - np.array([len(text) for text in texts], np.int64)
        counts = np.array([len(some) for some in words], np.int64)
        self.wordless = [item for item, some in zip(self.items, words, strict=True) if not some]
        long, short = np.flatnonzero(counts >= n), np.flatnonzero((counts > 0) & (counts < n))
        gram, of_item = self._enter_ngrams(long, starts, ends, int(counts.sum()))
        self._enter_short(short, [words[i] for i in short], starts, ends)
        # Items of entry e: _entry_items[_entry_ends[e] : _entry_ends[e + 1]]
        entries = len(self._grams.starts) + len(short)
        owned = np.concatenate([gram, np.arange(len(self._grams.starts), entries)])
        owner = np.concatenate([of_item, short])
        self._entries_of_item = np.bincount(owner, minlength=len(self.items))
        self._entry_items = owner[np.argsort(owned, kind="stable")]
        sizes = np.bincount(owned, minlength=entries)
        self._entry_ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._seen = np.full(entries, -1, np.int64)
        self._searched = 0
        room = HITS_AT_ONCE + entries
        self._hits = np.empty(room, np.int64), np.empty(room, np.int64)

    @property
    def short_items(self) -> int:
        """How many items are matched whole."""
        return len(self._short.starts)

    def search(self, texts: pa.Array) -> Found:
        """What every text of a column shares with the items; null shares nothing.

        Raises TypeError for a column that holds no text.
        """
        data, starts, ends = _buffers(texts)
        rows = np.arange(len(starts))
        pieces, unreadable = [_Texts(rows, data, starts, ends)], list[int]()
        spans = self._foreign_words(pieces[0])
        if len(spans[0]):
            plain = np.delete(rows, spans[0])
            folded, unreadable = self._fold(pieces[0], spans)
            pieces = [_Texts(plain, data, starts[plain], ends[plain]), folded]
        parts = [part for piece in pieces for part in self._search(piece)] or [_NOTHING]
        found = list(map(np.concatenate, zip(*parts, strict=True)))
        if len(pieces) > 1:
            order = np.argsort(found[0], kind="stable")
            found = [column[order] for column in found]
        rows, items, coverage, entries = found
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

    def _enter_ngrams(
        self, long: _Ints, starts: _Ints, ends: _Ints, room: int
    ) -> tuple[_Ints, _Ints]:
        """Fill the table of n-grams; every distinct (n-gram, item)."""
        table = self._kernel.empty_table(room)
        seen, gram, text = np.full(room, -1), np.empty(room, int), np.empty(room, int)
        grams, pairs = self._kernel.enter_ngrams(
            table, self._blob, starts[long], ends[long], self._rule, self.n, seen, gram, text
        )
        self._grams = table._replace(
            hashes=table.hashes[:grams], starts=table.starts[:grams], ends=table.ends[:grams]
        )
        return gram[:pairs], long[text[:pairs]]

    def _enter_short(
        self, short: _Ints, words: list[list[str]], starts: _Ints, ends: _Ints
    ) -> None:
        """Enter the short items, each under its rarest word: what is looked for in a text."""
        frequency = Counter(word for some in words for word in some)
        places = [
            min(range(len(some)), key=lambda i, s=some: (frequency[s[i]], -len(s[i])))
            for some in words
        ]
        before = [
            sum(len(w.encode()) + 1 for w in s[:p]) for s, p in zip(words, places, strict=True)
        ]
        self._short = self._kernel.empty_table(len(short))
        self._short_places = np.array(places, np.int64)
        begins = starts[short] + np.array(before, np.int64)
        self._kernel.enter_by_word(
            self._short, self._blob, starts[short], ends[short], begins, self._rule
        )

    def _foreign_words(self, texts: _Texts) -> list[_Ints]:
        """(text, start, end) of all words that are not all ASCII, by `foreign_words`."""
        room, found = 0, FOREIGN_WORDS
        while found > room:
            room = found
            spans = [np.empty(room, np.int64) for _ in range(3)]
            found = self._kernel.foreign_words(texts.data, texts.starts, texts.ends, *spans)
        return [column[:found] for column in spans]

    def _fold(self, texts: _Texts, spans: list[_Ints]) -> tuple[_Texts, list[int]]:
        """The texts of `spans` with these words folded; and the numbers of those not UTF-8."""
        view, rows, folded, unreadable = texts.data.data, list[int](), list[bytes](), []
        words = zip(*(column.tolist() for column in spans), strict=True)
        for text, mine in groupby(words, key=itemgetter(0)):
            at, pieces = int(texts.starts[text]), []
            for _, first, last in mine:
                pieces += (view[at:first], self._folded(view[first:last].tobytes()))
                at = last
            if None in pieces:
                unreadable.append(text)
            else:
                rows.append(text)
                folded.append(b"".join([*pieces, view[at : int(texts.ends[text])]]))
        data, starts, ends = _buffers(pa.array(folded, pa.large_binary()))
        return _Texts(np.array(rows, np.int64), data, starts, ends), unreadable

    def _search(self, texts: _Texts) -> Iterator[_Columns]:
        first = 0
        while first < len(texts.rows):
            hit_text, hit_entry = self._hits
            first, hits = self._kernel.find(
                texts.data, texts.starts, texts.ends, self._rule,
                self._blob, self.n, self._grams, self._short, self._short_places,
                self._seen, self._searched, first, hit_text, hit_entry,
            )  # fmt: skip
            yield self._by_item(texts.rows[hit_text[:hits]], hit_entry[:hits])
        self._searched += len(texts.rows)

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
        order = np.lexsort((item, entry >= len(self._grams.starts), -coverage, row))
        return row[order], item[order], coverage[order], entry[order]


def _byte_rule(normalise: Normalisation) -> NDArray[np.uint8]:
    """What each byte counts as: a letter's lower case, or 32 for what separates words."""
    ascii_part = ["".join(RULES[normalise](chr(byte))) or " " for byte in range(128)]
    return np.frombuffer("".join(ascii_part).encode() + bytes(range(128, 256)), np.uint8)


def _buffers(column: pa.Array) -> tuple[NDArray[np.uint8], _Ints, _Ints]:
    """The bytes of a text column and where each text starts and ends; null is empty."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not any(getattr(pa.types, f"is_{name}")(column.type) for name in _TEXT_TYPES):
        raise TypeError(f"a column of {column.type} holds no text")
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets or bytes(8), np.int64)
    places = places[column.offset : column.offset + len(column) + 1]
    ends = np.where(np.asarray(column.is_null()), places[:-1], places[1:])
    return np.frombuffer(data or b"", np.uint8), places[:-1].copy(), ends
