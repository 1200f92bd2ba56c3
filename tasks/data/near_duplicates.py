"""Near-duplicate texts: MinHash-LSH finds candidates, their Jaccard similarity decides.

A shingle is so many words in a row; a text of fewer words is one shingle, whole. Signatures are
datasketch's (scheme affine32: a·h + b mod 2³² with odd a, after the MurmurHash3 finalizer) and so
is the choice of bands; both are computed in bulk from one UTF-8 buffer. One band of keys is in
memory at a time, and candidates are compared by all of their shingles.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types

from tasks.data.text_columns import BYTES, PLACES, SPACE, buffers, compiled
from tasks.stage.progress import report

WEIGHTS = 0.1, 0.9
"""Of false candidates and of misses in datasketch's choice of bands: the former cost a comparison,
the latter stay in the data. At Jaccard 0.7 it finds 92 % of the pairs (equal weights: 44 %)."""
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_BASE = np.uint64(0x9E3779B97F4A7C15)
_FMIX_A, _FMIX_B = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_32, _33 = np.uint64(32), np.uint64(33)
_MIX_A, _MIX_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _16 = np.uint32(13), np.uint32(16)
_LARGEST = np.uint32(0xFFFFFFFF)
_FACTORS = types.Array(types.uint32, 1, "C", readonly=True)
_U64, _I8, _SIGNATURE = types.uint64[::1], types.int64[::1], types.uint32[:, ::1]
BYTES_AT_ONCE = 16 << 20
"""Text of candidates held at a time; a bucket with more is held alone."""


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


def band_keys(texts: pa.Array, shingle: int, banding: Banding) -> np.ndarray:
    """Keys [bands, N] uint64: texts agree in a band where their keys are equal."""
    signatures = np.empty((len(texts), len(banding.slopes)), np.uint32)
    _sign(*buffers(texts), shingle, banding.slopes, banding.offsets, signatures)
    keys = np.empty((banding.bands, len(texts)), np.uint64)
    _band(signatures, banding.rows, keys)
    return keys


def shingle_sets(texts: pa.Array, shingle: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the distinct shingles, sorted: those of text i are hashes[ends[i]:ends[i+1]].

    uint64, and int64 [N+1]. Two of n shingles collide with probability below n²/2⁶⁵: 10⁻¹³ for
    the few thousand of a pair of texts.
    """
    data = buffers(texts)
    hashes = np.empty(int((data.ends - data.starts).sum()) // 2 + len(texts), np.uint64)
    ends = np.zeros(len(texts) + 1, np.int64)
    return hashes[: _sets(*data, shingle, hashes, ends)], ends


def near_groups(
    texts: pa.ChunkedArray,
    bands: list[pa.ChunkedArray],
    rows: np.ndarray,
    *,
    jaccard: float,
    shingle: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups among `rows` (ascending), joined by Jaccard similarity ≥ `jaccard` of word shingles.

    `bands` are the keys of all texts, band by band. Returns the pairs of rows that joined groups
    (int64 [P, 2], ordered), their similarities (float64 [P]) and, for every text (int64 [N]), the
    first row of its group. Pairs already in one group are not compared again, so the work stays
    linear in a group of many copies. A text without words resembles none.
    """
    parent = np.arange(len(texts))
    lengths = pc.call_function("binary_length", [texts]).to_numpy()
    rows = rows[lengths[rows] > 0]
    pairs, similarities = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    for number, keys in enumerate(bands):
        members, edges = buckets(keys.to_numpy(), rows)
        for some, some_edges in _open_buckets(members, edges, lengths, parent):
            compared, places = np.unique(some, return_inverse=True)
            sets = shingle_sets(_taken(texts, compared), shingle)
            joined, similarity = np.empty((len(places), 2), np.int64), np.empty(len(places))
            found = _join(*sets, compared, places, some_edges, parent, jaccard, joined, similarity)
            pairs.append(joined[:found])
            similarities.append(similarity[:found])
        report(number + 1, len(bands), "near-duplicates")
    united, jaccards = np.concatenate(pairs), np.concatenate(similarities)
    order = np.lexsort((united[:, 1], united[:, 0]))
    _flatten(parent)
    return united[order], jaccards[order], parent


def buckets(keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of `rows` (ascending) that share their key with another of them.

    Bucket b is `members[edges[b]:edges[b+1]]`. Buckets come by ascending first row, their members
    ascending.
    """
    codes = pa.array(keys[rows]).dictionary_encode().indices.to_numpy()
    sizes = np.bincount(codes)
    shared = np.flatnonzero(sizes[codes] > 1)
    members = rows[shared[np.argsort(codes[shared], kind="stable")]]
    return members, np.concatenate([[0], np.cumsum(sizes[sizes > 1])])


def _open_buckets(
    members: np.ndarray, edges: np.ndarray, lengths: np.ndarray, parent: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Buckets not yet in one group, as many at a time as BYTES_AT_ONCE of text allow."""
    _flatten(parent)
    groups, starts, sizes = parent[members], edges[:-1], np.diff(edges)
    if not len(starts):
        return
    open_ = np.minimum.reduceat(groups, starts) != np.maximum.reduceat(groups, starts)
    members = members[np.repeat(open_, sizes)]
    edges = np.concatenate([[0], np.cumsum(sizes[open_])])
    until = np.concatenate([[0], np.cumsum(lengths[members])])[edges]
    first, last = 0, len(edges) - 1
    while first < last:
        fitting = int(np.searchsorted(until, until[first] + BYTES_AT_ONCE, side="right")) - 1
        stop = max(fitting, first + 1)
        yield members[edges[first] : edges[stop]], edges[first : stop + 1] - edges[first]
        first = stop


def _taken(texts: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """The texts of ascending `rows`; of all chunks at once Arrow would copy every text first."""
    taken, before = [], 0
    for chunk in texts.chunks:
        first, last = np.searchsorted(rows, (before, before + len(chunk)))
        taken.append(chunk.take(pa.array(rows[first:last] - before)))
        before += len(chunk)
    return pa.concat_arrays(taken)


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


@compiled(types.int64(BYTES, types.int64, types.int64, types.int64, _U64))
def _shingles(data: Any, begin: Any, end: Any, size: Any, hashes: Any) -> Any:
    """Hash the shingles of data[begin:end]; returns how many. `hashes` has room for every word."""
    if begin == end:
        return 0
    words, hashed = np.int64(0), _BASIS
    for at in range(begin, end):
        if data[at] == SPACE:
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


@compiled(types.int64(BYTES, PLACES, PLACES, types.int64, _U64, _I8))
def _sets(data: Any, starts: Any, ends: Any, size: Any, hashes: Any, set_ends: Any) -> Any:
    found = np.empty((ends - starts).max() // 2 + 1 if ends.size else 0, np.uint64)
    used = np.int64(0)
    for text in range(ends.size):
        count = _shingles(data, starts[text], ends[text], size, found)
        ordered = np.sort(found[:count])
        for i in range(count):
            if i == 0 or ordered[i] != ordered[i - 1]:
                hashes[used] = ordered[i]
                used += 1
        set_ends[text + 1] = used
    return used


@compiled(types.void(BYTES, PLACES, PLACES, types.int64, _FACTORS, _FACTORS, _SIGNATURE))
def _sign(
    data: Any, starts: Any, ends: Any, size: Any, slopes: Any, offsets: Any, signatures: Any
) -> Any:
    """signatures[i, k] = min over the shingles h of text i of slopes[k]·h + offsets[k] mod 2³².

    A text without words keeps the largest value everywhere, as an empty MinHash does.
    """
    hashes = np.empty((ends - starts).max() // 2 + 1 if ends.size else 0, np.uint64)
    for text in range(ends.size):
        least = signatures[text]
        least[:] = _LARGEST
        count = _shingles(data, starts[text], ends[text], size, hashes)
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


@compiled(types.int64(_I8, types.int64))
def _root(parent: Any, row: Any) -> Any:
    """The first row of the group of `row`."""
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


@compiled(types.void(_I8))
def _flatten(parent: Any) -> Any:
    """Point every row at the first row of its group."""
    for row in range(parent.size):
        parent[row] = _root(parent, row)


@compiled(types.int64(_U64, types.int64, types.int64, types.int64, types.int64))
def _shared(hashes: Any, a: Any, a_end: Any, b: Any, b_end: Any) -> Any:
    """How many hashes the sets a … a_end-1 and b … b_end-1 have in common."""
    count = np.int64(0)
    while a < a_end and b < b_end:
        one, two = hashes[a], hashes[b]
        count += one == two
        a, b = a + (one <= two), b + (one >= two)
    return count


_FLOATS = types.float64[::1]


@compiled(types.int64(_U64, *(_I8,) * 5, types.float64, types.int64[:, ::1], _FLOATS))
def _join(
    hashes: Any, ends: Any, rows: Any, members: Any, edges: Any, parent: Any,
    jaccard: Any, pairs: Any, similarities: Any,
) -> Any:  # fmt: skip
    """Unite the members of each bucket whose similarity is `jaccard` or more.

    Bucket g holds texts members[edges[g]:edges[g+1]], ascending; text t is row rows[t] and its
    set is hashes[ends[t]:ends[t+1]]. Members already in one group are not compared again. Writes
    each uniting pair of rows with its similarity, at most one a member, and returns how many.
    """
    found = np.int64(0)
    after = np.empty(members.size, np.int64)  # next member of the same group in this bucket
    heads, tails = np.empty(members.size, np.int64), np.empty(members.size, np.int64)
    for bucket in range(edges.size - 1):
        groups = np.int64(0)
        for second in range(edges[bucket], edges[bucket + 1]):
            row, mine, left = rows[members[second]], np.int64(-1), np.int64(0)
            b, b_end = ends[members[second]], ends[members[second] + 1]
            after[second] = -1
            for group in range(groups):
                first = heads[group]
                while first >= 0:
                    earlier = rows[members[first]]
                    if _root(parent, earlier) == _root(parent, row):
                        break
                    a, a_end = ends[members[first]], ends[members[first] + 1]
                    small, large = min(a_end - a, b_end - b), max(a_end - a, b_end - b)
                    if small >= jaccard * large:
                        same = _shared(hashes, a, a_end, b, b_end)
                        similarity = same / (small + large - same)
                        if similarity >= jaccard:
                            pairs[found, 0], pairs[found, 1] = earlier, row
                            similarities[found] = similarity
                            found += 1
                            one, two = _root(parent, earlier), _root(parent, row)
                            parent[max(one, two)] = min(one, two)
                            break
                    first = after[first]
                if first < 0 or mine < 0:
                    heads[left], tails[left] = heads[group], tails[group]
                    if first >= 0:
                        mine = left
                    left += 1
                else:  # the new member united this group with one before it
                    after[tails[mine]] = heads[group]
                    tails[mine] = tails[group]
            groups = left
            if mine < 0:
                heads[groups], tails[groups] = second, second
                groups += 1
            else:
                after[tails[mine]] = second
                tails[mine] = second
    return found
