"""The compiled loops of near-duplicate search, over texts in one UTF-8 buffer (`Folded`).

A shingle is so many words in a row; in a folded text that is one run of bytes. A text of fewer
words is one shingle, whole. Hashes only propose: where two are equal the bytes are compared, so
no collision makes two shingles one.
"""

from typing import Any

import numpy as np
from numba import types

from tasks.compiled import compiled

_SPACE = np.uint8(32)
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_BASE = np.uint64(0x9E3779B97F4A7C15)
_FMIX_A, _FMIX_B = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_32, _33 = np.uint64(32), np.uint64(33)
_MIX_A, _MIX_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _16 = np.uint32(13), np.uint32(16)
_LARGEST = np.uint32(0xFFFFFFFF)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)
_FACTORS = types.Array(types.uint32, 1, "C", readonly=True)
_U64, _I8 = types.uint64[::1], types.int64[::1]


@compiled("uint64(uint64)")
def _mixed(value: Any) -> Any:
    """The 64-bit finalizer of MurmurHash3."""
    value = (value ^ (value >> _33)) * _FMIX_A
    value = (value ^ (value >> _33)) * _FMIX_B
    return value ^ (value >> _33)


@compiled("uint32(uint64)")
def _sketched(value: Any) -> Any:
    """32 bits of a shingle's hash through the MurmurHash3 finalizer, as datasketch has it."""
    hashed = np.uint32(value >> _32)
    hashed = np.uint32((hashed ^ (hashed >> _16)) * _MIX_A)
    hashed = np.uint32((hashed ^ (hashed >> _13)) * _MIX_B)
    return hashed ^ (hashed >> _16)


@compiled(types.int64(_BYTES, types.int64, types.int64, _U64, _I8))
def _words(data: Any, begin: Any, end: Any, hashes: Any, starts: Any) -> Any:
    """Hash the words of data[begin:end]; returns how many. Word i ends at starts[i+1] - 1."""
    if begin == end:
        return 0
    count, hashed = np.int64(0), _BASIS
    starts[0] = begin
    for at in range(begin, end):
        if data[at] == _SPACE:
            hashes[count] = _mixed(hashed)
            count += 1
            starts[count] = at + 1
            hashed = _BASIS
        else:
            hashed = (hashed ^ np.uint64(data[at])) * _PRIME
    hashes[count] = _mixed(hashed)
    starts[count + 1] = end + 1
    return count + 1


@compiled(types.UniTuple(types.int64, 2)(_BYTES, types.int64, types.int64, types.int64, _U64, _I8))
def shingles(data: Any, begin: Any, end: Any, size: Any, hashes: Any, starts: Any) -> Any:
    """Hash the shingles of data[begin:end]: (how many, words in each).

    Shingle i of w words is data[starts[i] : starts[i+w] - 1]. `hashes` and `starts` need room for
    every word and one more.
    """
    words = _words(data, begin, end, hashes, starts)
    width = min(size, words)
    count = words - width + 1 if words else 0
    for i in range(count):
        total = np.uint64(0)
        for k in range(width):
            total = total * _BASE + hashes[i + k]
        hashes[i] = _mixed(total)
    return count, width


@compiled(types.int64(_BYTES, _I8))
def room(data: Any, ends: Any) -> Any:
    """Places that `shingles` needs for the text with the most words."""
    most = np.int64(0)
    for text in range(ends.size - 1):
        spaces = np.int64(0)
        for at in range(ends[text], ends[text + 1]):
            spaces += data[at] == _SPACE
        most = max(most, spaces)
    return most + 2


_SIGNATURE = types.uint32[:, ::1]


@compiled(types.void(_BYTES, _I8, types.int64, _FACTORS, _FACTORS, _SIGNATURE))
def sign(data: Any, ends: Any, size: Any, slopes: Any, offsets: Any, signatures: Any) -> Any:
    """signatures[i, k] = min over the shingles h of text i of slopes[k]·h + offsets[k] mod 2³².

    A text without words keeps the largest value everywhere, as an empty MinHash does.
    """
    words = room(data, ends)
    hashes, starts = np.empty(words, np.uint64), np.empty(words, np.int64)
    for text in range(ends.size - 1):
        least = signatures[text]
        least[:] = _LARGEST
        count, _ = shingles(data, ends[text], ends[text + 1], size, hashes, starts)
        for i in range(0, count, 4):  # four at a time: each factor is loaded once for them
            a = _sketched(hashes[i])
            b = _sketched(hashes[min(i + 1, count - 1)])
            c = _sketched(hashes[min(i + 2, count - 1)])
            d = _sketched(hashes[min(i + 3, count - 1)])
            for k in range(slopes.size):
                slope, offset = slopes[k], offsets[k]
                one = min(np.uint32(slope * a + offset), np.uint32(slope * b + offset))
                two = min(np.uint32(slope * c + offset), np.uint32(slope * d + offset))
                least[k] = min(least[k], min(one, two))


@compiled(types.void(_SIGNATURE, types.int64, types.uint64[:, ::1]))
def band(signatures: Any, rows: Any, keys: Any) -> Any:
    """keys[b, i]: 64 bits over values b·rows … (b+1)·rows - 1 of signature i."""
    for text in range(signatures.shape[0]):
        for number in range(keys.shape[0]):
            total = np.uint64(number)
            for k in range(number * rows, (number + 1) * rows):
                total = _mixed(total * _BASE + np.uint64(signatures[text, k]))
            keys[number, text] = total
