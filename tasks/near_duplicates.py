"""Near-duplicate texts: MinHash-LSH finds candidates, the exact Jaccard similarity decides.

The signatures are datasketch's (scheme affine32: a·h + b mod 2³² with odd a), computed for many
texts at once; its `MinHashLSH` says how to cut them into bands. Buckets come from sorting each
band, so the memory is the signatures and no index.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import xxhash

from tasks.ngrams import Gram, ngrams, whitespace_words
from tasks.progress import report

TEXTS_AT_ONCE = 4096
HASHES_AT_ONCE = 32_768
"""Hashes permuted in one go: the buffers stay in the cache."""

_PAD = 0
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(33)


class NearPair(NamedTuple):
    """Two texts (numbers in reading order, first < second) that joined two groups."""

    first: int
    second: int
    jaccard: float


class _WordHashes(dict[str, int]):
    """64-bit hash of every word met, computed once; it does not depend on the other texts."""

    def __missing__(self, word: str) -> int:
        value = xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) or 1
        self[word] = value
        return value


class ShingledTexts:
    """The words of all texts as 64-bit hashes, back to back.

    A text shorter than a shingle is filled up to exactly one, which only the same words give;
    a text without words has no shingle and resembles nothing.
    """

    def __init__(self, texts: Iterable[str], shingle: int) -> None:
        self.shingle = shingle
        hashes, parts, lengths = _WordHashes(), [], []
        texts = iter(texts)
        while batch := [whitespace_words(text) for text in islice(texts, TEXTS_AT_ONCE)]:
            lengths += [max(len(words), shingle) if words else 0 for words in batch]
            flat = chain.from_iterable(self._padded(words, hashes) for words in batch)
            parts.append(np.fromiter(flat, dtype=np.uint64))
        self.words = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def shingles(self, number: int) -> frozenset[Gram]:
        """The distinct shingles of one text, as tuples of word hashes."""
        words = self.words[self.starts[number] : self.starts[number + 1]].tolist()
        return frozenset(ngrams(words, self.shingle))

    def hashes(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """uint32 hashes [S] of the shingles of texts first..last-1 and where each text starts."""
        begin, end = self.starts[first], self.starts[last]
        words = self.words[begin:end]
        starts = self.starts[first : last + 1] - begin
        total = np.zeros(max(len(words) - self.shingle + 1, 0), np.uint64)
        for k in range(self.shingle):
            total = total * _BASE + words[k : k + len(total)]
        total = (total ^ (total >> _HALF)) * _MIX
        counts = np.maximum(np.diff(starts) - (self.shingle - 1), 0)
        firsts = np.cumsum(counts) - counts
        # Place of every shingle: those that would run into the next text are left out.
        places = np.arange(counts.sum()) + np.repeat(starts[:-1] - firsts, counts)
        return (total[places] >> np.uint64(32)).astype(np.uint32), firsts

    def _padded(self, words: list[str], hashes: _WordHashes) -> Iterable[int]:
        known = map(hashes.__getitem__, words)
        if not words or len(words) >= self.shingle:
            return known
        return chain(known, [_PAD] * (self.shingle - len(words)))


def signatures(texts: ShingledTexts, permutations: int) -> np.ndarray:
    """MinHash signatures [N, permutations], uint32; rows of texts without words are arbitrary."""
    from datasketch import MinHash  # slow to import, and exact dedup does without

    minhash = MinHash(num_perm=permutations, scheme="affine32")
    slopes, offsets = np.asarray(minhash.permutations, np.uint32)
    result = np.zeros((permutations, len(texts)), np.uint32)
    for first, last in _runs(texts.starts, HASHES_AT_ONCE):
        hashes, firsts = texts.hashes(first, last)
        if not len(hashes):
            continue
        hashes = _fmix32(hashes)
        # One value more, the largest: a last text without words has a place to point to.
        permuted = np.full(len(hashes) + 1, np.iinfo(np.uint32).max, np.uint32)
        for k in range(permutations):
            np.multiply(hashes, slopes[k], out=permuted[:-1])
            np.add(permuted[:-1], offsets[k], out=permuted[:-1])
            np.minimum.reduceat(permuted, firsts, out=result[k, first:last])
    return result.T


def buckets(signature: np.ndarray, bands: int, rows: int) -> Iterator[list[int]]:
    """Texts (two or more, ascending) that agree in all `rows` values of a band, band by band."""
    for band in range(bands):
        key = np.zeros(len(signature), np.uint64)
        for k in range(band * rows, (band + 1) * rows):
            key = (key ^ signature[:, k]) * _BASE
            key ^= key >> _HALF
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        edges = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1], [True]]))
        for start in np.flatnonzero(np.diff(edges) > 1):
            yield order[edges[start] : edges[start + 1]].tolist()


def near_duplicates(
    texts: Iterable[str], *, jaccard: float, shingle: int, permutations: int
) -> tuple[list[NearPair], list[int]]:
    """Groups of texts joined by Jaccard similarity ≥ `jaccard` of their word shingles.

    Returns the pairs that joined groups (each verified exactly), and for every text the number
    of the first text of its group. Pairs already in one group are not compared again, so the
    work stays linear in a group of many copies.
    """
    shingled = ShingledTexts(texts, shingle)
    worded = np.flatnonzero(np.diff(shingled.starts) > 0)
    from datasketch import MinHashLSH

    lsh = MinHashLSH(threshold=jaccard, num_perm=permutations)
    groups = _Groups(len(shingled))
    shingles = lru_cache(maxsize=8192)(shingled.shingles)
    compared: set[tuple[int, int]] = set()
    pairs: list[NearPair] = []
    signature = signatures(shingled, permutations)[worded]
    for bucket in buckets(signature, lsh.b, lsh.r):
        members = worded[bucket].tolist()
        for first, second in groups.candidates(members):
            if (first, second) in compared:
                continue
            compared.add((first, second))
            a, b = shingles(first), shingles(second)
            shared = len(a & b)
            similarity = shared / (len(a) + len(b) - shared)
            if similarity >= jaccard:
                groups.join(first, second)
                pairs.append(NearPair(first, second, similarity))
    return sorted(pairs), [groups.first(i) for i in range(len(shingled))]


class _Groups:
    """Union-find whose representative is the first text of the group."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def first(self, i: int) -> int:
        while self._parent[i] != i:
            self._parent[i] = self._parent[self._parent[i]]
            i = self._parent[i]
        return i

    def join(self, i: int, j: int) -> None:
        a, b = sorted((self.first(i), self.first(j)))
        self._parent[b] = a

    def candidates(self, members: list[int]) -> Iterator[tuple[int, int]]:
        """Pairs of `members` not in one group yet; the caller joins those that belong together."""
        seen: dict[int, list[int]] = {}
        for second in members:
            for root, earlier in list(seen.items()):
                for first in earlier:
                    if self.first(first) == self.first(second):
                        break
                    yield first, second
                if self.first(root) != root:
                    seen.setdefault(self.first(root), []).extend(seen.pop(root))
            seen.setdefault(self.first(second), []).append(second)


def _fmix32(hashes: np.ndarray) -> np.ndarray:
    """The MurmurHash3 finalizer, which datasketch applies before its affine permutations."""
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _runs(starts: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of texts with about `size` words each (a longer text stands alone)."""
    first, count = 0, len(starts) - 1
    while first < count:
        last = int(np.searchsorted(starts, starts[first] + size, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        report(last, count, "signatures")
        first = last
