"""Near-duplicate texts: MinHash-LSH finds candidates, their Jaccard similarity decides.

One band of keys is in memory at a time. Candidates are compared by all of their shingles. Groups
are a union-find over row numbers whose representative is the first row.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import types

from tasks.data.compiled import compiled
from tasks.data.duplicates.first_rows import first_rows, repeated
from tasks.data.duplicates.minhash import shingle_sets
from tasks.data.duplicates.prompt_parts import ComputedParts
from tasks.stage.progress import report

BYTES_AT_ONCE = 16 << 20
"""Text of candidates held at a time; a bucket with more is held alone."""
_U64, _I8, _F8 = types.uint64[::1], types.int64[::1], types.float64[::1]


class NearPairs(NamedTuple):
    """Pairs of rows that united two groups, ordered, with their exact similarity."""

    rows: np.ndarray
    """int64 [P, 2], the earlier row first."""
    jaccard: np.ndarray
    """float64 [P]."""


def near_groups(
    texts: ComputedParts, rows: np.ndarray, *, bands: int, jaccard: float, shingle: int
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
            compared, places = np.unique(bucket_rows, return_inverse=True)
            sets = shingle_sets(texts.texts(compared), shingle)
            joined = np.empty((len(places), 2), np.int64)
            similarity = np.empty(len(places))
            found = _join(
                *sets, compared, places, bucket_edges, parent, jaccard, joined, similarity
            )
            pairs.append(joined[:found])
            similarities.append(similarity[:found])
        report(number + 1, bands, "near-duplicates")
    united, jaccards = np.concatenate(pairs), np.concatenate(similarities)
    order = np.lexsort((united[:, 1], united[:, 0]))
    _flatten(parent)
    return NearPairs(united[order], jaccards[order]), parent


def _chunks(
    members: np.ndarray, edges: np.ndarray, lengths: np.ndarray, parent: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Buckets not yet in one group, as many at a time as BYTES_AT_ONCE of text allow."""
    _flatten(parent)
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


@compiled(
    types.int64(_U64, _I8, _I8, _I8, _I8, _I8, types.float64, types.int64[:, ::1], _F8),
)
def _join(
    hashes: Any,
    ends: Any,
    rows: Any,
    members: Any,
    edges: Any,
    parent: Any,
    jaccard: Any,
    pairs: Any,
    similarities: Any,
) -> Any:
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
