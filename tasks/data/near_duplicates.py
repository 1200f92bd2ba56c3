"""Near-duplicate texts: MinHash-LSH finds candidates, their Jaccard similarity decides.

A shingle is so many words in a row; a text of fewer words is one shingle, whole. Signatures are
datasketch's (scheme affine32: a·h + b mod 2³² with odd a, after the MurmurHash3 finalizer) and so
is the choice of bands; both are computed in bulk from one UTF-8 buffer, part by part, and kept on
disk, from where they are mapped. Candidates are compared by all of their shingles, whose hashes are
in memory.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba import types

from ...configs.settings.data import DedupSettings
from ...eval.progress import report
from ...eval.records import normalise_prompt
from .split_rows import TablePart
from .text_columns import BYTES, PLACES, SPACE, buffers, compiled

PROMPTS = "prompts.arrow"
WEIGHTS = 0.1, 0.9
"""Of false candidates and of misses in datasketch's choice of bands: the former cost a comparison,
the latter stay in the data. At Jaccard 0.7 it finds 92 % of the pairs (equal weights: 44 %)."""
_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a
_BASE = np.uint64(0x9E3779B97F4A7C15)
_FMIX_A, _FMIX_B = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_32, _33 = np.uint64(32), np.uint64(33)
_MIX_A, _MIX_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _16 = np.uint32(13), np.uint32(16)
_FACTORS = types.Array(types.uint32, 1, "C", readonly=True)
_U64, _I8, _SIGNATURE = types.uint64[::1], types.int64[::1], types.uint32[:, ::1]


@cache
def banding(jaccard: float, permutations: int) -> tuple[np.ndarray, int, int]:
    """datasketch's permutations (uint32 [2, permutations]: odd slopes, offsets), bands, rows."""
    from datasketch import MinHash, MinHashLSH  # slow to import; finished parts do without

    lsh = MinHashLSH(threshold=jaccard, num_perm=permutations, weights=WEIGHTS)
    minhash = MinHash(num_perm=permutations, scheme="affine32")
    return np.ascontiguousarray(minhash.permutations, np.uint32), lsh.b, lsh.r


def band_keys(texts: pa.Array, shingle: int, jaccard: float, permutations: int) -> np.ndarray:
    """Keys [bands, N] uint64: texts agree in a band where their keys are equal."""
    (slopes, offsets), bands, rows = banding(jaccard, permutations)
    signatures = np.full((len(texts), permutations), 0xFFFFFFFF, np.uint32)
    _sign(*buffers(texts), shingle, slopes, offsets, signatures)
    used = signatures[:, : bands * rows].astype(np.uint64).reshape(-1, bands, rows)
    return np.ascontiguousarray((used @ np.cumprod(np.full(rows, _BASE))).T)


def sign_part(part: TablePart, folder: Path, *, source: Path, settings: DedupSettings) -> None:
    """Write the folded prompts of a part, in row order, beside the keys of their bands."""

    def columns(table: pa.Table) -> pa.Table:
        text = folded(table["prompt"].to_pylist())
        keys = band_keys(text, settings.shingle, settings.jaccard, settings.permutations)
        return pa.table({"text": text} | {f"band {n}": pa.array(k) for n, k in enumerate(keys)})

    with pq.ParquetFile(source) as file:
        schema = columns(file.schema_arrow.empty_table()).schema
        with pa.ipc.new_file(folder / PROMPTS, schema) as writer:
            for number in range(part.first, part.last):
                table = file.read_row_group(number, ["prompt"], use_threads=False)
                writer.write_table(columns(table))


def folded(prompts: list[str]) -> pa.Array:
    """The normalised prompts as UTF-8."""
    texts = [normalise_prompt(prompt).encode("utf-8", "replace") for prompt in prompts]
    return pa.array(texts, pa.large_binary())


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
    first row of its group. Pairs already in one group are not compared. A text without words
    resembles none.
    """
    rows = rows[pc.call_function("binary_length", [texts]).to_numpy()[rows] > 0]
    bucketed = [buckets(keys.to_numpy(), rows) for keys in bands]
    is_candidate = np.zeros(len(texts), np.bool_)
    for members, _ in bucketed:
        is_candidate[members] = True
    candidates = np.flatnonzero(is_candidate)
    # The sorted hashes of the distinct shingles of candidate i are hashes[ends[i]:ends[i+1]]. Two
    # of n shingles collide with probability below n²/2⁶⁵: 10⁻¹³ for the thousands of a pair.
    data = buffers(texts.filter(pa.array(is_candidate)).combine_chunks())
    hashes = np.empty(int((data.ends - data.starts).sum()) // 2 + len(candidates), np.uint64)
    ends = np.zeros(len(candidates) + 1, np.int64)
    sets = hashes[: _sets(*data, shingle, hashes, ends)], ends
    parent = np.arange(len(candidates))
    pairs, similarities = np.empty((len(candidates), 2), np.int64), np.empty(len(candidates))
    joined = 0
    for number, (members, edges) in enumerate(bucketed):
        places = np.searchsorted(candidates, members)
        joined = _join(*sets, places, edges, parent, jaccard, joined, pairs, similarities)
        report(number + 1, len(bands), "near-duplicates")
    pairs, similarities = candidates[pairs[:joined]], similarities[:joined]
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    first = np.arange(len(texts))
    first[candidates] = candidates[parent]
    return pairs[order], similarities[order], first


def buckets(keys: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of `rows` (ascending) that share their key with another of them. Bucket b is
    `members[edges[b]:edges[b+1]]`. Buckets come by ascending first row, their members ascending."""
    codes = pa.array(keys[rows]).dictionary_encode().indices.to_numpy()
    sizes = np.bincount(codes)
    shared = np.flatnonzero(sizes[codes] > 1)
    members = rows[shared[np.argsort(codes[shared], kind="stable")]]
    return members, np.concatenate([[0], np.cumsum(sizes[sizes > 1])])


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
    own_hashes = np.empty((ends - starts).max() // 2 + 1 if ends.size else 0, np.uint64)
    used = np.int64(0)
    for text in range(ends.size):
        count = _shingles(data, starts[text], ends[text], size, own_hashes)
        distinct = np.unique(own_hashes[:count])
        hashes[used : used + distinct.size] = distinct
        used += distinct.size
        set_ends[text + 1] = used
    return used


@compiled(types.void(BYTES, PLACES, PLACES, types.int64, _FACTORS, _FACTORS, _SIGNATURE))
def _sign(
    data: Any, starts: Any, ends: Any, size: Any, slopes: Any, offsets: Any, signatures: Any
) -> Any:
    """signatures[i, k] = min over the shingles h of text i of slopes[k]·h + offsets[k] mod 2³².
    They hold the largest value before; a text without words keeps it, as an empty MinHash does."""
    hashes = np.empty((ends - starts).max() // 2 + 1 if ends.size else 0, np.uint64)
    for text in range(ends.size):
        least = signatures[text]
        count = _shingles(data, starts[text], ends[text], size, hashes)
        for i in range(count):
            hashed = _sketched(hashes[i])
            for k in range(slopes.size):
                least[k] = min(least[k], np.uint32(slopes[k] * hashed + offsets[k]))


@compiled(types.int64(_I8, types.int64))
def _root(parent: Any, row: Any) -> Any:
    """The first row of the group of `row`."""
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


@compiled(types.int64(_U64, types.int64, types.int64, types.int64, types.int64))
def _shared(hashes: Any, a: Any, a_end: Any, b: Any, b_end: Any) -> Any:
    """How many hashes the sets a … a_end-1 and b … b_end-1 have in common."""
    count = np.int64(0)
    while a < a_end and b < b_end:
        one, two = hashes[a], hashes[b]
        count += one == two
        a, b = a + (one <= two), b + (one >= two)
    return count


@compiled(
    types.int64(
        *(_U64, _I8, _I8, _I8, _I8, types.float64, types.int64),
        *(types.int64[:, ::1], types.float64[::1]),
    )
)
def _join(
    hashes: Any, ends: Any, members: Any, edges: Any, parent: Any, jaccard: Any, joined: Any,
    pairs: Any, similarities: Any,
) -> Any:  # fmt: skip
    """Unite the members of each bucket whose similarity is `jaccard` or more.

    Bucket g holds texts members[edges[g]:edges[g+1]], ascending; the set of text t is
    hashes[ends[t]:ends[t+1]]. Writes each uniting pair with its similarity after the `joined`
    earlier ones, and returns how many there are: fewer than texts. `parent` names the first text of
    every group before and after.
    """
    for bucket in range(edges.size - 1):
        for later in range(edges[bucket] + 1, edges[bucket + 1]):
            b = members[later]
            size = ends[b + 1] - ends[b]
            for earlier in range(edges[bucket], later):
                a = members[earlier]
                if _root(parent, a) == _root(parent, b):
                    continue
                other = ends[a + 1] - ends[a]
                if min(size, other) >= jaccard * max(size, other):
                    same = _shared(hashes, ends[a], ends[a + 1], ends[b], ends[b + 1])
                    similarity = same / (size + other - same)
                    if similarity >= jaccard:
                        pairs[joined, 0], pairs[joined, 1] = a, b
                        similarities[joined] = similarity
                        joined += 1
                        one, two = _root(parent, a), _root(parent, b)
                        parent[max(one, two)] = min(one, two)
    for text in range(parent.size):
        parent[text] = _root(parent, text)
    return joined
