"""Texts as the n-gram loops read them: bytes, with everything beyond ASCII already made plain.

ASCII text is read where it lies. Other text is folded by a table over all of Unicode that is
filled with the code points met: lower case (and NFKC, for `alnum`), or a space where the rule
separates words. What depends on its neighbours (a final sigma, combining marks, ligatures) is no
matter for a table: such a text takes the Python rule itself.
"""

import unicodedata
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from tasks.compiled import compiled
from tasks.ngram_kernel import BYTES, mark_ascii
from tasks.words import INVISIBLE, RAISED, RULES, Normalisation

UNKNOWN, SEPARATOR, BY_HAND = 0, 1, 2
_RAISED_FLAG = 1 << 24
_UNREADABLE = 3
_CODE_POINTS = 0x110000
_I4, _I8, _INT = types.int32[::1], types.int64[::1], types.int64


class Texts(NamedTuple):
    """Text i is data[starts[i]:ends[i]]."""

    rows: NDArray[np.int64]
    """Number of each text in the column it comes from."""
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Reader:
    """Reads text columns under one rule; what it learns about code points it keeps."""

    def __init__(self, normalise: Normalisation) -> None:
        self._alnum = normalise == "alnum"
        self._words = RULES[normalise]
        self._table = np.zeros(_CODE_POINTS, np.int32)
        self.rule = _byte_rule(self._alnum)

    def read(self, column: pa.Array) -> tuple[list[Texts], list[int]]:
        """The texts in up to three pieces, and the rows that are no UTF-8. Null is an empty text.

        Raises TypeError for a column that holds no text.
        """
        data, starts, ends = _buffers(column)
        is_ascii = np.empty(len(column), np.bool_)
        mark_ascii(data, starts, ends, is_ascii)
        rows = np.arange(len(column))
        if is_ascii.all():
            return [Texts(rows, data, starts, ends)], []
        plain = Texts(rows[is_ascii], data, starts[is_ascii], ends[is_ascii])
        other = rows[~is_ascii]
        folded, by_hand, unreadable = self._fold(Texts(other, data, starts[other], ends[other]))
        pieces = [plain, folded]
        if len(by_hand):
            texts = [bytes(data[starts[row] : ends[row]]).decode() for row in by_hand]
            pieces.append(_joined(by_hand, [" ".join(self._words(t)).encode() for t in texts]))
        return pieces, unreadable.tolist()

    def _fold(self, texts: Texts) -> tuple[Texts, NDArray[np.int64], NDArray[np.int64]]:
        """The texts a table can fold, and the rows for Python and those that are no UTF-8."""
        room = 2 * int((texts.ends - texts.starts).sum())  # no code point more than doubles
        folded = np.empty(room, np.uint8)
        ends = np.zeros(len(texts.rows), np.int64)
        kind = np.zeros(len(texts.rows), np.int32)
        state = np.array([0, texts.starts[0], 0, 0], np.int64)
        while True:
            code = fold(
                texts.data, texts.starts, texts.ends, self._table, folded, ends, kind, state
            )
            if code < 0:
                break
            self._table[code] = self._entry(chr(code))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        good = kind == 0
        return (
            Texts(texts.rows[good], folded, starts[good], ends[good]),
            texts.rows[kind == BY_HAND],
            texts.rows[kind == _UNREADABLE],
        )

    def _entry(self, char: str) -> int:
        """What the table says of one character beyond ASCII."""
        plain = unicodedata.normalize("NFKC", char) if self._alnum else char
        if self._alnum and (INVISIBLE.match(char) or any(_joins(c) for c in plain)):
            return BY_HAND
        lower = plain.lower()
        if not any(c.isalnum() for c in lower) if self._alnum else char.isspace():
            return SEPARATOR
        if len(lower) != 1 or "Σ" in plain:
            return BY_HAND
        return ord(lower) | (_RAISED_FLAG if self._alnum and RAISED.match(char) else 0)


def _joins(char: str) -> bool:
    """Whether NFKC may compose the character with the one before it, or reorder it."""
    return (
        unicodedata.category(char)[0] == "M"
        or unicodedata.combining(char) != 0
        or "\u1160" <= char <= "\u11ff"
        or "\ud7b0" <= char <= "\ud7ff"
    )


def _byte_rule(alnum: bool) -> NDArray[np.uint8]:
    """What each byte counts as: a letter's lower case, or 32 for what separates words."""
    chars = [chr(byte) for byte in range(128)]
    word = [c.isalnum() if alnum else not c.isspace() for c in chars]
    ascii_part = [ord(c.lower()) if w else 32 for c, w in zip(chars, word, strict=True)]
    rule = np.array([*ascii_part, *range(128, 256)], np.uint8)
    rule.flags.writeable = False
    return rule


def _buffers(
    column: pa.Array,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """The bytes of a text column and where each text starts and ends; null is empty."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        width: type = np.int32
    elif pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        width = np.int64
    elif pa.types.is_string_view(column.type):
        return _buffers(column.cast(pa.large_string()))
    else:
        raise TypeError(f"a column of {column.type} holds no text")
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    starts, ends = places[:-1].astype(np.int64), places[1:].astype(np.int64)
    if column.null_count:
        ends = np.where(np.asarray(column.is_null()), starts, ends)
    return (
        np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8),
        starts,
        ends,
    )


def _joined(rows: NDArray[np.int64], texts: list[bytes]) -> Texts:
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return Texts(rows, np.frombuffer(b"".join(texts) or b" ", np.uint8), starts, ends)


@compiled(types.UniTuple(_INT, 2)(BYTES, _INT, _INT))
def _decoded(data: Any, at: Any, end: Any) -> Any:
    """The code point of a sequence of two bytes or more and its length; (−1, 1) if it is none."""
    lead = data[at]
    if 0xC2 <= lead < 0xE0:
        size, code, least = 2, np.int64(lead & 0x1F), 0x80
    elif 0xE0 <= lead < 0xF0:
        size, code, least = 3, np.int64(lead & 0x0F), 0x800
    elif 0xF0 <= lead < 0xF5:
        size, code, least = 4, np.int64(lead & 0x07), 0x10000
    else:
        return -1, 1
    if at + size > end:
        return -1, 1
    for k in range(1, size):
        if data[at + k] & 0xC0 != 0x80:
            return -1, 1
        code = (code << 6) | np.int64(data[at + k] & 0x3F)
    if code < least or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return -1, 1
    return code, size


@compiled(_INT(types.uint8[::1], _INT, _INT))
def _encode(folded: Any, used: Any, code: Any) -> Any:
    """Write one code point as UTF-8; returns the place after it."""
    if code < 0x80:
        folded[used] = code
        return used + 1
    if code < 0x800:
        folded[used] = 0xC0 | (code >> 6)
        folded[used + 1] = 0x80 | (code & 0x3F)
        return used + 2
    if code < 0x10000:
        folded[used] = 0xE0 | (code >> 12)
        folded[used + 1] = 0x80 | ((code >> 6) & 0x3F)
        folded[used + 2] = 0x80 | (code & 0x3F)
        return used + 3
    folded[used] = 0xF0 | (code >> 18)
    folded[used + 1] = 0x80 | ((code >> 12) & 0x3F)
    folded[used + 2] = 0x80 | ((code >> 6) & 0x3F)
    folded[used + 3] = 0x80 | (code & 0x3F)
    return used + 4


@compiled(_INT(BYTES, _I8, _I8, _I4, types.uint8[::1], _I8, _I4, _I8))
def fold(
    data: Any, starts: Any, ends: Any, table: Any,
    folded: Any, folded_ends: Any, kind: Any, state: Any,
) -> Any:  # fmt: skip
    """Fold text after text; `kind` becomes BY_HAND or 3 (no UTF-8) where the table cannot.

    `state` is (text, place in it, place in `folded`, whether a raised run is open): stops at a
    code point the table does not know, returns it, and goes on from there when called again.
    Returns −1 at the end.
    """
    text, at, used, raised = state[0], state[1], state[2], state[3]
    while text < starts.size:
        begin = folded_ends[text - 1] if text > 0 else 0
        while at < ends[text]:
            if data[at] < 0x80:
                entry, size = np.int64(data[at]), 1
            else:
                code, size = _decoded(data, at, ends[text])
                entry = np.int64(table[code]) if code >= 0 else np.int64(_UNREADABLE)
                if entry == UNKNOWN:
                    state[0], state[1], state[2], state[3] = text, at, used, raised
                    return code
                if BY_HAND <= entry <= _UNREADABLE:
                    kind[text] = max(kind[text], entry)
                    entry = np.int64(SEPARATOR)
                if entry == SEPARATOR:
                    entry = np.int64(0x20)
            if (entry >= _RAISED_FLAG) != (raised > 0):  # a raised run is a word of its own
                folded[used] = 0x20
                used += 1
                raised = 1 - raised
            used = _encode(folded, used, entry & (_RAISED_FLAG - 1))
            at += size
        if kind[text] > 0:
            used = begin
        folded_ends[text] = used
        text += 1
        raised = 0
        if text < starts.size:
            at = starts[text]
    return -1
