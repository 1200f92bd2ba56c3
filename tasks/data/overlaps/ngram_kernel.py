"""The compiled loops of n-gram search: words are hashed where they lie in a UTF-8 buffer.

A text is bytes; `rule[byte]` is what a byte counts as: itself, its lower case, or SPACE, which
separates words. The rolling hash of n words only proposes: whatever it finds is compared with the
n-gram byte by byte, so no collision can report anything.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from tasks.data.compiled import compiled

LONGEST = 32
"""The most words an n-gram can have: the places of so many are remembered."""
BITS_PER_ENTRY = 32
"""Of the bitmap, two of them set: of what is not there one in some 200 still gets past it."""

SPACE = np.uint8(32)
_BASIS = np.uint64(0xCBF29CE484222325)  # FNV-1a
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
# Places are unsigned throughout: numba asks of every signed one whether it counts from the end.
_0, _1, _6, _32, _63, _64 = (np.uint64(k) for k in (0, 1, 6, 32, 63, 64))
_RING = np.uint64(LONGEST - 1)


class Table(NamedTuple):
    """Byte strings by a hash: a bitmap that mostly says no, then open addressing."""

    bits: NDArray[np.uint64]
    slots: NDArray[np.int32]
    """Numbers of entries, −1 where free; a power of two, at least half of them free."""
    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    """Entry e is blob[starts[e]:ends[e]]."""
    ends: NDArray[np.int64]


def empty_table(room: int) -> Table:
    """A table for up to `room` entries."""
    size = 1 << max(6, (2 * room).bit_length())
    return Table(
        bits=np.zeros(size * BITS_PER_ENTRY // 2 // 64, np.uint64),
        slots=np.full(size, -1, np.int32),
        hashes=np.zeros(room, np.uint64),
        starts=np.zeros(room, np.int64),
        ends=np.zeros(room, np.int64),
    )


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INT, _U8, _I8 = types.int64, types.uint64, types.int64[::1]
_TABLE = types.NamedTuple((_U8[::1], types.int32[::1], _U8[::1], _I8, _I8), Table)
_RINGS = types.UniTuple(_U8[::1], 2)


@compiled(_U8(_U8, _U8))
def _rotated(value: Any, by: Any) -> Any:
    return (value << by) | (value >> (_64 - by))


@compiled(types.UniTuple(_U8, 3)(_BYTES, _U8, _U8, _BYTES))
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


@compiled(_U8(_RINGS, _U8, _U8, _U8, _U8, _U8))
def _rolled(rings: Any, rolling: Any, count: Any, length: Any, word: Any, first: Any) -> Any:
    """The hash of the last `length` words with word number `count`, which the rings remember."""
    hashes, starts = rings
    rolling = _rotated(rolling, _1) ^ word
    if count >= length:
        rolling ^= _rotated(hashes[(count - length) & _RING], length)
    hashes[count & _RING], starts[count & _RING] = word, first
    return rolling


@compiled(_U8(_U8, _INT))
def _place(hashed: Any, size: Any) -> Any:
    """Where a hash belongs among `size` places, a power of two."""
    mixed = hashed * _MIX
    return (mixed ^ (mixed >> _32)) & np.uint64(size - 1)


@compiled(_U8(_U8))
def _two_bits(hashed: Any) -> Any:
    """The bits of an entry in its word of the bitmap: one look at memory answers for both."""
    return (_1 << (hashed & _63)) | (_1 << ((hashed >> _6) & _63))


@compiled(types.boolean(_U8[::1], _U8))
def _maybe(bits: Any, hashed: Any) -> Any:
    both = _two_bits(hashed)
    return bits[_place(hashed, bits.size)] & both == both


@compiled(types.boolean(_BYTES, _U8, _U8, _BYTES, _BYTES, _U8, _U8))
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


@compiled(_U8(_TABLE, _U8, _BYTES, _U8, _U8, _BYTES, _BYTES))
def _slot_of(table: Any, hashed: Any, data: Any, at: Any, end: Any, rule: Any, blob: Any) -> Any:
    """The slot of the entry that data[at:end] begins with, or the free one where it belongs."""
    slot = _place(hashed, table.slots.size)
    while table.slots[slot] >= 0:
        entry = table.slots[slot]
        start, stop = np.uint64(table.starts[entry]), np.uint64(table.ends[entry])
        if table.hashes[entry] == hashed and _reads_as(data, at, end, rule, blob, start, stop):
            break
        slot = (slot + _1) & np.uint64(table.slots.size - 1)
    return slot


@compiled(types.void(_TABLE, _U8, _U8, _INT, _U8, _U8))
def _enter(table: Any, slot: Any, hashed: Any, entry: Any, start: Any, end: Any) -> None:
    table.slots[slot] = entry
    table.hashes[entry] = hashed
    table.starts[entry] = start
    table.ends[entry] = end
    table.bits[_place(hashed, table.bits.size)] |= _two_bits(hashed)


@compiled(types.UniTuple(_INT, 2)(_TABLE, _BYTES, _I8, _I8, _BYTES, _INT, _I8, _I8, _I8))
def enter_ngrams(
    table: Any, blob: Any, starts: Any, ends: Any, rule: Any, n: Any,
    seen: Any, pair_gram: Any, pair_text: Any,
) -> Any:  # fmt: skip
    """Enter the n-grams of texts in `blob`: words in lower case with one space between them.

    Lists every (n-gram, text) once, texts in order; `seen` holds −1 for each n-gram there may be.
    Returns how many n-grams and pairs there are.
    """
    rings = np.zeros(LONGEST, np.uint64), np.zeros(LONGEST, np.uint64)
    grams, pairs, length = 0, 0, np.uint64(n)
    for text in range(starts.size):
        count, rolling, at, end = _0, _0, np.uint64(starts[text]), np.uint64(ends[text])
        while at < end:
            first, at, word = _next_word(blob, at, end, rule)
            rolling = _rolled(rings, rolling, count, length, word, first)
            count += _1
            if count >= length:
                begin = rings[1][(count - length) & _RING]
                slot = _slot_of(table, rolling, blob, begin, end, rule, blob)
                if table.slots[slot] < 0:
                    _enter(table, slot, rolling, grams, begin, at)
                    grams += 1
                gram = table.slots[slot]
                if seen[gram] != text:
                    seen[gram] = text
                    pair_gram[pairs], pair_text[pairs] = gram, text
                    pairs += 1
    return grams, pairs


@compiled(types.void(_TABLE, _BYTES, _I8, _I8, _I8, _BYTES))
def enter_by_word(
    table: Any, blob: Any, starts: Any, ends: Any, word_starts: Any, rule: Any
) -> None:
    """Enter texts of `blob`, each under the word of it that starts at `word_starts`."""
    for text in range(starts.size):
        end = np.uint64(ends[text])
        _, _, word = _next_word(blob, np.uint64(word_starts[text]), end, rule)
        slot = _place(word, table.slots.size)
        while table.slots[slot] >= 0:
            slot = (slot + _1) & np.uint64(table.slots.size - 1)
        _enter(table, slot, word, text, np.uint64(starts[text]), end)


@compiled(
    types.UniTuple(_INT, 2)(
        *(_BYTES, _I8, _I8, _BYTES, _BYTES, _INT, _TABLE, _TABLE),
        *(_I8, _I8, _INT, _INT, _I8, _I8),
    )
)
def find(
    data: Any, starts: Any, ends: Any, rule: Any, blob: Any, n: Any, grams: Any, short: Any,
    word_places: Any, seen: Any, before: Any, text: Any, hit_text: Any, hit_entry: Any,
) -> Any:  # fmt: skip
    """Look for all entries in the texts from number `text` on, until the hits may not fit.

    A hit is (text, entry), each once, in the order of the texts and of their words. An entry of
    `short` counts from the number of n-grams on; it is entered under its word number
    `word_places[entry]`. `seen` holds −1 for every entry before the first call ever and is passed
    on to the next; `before` counts the texts of earlier columns. Returns the next text and the
    number of hits.
    """
    rings = np.zeros(LONGEST, np.uint64), np.zeros(LONGEST, np.uint64)
    hits, many, length = 0, grams.starts.size, np.uint64(n)
    while text < starts.size and hits + seen.size <= hit_text.size:
        count, rolling, number = _0, _0, before + text
        at, end = np.uint64(starts[text]), np.uint64(ends[text])
        while True:
            first, at, word = _next_word(data, at, end, rule)
            if first >= end:
                break
            rolling = _rolled(rings, rolling, count, length, word, first)
            count += _1
            if count >= length and _maybe(grams.bits, rolling):
                begin = rings[1][(count - length) & _RING]
                gram = grams.slots[_slot_of(grams, rolling, data, begin, end, rule, blob)]
                if gram >= 0 and seen[gram] != number:
                    seen[gram] = number
                    hit_text[hits], hit_entry[hits] = text, gram
                    hits += 1
            if _maybe(short.bits, word):
                slot = _place(word, short.slots.size)
                while short.slots[slot] >= 0:
                    entry = short.slots[slot]
                    slot = (slot + _1) & np.uint64(short.slots.size - 1)
                    back = np.uint64(word_places[entry]) + _1
                    if short.hashes[entry] != word or count < back or seen[many + entry] == number:
                        continue
                    begin = rings[1][(count - back) & _RING]
                    start, stop = np.uint64(short.starts[entry]), np.uint64(short.ends[entry])
                    if _reads_as(data, begin, end, rule, blob, start, stop):
                        seen[many + entry] = number
                        hit_text[hits], hit_entry[hits] = text, many + entry
                        hits += 1
        text += 1
    return text, hits


@compiled(types.boolean(types.uint8))
def _is_space(byte: Any) -> Any:
    return byte == SPACE or 9 <= byte <= 13 or 28 <= byte <= 31


@compiled(_INT(_BYTES, _I8, _I8, _I8, _I8, _I8))
def foreign_words(
    data: Any, starts: Any, ends: Any, word_text: Any, word_starts: Any, word_ends: Any
) -> Any:
    """List (text, start, end) of what stands between ASCII white space and is not all ASCII.

    Returns how many there are, of which only as many are listed as fit.
    """
    found = 0
    for text in range(starts.size):
        every = np.uint8(0)
        for byte in data[starts[text] : ends[text]]:
            every |= byte
        at, begin, end = np.uint64(starts[text]), np.uint64(starts[text]), np.uint64(ends[text])
        while every >= 128 and at < end:
            if data[at] < 128:
                at += _1
                continue
            first = at
            while first > begin and not _is_space(data[first - _1]):
                first -= _1
            while at < end and not _is_space(data[at]):
                at += _1
            if found < word_text.size:
                word_text[found], word_starts[found], word_ends[found] = text, first, at
            found += 1
    return found
