"""Near-duplicate texts: MinHash-LSH finds candidates, the exact Jaccard similarity decides.

Signatures are datasketch's (scheme affine32: a·h + b mod 2³² with odd a, after the MurmurHash3
finalizer) and so is the choice of bands; both are computed in bulk from one UTF-8 buffer. Only
the band keys are kept, and of those one band is in memory at a time. Candidates are compared by
their shingles' own bytes, so the similarity is exact whatever the hashes do.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tasks import join_kernel, minhash_kernel
from tasks.first_rows import first_rows, repeated
from tasks.folding import Folded, fold
from tasks.progress import report

WEIGHTS = 0.1, 0.9
"""Of false candidates and of misses in datasketch's choice of bands: the former cost a comparison,
the latter stay in the data. At Jaccard 0.7 it finds 92 % of the pairs (equal weights: 44 %)."""
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


class Texts(Protocol):
    """Folded texts by row, and their keys band by band: in memory, or in the parts of a stage."""

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of every text: int64 [N]."""
        ...

    def band(self, number: int) -> np.ndarray:
        """Keys of one band: uint64 [N]."""
        ...

    def texts(self, rows: np.ndarray) -> Folded:
        """The texts of ascending `rows`."""
        ...


class NearPairs(NamedTuple):
    """Pairs of rows that united two groups, ordered, with their exact similarity."""

    rows: np.ndarray
    """int64 [P, 2], the earlier row first."""
    jaccard: np.ndarray
    """float64 [P]."""


def signatures(texts: Folded, shingle: int, banding: Banding) -> np.ndarray:
    """MinHash signatures [N, permutations] uint32 of the texts' word shingles."""
    result = np.empty((texts.count, len(banding.slopes)), np.uint32)
    minhash_kernel.sign(*texts, shingle, banding.slopes, banding.offsets, result)
    return result


def band_keys(texts: Folded, shingle: int, banding: Banding) -> np.ndarray:
    """Keys [bands, N] uint64: texts agree in a band where their keys are equal."""
    keys = np.empty((banding.bands, texts.count), np.uint64)
    minhash_kernel.band(signatures(texts, shingle, banding), banding.rows, keys)
    return keys


def near_groups(
    texts: Texts, rows: np.ndarray, *, bands: int, jaccard: float, shingle: int
) -> tuple[NearPairs, np.ndarray]:
    """Groups among `rows` (ascending), joined by Jaccard similarity ≥ `jaccard` of word shingles.

    Returns the pairs that joined groups and, for every row of `texts` (int64 [N]), the first row
    of its group. Pairs already in one group are not compared again, so the work stays linear in
    a group of many copies. A text without words resembles nothing.
    """
    parent = np.arange(len(texts.lengths))
    rows = rows[texts.lengths[rows] > 0]
    pairs, similarities = [np.zeros((0, 2), np.int64)], [np.zeros(0)]
    for number in range(bands):
        members, edges = repeated(first_rows(texts.band(number)[:, None], rows), rows)
        for bucket_rows, bucket_edges in _chunks(members, edges, texts.lengths, parent):
            joined, similarity = _join(texts, bucket_rows, bucket_edges, parent, jaccard, shingle)
            pairs.append(joined)
            similarities.append(similarity)
        report(number + 1, bands, "near-duplicates")
    found, jaccards = np.concatenate(pairs), np.concatenate(similarities)
    order = np.lexsort((found[:, 1], found[:, 0]))
    join_kernel.flatten(parent)
    return NearPairs(found[order], jaccards[order]), parent


def near_duplicates(
    texts: Iterable[str], *, jaccard: float, shingle: int, permutations: int
) -> tuple[NearPairs, np.ndarray]:
    """`near_groups` of texts in memory; see there."""
    banding = Banding.for_threshold(jaccard, permutations)
    held = _Held(fold(pa.array(texts, pa.large_string())), shingle, banding)
    rows = np.arange(held.folded.count)
    return near_groups(held, rows, bands=banding.bands, jaccard=jaccard, shingle=shingle)


class _Held:
    """Texts in memory."""

    def __init__(self, folded: Folded, shingle: int, banding: Banding) -> None:
        self.folded = folded
        self.keys = band_keys(folded, shingle, banding)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.folded.ends)

    def band(self, number: int) -> np.ndarray:
        return self.keys[number]

    def texts(self, rows: np.ndarray) -> Folded:
        return self.folded.take(rows)


def _chunks(
    members: np.ndarray, edges: np.ndarray, lengths: np.ndarray, parent: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Buckets not yet in one group, as many at a time as BYTES_AT_ONCE of text allow."""
    join_kernel.flatten(parent)
    if not len(members):
        return
    groups, starts = parent[members], edges[:-1]
    open_ = np.minimum.reduceat(groups, starts) != np.maximum.reduceat(groups, starts)
    members = members[np.repeat(open_, np.diff(edges))]
    edges = np.concatenate([[0], np.cumsum(np.diff(edges)[open_])])
    sizes = np.concatenate([[0], np.cumsum(lengths[members])])[edges]
    first, last = 0, len(edges) - 1
    while first < last:
        stop = int(np.searchsorted(sizes, sizes[first] + BYTES_AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), last)
        yield members[edges[first] : edges[stop]], edges[first : stop + 1] - edges[first]
        first = stop


def _join(
    texts: Texts,
    members: np.ndarray,
    edges: np.ndarray,
    parent: np.ndarray,
    jaccard: float,
    shingle: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Compare the members of each bucket and unite in `parent` what is near; the uniting pairs."""
    rows, numbers = np.unique(members, return_inverse=True)
    folded = texts.texts(rows)
    words = join_kernel.words_in(folded.data) + len(rows)
    hashes, starts, stops = (np.empty(words, t) for t in (np.uint64, np.int64, np.int64))
    firsts, lasts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    join_kernel.sets(*folded, shingle, hashes, starts, stops, firsts, lasts)
    pairs, similarities = np.empty((len(members), 2), np.int64), np.empty(len(members))
    found = join_kernel.join(
        *(folded.data, hashes, starts, stops, firsts, lasts),
        *(rows, numbers, edges, parent, jaccard, pairs, similarities),
    )
    return pairs[:found], similarities[:found]
