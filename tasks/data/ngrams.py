"""Word n-grams that texts share with benchmark items: one index over all of them.

Words are hashed where they lie in a UTF-8 buffer. The hash of some words in a row is that of a
polynomial, so that the words between two places have one that follows from what was hashed up to
each. Hashes of 64 bits stand for the words: a wrong n-gram is found in a corpus of 10⁹ words with
probability 10⁻⁵ for every 10⁵ n-grams of the items.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from .text_columns import BYTES, PLACES, SPACE, byte_rule, compiled, normalized_buffers
from .tokenize import RULES, Normalisation

LONGEST = 32
"""The most words an n-gram can have."""


class Item(NamedTuple):
    """One benchmark problem."""

    benchmark: str
    id: str
    text: str


class Matches(NamedTuple):
    """What a column of texts shares with the items: one entry of each array a (text, item)."""

    rows: NDArray[np.int64]
    """Number of the text in the column, ascending; within a text the best covered item first."""
    items: NDArray[np.int64]
    """Number of the item in the index."""
    coverage: NDArray[np.float64]
    """Share of the item's distinct n-grams that the text contains, in (0, 1]."""
    entries: NDArray[np.int64]
    """The first shared n-gram of the text, or the short item: see `NgramIndex.ngram`."""

    def best(self) -> NDArray[np.intp]:
        """Place of the best covered item of every text that shares something."""
        return np.flatnonzero(np.diff(self.rows, prepend=-1))


class NgramIndex:
    """One index over all items of all benchmarks. An entry is an n-gram, or a short item.

    An item shorter than `n` words has no n-gram; it matches where all its words stand in the
    text in one piece. An item of fewer than `min_words` matches nothing, nor does one without any
    word (symbols only, under `alnum`).
    """

    def __init__(
        self, items: Iterable[Item], n: int, normalise: Normalisation, min_words: int = 1
    ) -> None:
        self.n, self.items, self._rule = n, list(items), RULES[normalise]
        self._bytes = byte_rule(self._rule)
        self._words_of = cache(lambda item: self._rule(self.items[item].text))
        read = [item.text for item in self.items]
        if min_words > 1:
            long = (len(self._words_of(item)) >= min_words for item in range(len(read)))
            read = [text if enough else "" for text, enough in zip(read, long, strict=True)]
        texts = pa.array(read, pa.large_string())
        read = normalized_buffers(texts, self._rule)
        room, words = len(read.data), np.zeros(len(texts), np.int64)
        hashes, item, place = np.empty(room, np.uint64), np.empty(room, int), np.empty(room, int)
        short = np.zeros(1 << (8 * len(words) + 1).bit_length(), np.uint64)
        grams = _list_ngrams(*read, self._bytes, n, words, short, hashes, item, place)
        self.wordless = int(np.count_nonzero(words == 0))
        """How many items match nothing: they have no words, or fewer than `min_words`."""
        self.short_items = int(np.count_nonzero((words > 0) & (words < n)))
        """How many items are matched whole."""
        # By value, equal ones in order: NumPy sorts 16 bits at a time in a third of the time of 64.
        order = np.lexsort(hashes[:grams].view(np.uint16).reshape(-1, 4).T)
        hashes, item, place = hashes[order], item[order], place[order]
        first = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))
        self._places = item[first], place[first]
        self.whole = words[item[first]] < n
        """By entry: it is all of an item shorter than n words."""
        entry = np.repeat(np.arange(len(first)), np.diff(first, append=grams))
        once = (np.diff(entry, prepend=-1) > 0) | (np.diff(item, prepend=-1) > 0)
        # Items of entry e: _entry_items[_entry_ends[e] : _entry_ends[e + 1]]
        self._entry_items = item[once]
        self._entry_ends = np.concatenate([[0], np.cumsum(np.bincount(entry[once]))])
        self._entries_of_item = np.bincount(item[once], minlength=len(words))
        hashes = hashes[first]
        bits = np.zeros(1 << (len(hashes) * _BITS_PER_ENTRY // 64).bit_length(), np.uint64)
        np.bitwise_or.at(bits, hashes & np.uint64(len(bits) - 1), _two_bits.py_func(hashes))
        self._table = hashes, bits, short
        self._hits = np.empty((2, 1 << 12), np.int64)

    def search(self, texts: pa.Array) -> Matches:
        """What every text of a column shares with the items; null shares nothing."""
        read, many = normalized_buffers(texts, self._rule), max(len(self.items), 1)
        while (total := _find(*read, self._bytes, self.n, *self._table, *self._hits)) > len(
            self._hits[0]
        ):
            self._hits = np.empty((2, total), np.int64)
        rows, entries = self._hits[:, :total]
        begins = self._entry_ends[entries]
        sizes = self._entry_ends[entries + 1] - begins
        hit = np.repeat(np.arange(len(rows)), sizes)
        within = np.arange(len(hit)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        pairs = rows[hit] * many + self._entry_items[begins[hit] + within]
        unique, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        row, item = np.divmod(unique, many)
        coverage, entry = counts / self._entries_of_item[item], entries[hit[first]]
        order = np.lexsort((item, self.whole[entry], -coverage, row))
        return Matches(row[order], item[order], coverage[order], entry[order])

    def ngram(self, entry: int) -> str:
        """The words of an entry, with single spaces."""
        item, place = (int(of_entry[entry]) for of_entry in self._places)
        return " ".join(self._words_of(item)[place : place + self.n])


_REMEMBERED = 2 * LONGEST  # words back, a power of two
_BITS_PER_ENTRY = 32  # of the bitmap, two of them set: one in 200 of what is not there gets past it
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_MIX = np.uint64(0x9E3779B97F4A7C15)
_POWERS = np.cumprod(np.array([1] + [0xD1342543DE82EF95] * LONGEST, np.uint64))
_BASE = _POWERS[1]
# Places are unsigned throughout: numba asks of every signed one whether it counts from the end.
_0, _1, _32, _52, _58, _63 = (np.uint64(k) for k in (0, 1, 32, 52, 58, 63))
_BACK = np.uint64(_REMEMBERED - 1)
_INT, _U8, _I8, _HASHES = types.int64, types.uint64, types.int64[::1], types.uint64[::1]


@compiled(_U8(_U8))
def _two_bits(hashed: Any) -> Any:
    """The bits of an entry in its word of the bitmap: one look at memory answers for both."""
    return (_1 << (hashed >> _58)) | (_1 << ((hashed >> _52) & _63))


@compiled(_U8(_U8))
def _mixed(hashed: Any) -> Any:
    hashed = hashed * _MIX
    return hashed ^ (hashed >> _32)


@compiled(types.UniTuple(_U8, 3)(BYTES, _U8, _U8, BYTES))
def _next_word(data: Any, at: Any, end: Any, rule: Any) -> Any:
    """Where the next word starts (`end`: there is none), the place after it, and its hash."""
    while at < end and rule[data[at]] == SPACE:
        at += _1
    first, word = at, _BASIS
    while at < end:
        char = rule[data[at]]
        if char == SPACE:
            break
        word = (word ^ np.uint64(char)) * _PRIME
        at += _1
    return first, at, word


@compiled(_INT(BYTES, PLACES, PLACES, BYTES, _INT, _I8, _HASHES, _HASHES, _I8, _I8))
def _list_ngrams(
    data: Any, starts: Any, ends: Any, rule: Any, n: Any,
    words: Any, short: Any, hashes: Any, texts: Any, places: Any,
) -> Any:  # fmt: skip
    """List the n-grams of the texts; one of fewer than n words counts as one, whole.

    Writes how many words each text has, and the hash of each n-gram, its text and its place among
    the words there; returns how many n-grams. In `short`, at the place of a word's hash, bit k says
    that a text of k words, fewer than n, ends in it.
    """
    prefixes = np.zeros(_REMEMBERED, np.uint64)
    matched, length = 0, np.uint64(n)
    for text in range(starts.size):
        count, prefix, last = _0, _0, _0
        at, end = np.uint64(starts[text]), np.uint64(ends[text])
        while True:
            prefixes[count & _BACK] = prefix
            first, at, word = _next_word(data, at, end, rule)
            if first >= end:
                break
            count += _1
            prefix, last = prefix * _BASE + word, word
            if count >= length:
                before = prefixes[(count - length) & _BACK]
                hashes[matched] = _mixed(prefix - before * _POWERS[length])
                texts[matched], places[matched] = text, count - length
                matched += 1
        words[text] = count
        if _0 < count < length:
            short[_mixed(last) & np.uint64(short.size - 1)] |= _1 << count
            hashes[matched], texts[matched], places[matched] = _mixed(prefix), text, 0
            matched += 1
    return matched


@compiled(_INT(BYTES, PLACES, PLACES, BYTES, _INT, _HASHES, _HASHES, _HASHES, _I8, _I8))
def _find(
    data: Any, starts: Any, ends: Any, rule: Any, n: Any, hashes: Any, bits: Any, short: Any,
    rows: Any, entries: Any,
) -> Any:  # fmt: skip
    """Look for all entries, by their sorted hashes, in the texts: `bits` mostly says no.

    A hit is (text, entry), each once, in the order of the texts and of their words. Returns how
    many there are, of which only as many are listed as fit.
    """
    prefixes, seen = np.zeros(_REMEMBERED, np.uint64), np.full(hashes.size, -1)
    hits, length = 0, np.uint64(n)
    bit_mask, short_mask = np.uint64(bits.size - 1), np.uint64(short.size - 1)
    for text in range(starts.size):
        count, prefix = _0, _0
        at, end = np.uint64(starts[text]), np.uint64(ends[text])
        while True:
            prefixes[count & _BACK] = prefix
            first, at, word = _next_word(data, at, end, rule)
            if first >= end:
                break
            count += _1
            prefix = prefix * _BASE + word
            sizes = short[_mixed(word) & short_mask] | (_1 << length)
            size = length if sizes == _1 << length else _1
            while size <= min(length, count):
                if (sizes >> size) & _1:
                    before = prefixes[(count - size) & _BACK]
                    hashed = _mixed(prefix - before * _POWERS[size])
                    both = _two_bits(hashed)
                    if bits[hashed & bit_mask] & both == both:
                        entry = np.searchsorted(hashes, hashed)
                        in_table = entry < hashes.size and hashes[entry] == hashed
                        if in_table and seen[entry] != text:
                            seen[entry] = text
                            if hits < rows.size:
                                rows[hits], entries[hits] = text, entry
                            hits += 1
                size += _1
    return hits
