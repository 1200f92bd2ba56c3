"""MinHash signatures of word shingles, and the keys of their LSH bands, in compiled loops.

Signatures are datasketch's (scheme affine32: a·h + b mod 2³² with odd a, after the MurmurHash3
finalizer) and so is the choice of bands; both are computed in bulk from one UTF-8 buffer. A
shingle is so many words in a row; a text of fewer words is one shingle, whole.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from tasks.data.compiled import compiled
from tasks.data.duplicates.folding import Folded

WEIGHTS = 0.1, 0.9
"""Of false candidates and of misses in datasketch's choice of bands: the former cost a comparison,
the latter stay in the data. At Jaccard 0.7 it finds 92 % of the pairs (equal weights: 44 %)."""
_SPACE = np.uint8(32)
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_BASE = np.uint64(0x9E3779B97F4A7C15)
_FMIX_A, _FMIX_B = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_32, _33 = np.uint64(32), np.uint64(33)
_MIX_A, _MIX_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _16 = np.uint32(13), np.uint32(16)
_LARGEST = np.uint32(0xFFFFFFFF)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_FACTORS = types.Array(types.uint32, 1, "C", readonly=True)
_U64, _I8, _SIGNATURE = types.uint64[::1], types.int64[::1], types.uint32[:, ::1]


class Banding(NamedTuple):
    """How signatures are computed and cut: datasketch's permutations and its (b, r)."""

    slopes: np.ndarray
    """uint32 [permutations], odd."""
    offsets: np.ndarray
    bands: int
    rows: int

    @classmethod
    def for_threshold(cls, jaccard: float, permutations: int) -> "Banding":
        from datasketch import MinHash, MinHashLSH  # slow to import; exact dedup does without

        lsh = MinHashLSH(threshold=jaccard, num_perm=permutations, weights=WEIGHTS)
        minhash = MinHash(num_perm=permutations, scheme="affine32")
        slopes, offsets = np.ascontiguousarray(minhash.permutations, np.uint32)
        return cls(slopes, offsets, lsh.b, lsh.r)


def signatures(texts: Folded, shingle: int, banding: Banding) -> np.ndarray:
    """MinHash signatures [N, permutations] uint32 of the texts' word shingles."""
    result = np.empty((texts.count, len(banding.slopes)), np.uint32)
    _sign(*texts, shingle, banding.slopes, banding.offsets, result)
    return result


def band_keys(texts: Folded, shingle: int, banding: Banding) -> np.ndarray:
    """Keys [bands, N] uint64: texts agree in a band where their keys are equal."""
    keys = np.empty((banding.bands, texts.count), np.uint64)
    _band(signatures(texts, shingle, banding), banding.rows, keys)
    return keys


def shingle_sets(texts: Folded, shingle: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the distinct shingles, sorted: those of text i are hashes[ends[i]:ends[i+1]].

    uint64, and int64 [N+1]. Two of n shingles collide with probability below n²/2⁶⁵: 10⁻¹³ for
    the few thousand of a pair of texts.
    """
    hashes = np.empty(np.count_nonzero(texts.data == _SPACE) + texts.count, np.uint64)
    ends = np.zeros(texts.count + 1, np.int64)
    return hashes[: _sets(*texts, shingle, hashes, ends)], ends


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


@compiled(types.int64(_BYTES, types.int64, types.int64, types.int64, _U64))
def _shingles(data: Any, begin: Any, end: Any, size: Any, hashes: Any) -> Any:
    """Hash the shingles of data[begin:end]; returns how many. `hashes` has room for every word."""
    if begin == end:
        return 0
    words, hashed = np.int64(0), _BASIS
    for at in range(begin, end):
        if data[at] == _SPACE:
            hashes[words] = _mixed(hashed)
            words += 1
            hashed = _BASIS
        else:
            hashed = (hashed ^ np.uint64(data[at])) * _PRIME
    hashes[words] = _mixed(hashed)
    words += 1
    width = min(size, words)
    for i in range(words - width + 1):
        total = np.uint64(0)
        for k in range(width):
            total = total * _BASE + hashes[i + k]
        hashes[i] = _mixed(total)
    return words - width + 1


@compiled(types.int64(_BYTES, _I8))
def _most_words(data: Any, ends: Any) -> Any:
    most = np.int64(0)
    for text in range(ends.size - 1):
        spaces = np.int64(0)
        for at in range(ends[text], ends[text + 1]):
            spaces += data[at] == _SPACE
        most = max(most, spaces)
    return most + 1


@compiled(types.int64(_BYTES, _I8, types.int64, _U64, _I8))
def _sets(data: Any, ends: Any, size: Any, hashes: Any, set_ends: Any) -> Any:
    found = np.empty(_most_words(data, ends), np.uint64)
    used = np.int64(0)
    for text in range(ends.size - 1):
        count = _shingles(data, ends[text], ends[text + 1], size, found)
        ordered = np.sort(found[:count])
        for i in range(count):
            if i == 0 or ordered[i] != ordered[i - 1]:
                hashes[used] = ordered[i]
                used += 1
        set_ends[text + 1] = used
    return used


@compiled(types.void(_BYTES, _I8, types.int64, _FACTORS, _FACTORS, _SIGNATURE))
def _sign(data: Any, ends: Any, size: Any, slopes: Any, offsets: Any, signatures: Any) -> Any:
    """signatures[i, k] = min over the shingles h of text i of slopes[k]·h + offsets[k] mod 2³².

    A text without words keeps the largest value everywhere, as an empty MinHash does.
    """
    hashes = np.empty(_most_words(data, ends), np.uint64)
    for text in range(ends.size - 1):
        least = signatures[text]
        least[:] = _LARGEST
        count = _shingles(data, ends[text], ends[text + 1], size, hashes)
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
def _band(signatures: Any, rows: Any, keys: Any) -> Any:
    """keys[b, i]: 64 bits over values b·rows … (b+1)·rows - 1 of signature i."""
    for text in range(signatures.shape[0]):
        for number in range(keys.shape[0]):
            total = np.uint64(number)
            for k in range(number * rows, (number + 1) * rows):
                total = _mixed(total * _BASE + np.uint64(signatures[text, k]))
            keys[number, text] = total
