"""Word n-grams that texts share with benchmark items: one exact index over all of them.

Words are hashed where they lie in a UTF-8 buffer. The hash of some words in a row is that of a
polynomial, so that the words between two places have one that follows from what was hashed up to
each. It only proposes: what it finds is compared byte by byte, so no collision reports anything.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types
from numpy.typing import NDArray

from tasks.data.text_columns import (
    BYTES,
    PLACES,
    SPACE,
    ascii_or_folded,
    buffers,
    byte_rule,
    compiled,
    fold,
)
from tasks.data.words import RULES, Normalisation

LONGEST = 32
"""The most words an n-gram can have."""
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
    text in one piece. An item without any word (symbols only, under `alnum`) matches nothing.
    """

    def __init__(self, items: Iterable[Item], n: int, normalise: Normalisation) -> None:
        self.n, self.items, self._rule = n, list(items), RULES[normalise]
        self._bytes = byte_rule(self._rule)
        texts = pa.array([item.text for item in self.items], pa.large_string())
        folded = fold(texts, self._rule)
        self._blob, starts, ends = buffers(folded)
        words = pc.call_function("count_substring", [folded], pc.MatchSubstringOptions(" "))
        words = np.where(starts < ends, words.to_numpy() + 1, 0)
        self.wordless = int(np.count_nonzero(words == 0))
        """How many items match nothing."""
        self.short_items = int(np.count_nonzero((words > 0) & (words < n)))
        """How many items are matched whole."""

        room = int(words.sum())
        self._table = _empty_table(room, len(self.items))
        seen, entry, item = np.full(room, -1), np.empty(room, int), np.empty(room, int)
        entries, pairs = _enter(
            self._table, self._blob, starts, ends, self._bytes, n, seen, entry, item
        )
        entry, item = entry[:pairs], item[:pairs]
        self.whole = np.zeros(entries, np.bool_)
        """By entry: it is all of an item shorter than n words."""
        self.whole[entry[words[item] < n]] = True
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
        read, unreadable = ascii_or_folded(texts, self._rule)
        parts, first = [_NOTHING], 0
        while first < len(texts):
            first, hits = _find(
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
        order = np.lexsort((item, self.whole[entry], -coverage, row))
        return row[order], item[order], coverage[order], entry[order]


_REMEMBERED = 2 * LONGEST  # words back, a power of two
_BITS_PER_ENTRY = 32  # of the bitmap, two of them set: one in 200 of what is not there gets past it
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_MIX = np.uint64(0x9E3779B97F4A7C15)
_POWERS = np.cumprod(np.array([1] + [0xD1342543DE82EF95] * LONGEST, np.uint64))
_BASE = _POWERS[1]
# Places are unsigned throughout: numba asks of every signed one whether it counts from the end.
_0, _1, _6, _32, _63 = (np.uint64(k) for k in (0, 1, 6, 32, 63))
_BACK = np.uint64(_REMEMBERED - 1)


class Table(NamedTuple):
    """Entries (n-grams, and whole texts of fewer words) by the hash of their words."""

    bits: NDArray[np.uint64]
    """A bitmap that mostly says no."""
    short: NDArray[np.uint64]
    """At the place of a word's hash: bit k if an entry of k words, fewer than n, ends in it."""
    slots: NDArray[np.int32]
    """Numbers of entries, −1 where free; a power of two, at least half of them free."""
    hashes: NDArray[np.uint64]
    starts: NDArray[np.uint64]
    """Entry e is blob[starts[e]:ends[e]]."""
    ends: NDArray[np.uint64]


def _empty_table(room: int, texts: int) -> Table:
    """A table for up to `room` entries of so many texts."""
    size = 1 << max(6, (2 * room).bit_length())
    return Table(
        bits=np.zeros(size * _BITS_PER_ENTRY // 2 // 64, np.uint64),
        short=np.zeros(1 << max(6, (8 * texts).bit_length()), np.uint64),
        slots=np.full(size, -1, np.int32),
        hashes=np.empty(room, np.uint64),
        starts=np.empty(room, np.uint64),
        ends=np.empty(room, np.uint64),
    )


_INT, _U8, _I8 = types.int64, types.uint64, types.int64[::1]
_TABLE = types.NamedTuple((_U8[::1], _U8[::1], types.int32[::1], *(_U8[::1],) * 3), Table)


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


@compiled(_U8(_U8, _INT))
def _place(hashed: Any, size: Any) -> Any:
    """Where a hash belongs among `size` places, a power of two."""
    mixed = hashed * _MIX
    return (mixed ^ (mixed >> _32)) & np.uint64(size - 1)


@compiled(_U8(_U8))
def _two_bits(hashed: Any) -> Any:
    """The bits of an entry in its word of the bitmap: one look at memory answers for both."""
    return (_1 << (hashed & _63)) | (_1 << ((hashed >> _6) & _63))


@compiled(types.boolean(BYTES, _U8, _U8, BYTES, BYTES, _U8, _U8))
def _reads_as(data: Any, at: Any, end: Any, rule: Any, blob: Any, start: Any, stop: Any) -> Any:
    """Whether the words of data[at:end] begin with those of blob[start:stop], each word whole."""
    while start < stop:
        char = rule[data[at]] if at < end else SPACE
        if char != blob[start]:
            return False
        at += _1
        start += _1
        if char == SPACE:
            while at < end and rule[data[at]] == SPACE:
                at += _1
    return at >= end or rule[data[at]] == SPACE


@compiled(_INT(_TABLE, _U8, BYTES, _U8, _U8, BYTES, BYTES))
def _entry_of(table: Any, hashed: Any, data: Any, at: Any, end: Any, rule: Any, blob: Any) -> Any:
    """The entry of this hash that data[at:end] begins with, or −1."""
    both = _two_bits(hashed)
    if table.bits[_place(hashed, table.bits.size)] & both != both:
        return -1
    slot = _place(hashed, table.slots.size)
    while table.slots[slot] >= 0:
        entry = table.slots[slot]
        start, stop = table.starts[entry], table.ends[entry]
        if table.hashes[entry] == hashed and _reads_as(data, at, end, rule, blob, start, stop):
            return entry
        slot = (slot + _1) & np.uint64(table.slots.size - 1)
    return -1


@compiled(types.UniTuple(_INT, 2)(_TABLE, BYTES, PLACES, PLACES, BYTES, _INT, _I8, _I8, _I8))
def _enter(
    table: Any, blob: Any, starts: Any, ends: Any, rule: Any, n: Any,
    seen: Any, pair_entry: Any, pair_text: Any,
) -> Any:  # fmt: skip
    """Enter the n-grams of folded texts in `blob`; one of fewer than n words is an entry, whole.

    Lists every (entry, text) once, texts in order; `seen` holds −1 for each entry there may be.
    Returns how many entries and pairs there are.
    """
    prefixes, firsts = np.zeros(_REMEMBERED, np.uint64), np.zeros(_REMEMBERED, np.uint64)
    entries, pairs, length = 0, 0, np.uint64(n)
    for text in range(starts.size):
        count, prefix, at, end = _0, _0, np.uint64(starts[text]), np.uint64(ends[text])
        while at < end:
            prefixes[count & _BACK] = prefix
            first, at, word = _next_word(blob, at, end, rule)
            firsts[count & _BACK] = first
            count += _1
            prefix = prefix * _BASE + word
            if count < length:
                if at < end:
                    continue
                table.short[_place(word, table.short.size)] |= _1 << count
            size = min(count, length)
            begin = firsts[(count - size) & _BACK]
            hashed = prefix - prefixes[(count - size) & _BACK] * _POWERS[size]
            slot = _place(hashed, table.slots.size)
            # Not by `_entry_of`: a call counts references to arrays, too slow for every n-gram.
            while table.slots[slot] >= 0:
                entry = table.slots[slot]
                start, stop = table.starts[entry], table.ends[entry]
                same = table.hashes[entry] == hashed
                if same and _reads_as(blob, begin, at, rule, blob, start, stop):
                    break
                slot = (slot + _1) & np.uint64(table.slots.size - 1)
            entry = table.slots[slot]
            if entry < 0:
                entry = entries
                table.slots[slot], table.hashes[entry] = entry, hashed
                table.starts[entry], table.ends[entry] = begin, at
                table.bits[_place(hashed, table.bits.size)] |= _two_bits(hashed)
                entries += 1
            if seen[entry] != text:
                seen[entry] = text
                pair_entry[pairs], pair_text[pairs] = entry, text
                pairs += 1
    return entries, pairs


@compiled(
    types.UniTuple(_INT, 2)(
        *(BYTES, PLACES, PLACES, BYTES, BYTES, _INT, _TABLE, _I8, _INT, _INT, _I8, _I8)
    )
)
def _find(
    data: Any, starts: Any, ends: Any, rule: Any, blob: Any, n: Any, table: Any,
    seen: Any, before: Any, text: Any, hit_text: Any, hit_entry: Any,
) -> Any:  # fmt: skip
    """Look for all entries in the texts from number `text` on, until the hits may not fit.

    A hit is (text, entry), each once, in the order of the texts and of their words. `seen` holds
    −1 for every entry before the first call ever and is passed on to the next; `before` counts the
    texts of earlier columns. Returns the next text and the number of hits.
    """
    prefixes, firsts = np.zeros(_REMEMBERED, np.uint64), np.zeros(_REMEMBERED, np.uint64)
    hits, length = 0, np.uint64(n)
    while text < starts.size and hits + seen.size <= hit_text.size:
        count, prefix, number = _0, _0, before + text
        at, end = np.uint64(starts[text]), np.uint64(ends[text])
        while True:
            prefixes[count & _BACK] = prefix
            first, at, word = _next_word(data, at, end, rule)
            if first >= end:
                break
            firsts[count & _BACK] = first
            count += _1
            prefix = prefix * _BASE + word
            sizes = table.short[_place(word, table.short.size)] | (_1 << length)
            size = length if sizes == _1 << length else _1
            while size <= min(length, count):
                if (sizes >> size) & _1:
                    begin = (count - size) & _BACK
                    hashed = prefix - prefixes[begin] * _POWERS[size]
                    entry = _entry_of(table, hashed, data, firsts[begin], end, rule, blob)
                    if entry >= 0 and seen[entry] != number:
                        seen[entry] = number
                        hit_text[hits], hit_entry[hits] = text, entry
                        hits += 1
                size += _1
        text += 1
    return text, hits
