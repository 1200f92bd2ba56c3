"""All pairs of texts with a Jaccard similarity of at least t: a prefix-filter self-join, no hash
tables and nothing approximate. The truth that the benches measure recall against.

Two sets that similar share one of the |x| - ⌈t·|x|⌉ + 1 rarest shingles of each (Bayardo et al.,
Scaling up all pairs similarity search, 2007).
"""

import math

import numba
import numpy as np
import pyarrow as pa

from tasks.data.near_duplicates import shingle_sets

AT_MOST = 5_000_000


def exact_pairs(texts: pa.Array, shingle: int, jaccard: float) -> np.ndarray:
    """int64 [P, 2], first < second."""
    hashes, ends = shingle_sets(texts, shingle)
    firsts, lasts = ends[:-1], ends[1:]
    _, codes, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    tokens = rank[codes]
    sizes = lasts - firsts
    for first, last in zip(firsts, lasts, strict=True):
        tokens[first:last].sort()
    by_size = np.argsort(sizes, kind="stable")
    by_size = by_size[sizes[by_size] > 0]
    prefix = np.array([n - math.ceil(jaccard * n) + 1 for n in sizes], np.int64)
    pairs = np.empty((AT_MOST, 2), np.int64)
    found = _join(tokens, firsts, sizes, prefix, by_size, len(counts), jaccard, pairs)
    if found == AT_MOST:
        raise ValueError(f"more than {AT_MOST} pairs")
    pairs = np.sort(pairs[:found], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


@numba.njit
def _join(tokens, firsts, sizes, prefix, by_size, distinct, jaccard, pairs):
    """Texts by size; each meets the smaller ones in the lists of its prefix's shingles."""
    begin = np.zeros(distinct + 1, np.int64)
    for x in by_size:
        for i in range(firsts[x], firsts[x] + prefix[x]):
            begin[tokens[i] + 1] += 1
    begin = np.cumsum(begin)
    end = begin[:-1].copy()
    lists = np.empty(begin[-1], np.int64)
    met = np.full(len(sizes), -1, np.int64)
    found = 0
    for x in by_size:
        for i in range(firsts[x], firsts[x] + prefix[x]):
            token = tokens[i]
            for k in range(begin[token], end[token]):
                y = lists[k]
                if met[y] == x or sizes[y] < jaccard * sizes[x]:
                    continue
                met[y] = x
                same = _shared(tokens, firsts[x], sizes[x], firsts[y], sizes[y])
                if same / (sizes[x] + sizes[y] - same) >= jaccard and found < len(pairs):
                    pairs[found, 0], pairs[found, 1] = x, y
                    found += 1
            lists[end[token]] = x
            end[token] += 1
    return found


@numba.njit
def _shared(tokens, a, a_size, b, b_size):
    count, a_end, b_end = 0, a + a_size, b + b_size
    while a < a_end and b < b_end:
        if tokens[a] == tokens[b]:
            count, a, b = count + 1, a + 1, b + 1
        elif tokens[a] < tokens[b]:
            a += 1
        else:
            b += 1
    return count
