"""Columns of text as the UTF-8 buffers that compiled loops read, their words folded by a rule.

Words beyond ASCII are folded by the rule itself, once for each that occurs; ASCII byte by byte,
by what the rule makes of each character. Importing numba takes a third of a second, so modules with
compiled loops are imported where they are needed.
"""

from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from .tokenize import Rule

REMEMBERED_WORDS = 1 << 16
SPACE = np.uint8(32)
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
PLACES = types.Array(types.int64, 1, "C", readonly=True)
_1 = np.uint64(1)
compiled = partial(numba.njit, cache=True, nogil=True)
"""Compile for exactly these types when the module is imported, or load what an earlier import
compiled; `NUMBA_CACHE_DIR` names the folder where neither the source tree nor the home can be."""


class Texts(NamedTuple):
    """Text i is data[starts[i]:ends[i]]; a missing one (null) is empty."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def buffers(column: pa.Array) -> Texts:
    """The buffers of a column of text, not copied."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets or bytes(8), np.int64)
    places = places[column.offset : column.offset + len(column) + 1]
    ends = np.where(column.is_null(), places[:-1], places[1:]) if column.null_count else places[1:]
    return Texts(np.frombuffer(data or b"", np.uint8), places[:-1], ends)


def normalized_buffers(column: pa.Array, rule: Rule) -> Texts:
    """The texts with every word folded that is not all ASCII; what is no UTF-8 is U+FFFD."""
    texts, spans = buffers(column), np.empty((1 << 12, 2), np.int64)
    while (count := _foreign_words(*texts, spans)) > len(spans):
        spans = np.empty((count, 2), np.int64)
    if not count:
        return texts
    spans = spans[:count]
    data, at = texts.data.tobytes(), int(texts.starts[0])
    pieces, grown = list[bytes](), [-at]
    for start, end in zip(*spans.T.tolist(), strict=True):
        word = _folded_word(rule, data[start:end])
        pieces += (data[at:start], word)
        grown.append(len(word) - (end - start))
        at = end
    joined = b"".join([*pieces, data[at : texts.ends[-1]]])
    moved = np.cumsum(grown)
    before = partial(np.searchsorted, spans[:, 1], side="right")
    starts, ends = (place + moved[before(place)] for place in texts[1:])
    return Texts(np.frombuffer(joined, np.uint8), starts, ends)


@cache
def byte_rule(rule: Rule) -> NDArray[np.uint8]:
    """What each byte counts as: a letter's lower case, or 32 for what separates words."""
    ascii_part = ["".join(rule(chr(byte))) or " " for byte in range(128)]
    return np.frombuffer("".join(ascii_part).encode() + bytes(range(128, 256)), np.uint8)


@lru_cache(REMEMBERED_WORDS)
def _folded_word(rule: Rule, word: bytes) -> bytes:
    return " ".join(rule(word.decode(errors="replace"))).encode()


@compiled(types.boolean(types.uint8))
def _is_space(byte: Any) -> Any:
    return byte == SPACE or 9 <= byte <= 13 or 28 <= byte <= 31


@compiled(types.int64(BYTES, PLACES, PLACES, types.int64[:, ::1]))
def _foreign_words(data: Any, starts: Any, ends: Any, spans: Any) -> Any:
    """Start and end [W, 2] of what stands between ASCII white space and is not all ASCII. Returns
    how many there are, of which only as many are listed as fit."""
    count = 0
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
            if count < spans.shape[0]:
                spans[count, 0], spans[count, 1] = first, at
            count += 1
    return count
