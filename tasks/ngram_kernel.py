"""The compiled loops of n-gram search: words are hashed where they lie in a UTF-8 buffer.

A text is bytes; `rule[byte]` is what a byte counts as: itself, its lower case, or SPACE, which
separates words. The rolling hash of n words only proposes: whatever it finds is compared with the
n-gram byte by byte, so no collision can report anything.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from tasks.compiled import compiled

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

    def of_size(self, entries: int) -> "Table":
        """The same table without the room that was not needed."""
        return self._replace(
            hashes=self.hashes[:entries], starts=self.starts[:entries], ends=self.ends[:entries]
        )


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


BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INT, _U8, _I8 = types.int64, types.uint64, types.int64[::1]
_TABLE = types.NamedTuple((_U8[::1], types.int32[::1], _U8[::1], _I8, _I8), Table)
_TWO = types.UniTuple(_INT, 2)


@compiled(_U8(_U8, _U8))
def _rotated(value: Any, by: Any) -> Any:
    return (value << by) | (value >> (_64 - by))


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


@compiled(_U8(_TABLE, _U8, BYTES, _U8, _U8, BYTES, BYTES))
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


@compiled(_INT(types.uint8[::1], _I8, _I8, _I8, BYTES, _I8, _I8, BYTES))
def normalise(
    blob: Any, blob_starts: Any, blob_ends: Any, words: Any,
    data: Any, starts: Any, ends: Any, rule: Any,
) -> Any:  # fmt: skip
    """Write every text into `blob` as lower-case words with single spaces; count its words.

    `blob` needs as many bytes as the texts have. Returns how many are used.
    """
    used = 0
    for text in range(starts.size):
        blob_starts[text] = used
        words[text] = 0
        inside = False
        for at in range(starts[text], ends[text]):
            char = rule[data[at]]
            if char != SPACE:
                if not inside:
                    if words[text] > 0:
                        blob[used] = SPACE
                        used += 1
                    words[text] += 1
                blob[used] = char
                used += 1
            inside = char != SPACE
        blob_ends[text] = used
    return used


@compiled(_TWO(_TABLE, BYTES, _I8, _I8, BYTES, _INT, _I8, _I8, _I8))
def enter_ngrams(
    table: Any, blob: Any, starts: Any, ends: Any, rule: Any, n: Any,
    seen: Any, pair_gram: Any, pair_text: Any,
) -> Any:  # fmt: skip
    """Enter the n-grams of normalised texts; list every (n-gram, text) once, texts in order.

    `seen` holds −1 for each n-gram there may be. Returns how many n-grams and pairs there are.
    """
    ring_hash, ring_start = np.zeros(LONGEST, np.uint64), np.zeros(LONGEST, np.uint64)
    grams, pairs, length = 0, 0, np.uint64(n)
    for text in range(starts.size):
        count, rolling = _0, _0
        at, end = np.uint64(starts[text]), np.uint64(ends[text])
        while at < end:
            first, word = at, _BASIS
            while at < end and blob[at] != SPACE:
                word = (word ^ np.uint64(blob[at])) * _PRIME
                at += _1
            rolling = _rotated(rolling, _1) ^ word
            if count >= length:
                rolling ^= _rotated(ring_hash[(count - length) & _RING], length)
            ring_hash[count & _RING], ring_start[count & _RING] = word, first
            count += _1
            if count >= length:
                begin = ring_start[(count - length) & _RING]
                slot = _slot_of(table, rolling, blob, begin, end, rule, blob)
                if table.slots[slot] < 0:
                    _enter(table, slot, rolling, grams, begin, at)
                    grams += 1
                gram = table.slots[slot]
                if seen[gram] != text:
                    seen[gram] = text
                    pair_gram[pairs], pair_text[pairs] = gram, text
                    pairs += 1
            at += _1
    return grams, pairs


@compiled(types.void(_TABLE, _INT, BYTES, _U8, _U8, _U8, _U8))
def enter_by_word(
    table: Any, entry: Any, blob: Any, start: Any, end: Any, word_start: Any, word_end: Any
) -> None:
    """Enter blob[start:end] under one of its words; entries may share that word."""
    word, at = _BASIS, word_start
    while at < word_end:
        word = (word ^ np.uint64(blob[at])) * _PRIME
        at += _1
    slot = _place(word, table.slots.size)
    while table.slots[slot] >= 0:
        slot = (slot + _1) & np.uint64(table.slots.size - 1)
    _enter(table, slot, word, entry, start, end)


@compiled(
    _INT(
        *(BYTES, _U8, BYTES, BYTES, _TABLE, _I8, _U8, _U8, _U8[::1]),
        *(_I8, _INT, _INT, _INT, _I8, _I8, _INT),
    )
)
def _whole_items(
    data: Any, end: Any, rule: Any, blob: Any, short: Any, word_places: Any, word: Any,
    count: Any, ring_start: Any, seen: Any, number: Any, text: Any, many: Any,
    hit_text: Any, hit_entry: Any, hits: Any,
) -> Any:  # fmt: skip
    """Add the entries of `short` that stand around word `count` of the text; returns the hits."""
    slot = _place(word, short.slots.size)
    while short.slots[slot] >= 0:
        entry = short.slots[slot]
        slot = (slot + _1) & np.uint64(short.slots.size - 1)
        back = np.uint64(word_places[entry]) + _1
        if short.hashes[entry] != word or count < back or seen[many + entry] == number:
            continue
        begin = ring_start[(count - back) & _RING]
        start, stop = np.uint64(short.starts[entry]), np.uint64(short.ends[entry])
        if _reads_as(data, begin, end, rule, blob, start, stop):
            seen[many + entry] = number
            hit_text[hits], hit_entry[hits] = text, many + entry
            hits += 1
    return hits


@compiled(_TWO(BYTES, _I8, _I8, BYTES, BYTES, _INT, _TABLE, _TABLE, _I8, _I8, _INT, _INT, _I8, _I8))
def find(
    data: Any, starts: Any, ends: Any, rule: Any,
    blob: Any, n: Any, grams: Any, short: Any, word_places: Any,
    seen: Any, before: Any, text: Any, hit_text: Any, hit_entry: Any,
) -> Any:  # fmt: skip
    """Look for all entries in the texts from number `text` on, until the hits may not fit.

    A hit is (text, entry), each once, in the order of the texts and of their words. An entry of
    `short` counts from the number of n-grams on; it is entered under its word number
    `word_places[entry]`. `seen` holds −1 for every entry before the first call ever and is passed
    on to the next; `before` counts the texts of earlier columns. Returns the next text and the
    number of hits.
    """
    ring_hash, ring_start = np.zeros(LONGEST, np.uint64), np.zeros(LONGEST, np.uint64)
    hits, many, length = 0, grams.starts.size, np.uint64(n)
    while text < starts.size and hits + seen.size <= hit_text.size:
        count, rolling, number = _0, _0, before + text
        at, end = np.uint64(starts[text]), np.uint64(ends[text])
        while at < end:
            char = rule[data[at]]
            if char == SPACE:
                at += _1
                continue
            first, word = at, _BASIS
            while char != SPACE:
                word = (word ^ np.uint64(char)) * _PRIME
                at += _1
                if at >= end:
                    break
                char = rule[data[at]]
            rolling = _rotated(rolling, _1) ^ word
            if count >= length:
                rolling ^= _rotated(ring_hash[(count - length) & _RING], length)
            ring_hash[count & _RING], ring_start[count & _RING] = word, first
            count += _1
            if count >= length and _maybe(grams.bits, rolling):
                begin = ring_start[(count - length) & _RING]
                gram = grams.slots[_slot_of(grams, rolling, data, begin, end, rule, blob)]
                if gram >= 0 and seen[gram] != number:
                    seen[gram] = number
                    hit_text[hits], hit_entry[hits] = text, gram
                    hits += 1
            if _maybe(short.bits, word):
                hits = _whole_items(
                    data, end, rule, blob, short, word_places, word, count, ring_start,
                    seen, number, text, many, hit_text, hit_entry, hits,
                )  # fmt: skip
        text += 1
    return text, hits


@compiled(types.void(BYTES, _I8, _I8, types.boolean[::1]))
def mark_ascii(data: Any, starts: Any, ends: Any, is_ascii: Any) -> None:
    """Which texts hold no byte above 127."""
    for text in range(starts.size):
        every = np.uint8(0)
        for byte in data[starts[text] : ends[text]]:
            every |= byte
        is_ascii[text] = every < 128
