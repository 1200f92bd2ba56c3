"""The compiled loops that decide which near-duplicate candidates belong together.

Sets of shingles are compared exactly: sorted by hash, and equal hashes by their bytes, so that
`shared` counts equal shingles and nothing else. Groups are a union-find over row numbers whose
representative is the first row.
"""

from typing import Any

import numpy as np
from numba import types

from tasks.compiled import compiled
from tasks.minhash_kernel import room, shingles

_SPACE = np.uint8(32)
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_U64, _I8, _F8 = types.uint64[::1], types.int64[::1], types.float64[::1]
_SETS = (_BYTES, _U64, _I8, _I8)


@compiled(types.int64(_I8, types.int64))
def root(parent: Any, row: Any) -> Any:
    """The first row of the group of `row`."""
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


@compiled(types.void(_I8, types.int64, types.int64))
def _unite(parent: Any, one: Any, two: Any) -> Any:
    one, two = root(parent, one), root(parent, two)
    parent[max(one, two)] = min(one, two)


@compiled(types.void(_I8))
def flatten(parent: Any) -> Any:
    """Point every row at the first row of its group."""
    for row in range(parent.size):
        parent[row] = root(parent, row)


@compiled(types.int64(*_SETS, types.int64, types.int64))
def _order(data: Any, hashes: Any, starts: Any, stops: Any, a: Any, b: Any) -> Any:
    """Negative, zero or positive: shingle `a` sorts before, is, or sorts after shingle `b`."""
    if hashes[a] != hashes[b]:
        return -1 if hashes[a] < hashes[b] else 1
    one, two = starts[a], starts[b]
    while one < stops[a] and two < stops[b]:
        if data[one] != data[two]:
            return np.int64(data[one]) - np.int64(data[two])
        one, two = one + 1, two + 1
    return (stops[a] - one) - (stops[b] - two)


@compiled(types.int64(*_SETS, types.int64, types.int64))
def distinct(data: Any, hashes: Any, starts: Any, stops: Any, first: Any, last: Any) -> Any:
    """Sort shingles first … last-1 in place and drop repeats; returns the end of what is left."""
    order = np.argsort(hashes[first:last])
    by_hash, by_start = hashes[first:last][order], starts[first:last][order]
    by_stop = stops[first:last][order]
    hashes[first:last], starts[first:last], stops[first:last] = by_hash, by_start, by_stop
    for i in range(first + 1, last):  # only a collision of hashes finds anything to do here
        j = i
        while j > first and _order(data, hashes, starts, stops, j - 1, j) > 0:
            hashes[j - 1], hashes[j] = hashes[j], hashes[j - 1]
            starts[j - 1], starts[j] = starts[j], starts[j - 1]
            stops[j - 1], stops[j] = stops[j], stops[j - 1]
            j -= 1
    end = first
    for i in range(first, last):
        if end == first or _order(data, hashes, starts, stops, end - 1, i) != 0:
            hashes[end], starts[end], stops[end] = hashes[i], starts[i], stops[i]
            end += 1
    return end


@compiled(
    types.int64(*_SETS, types.int64, types.int64, types.int64, types.int64),
)
def shared(
    data: Any, hashes: Any, starts: Any, stops: Any, a: Any, a_end: Any, b: Any, b_end: Any
) -> Any:
    """How many shingles the distinct ones a … a_end-1 and b … b_end-1 have in common."""
    count = np.int64(0)
    while a < a_end and b < b_end:
        order = _order(data, hashes, starts, stops, a, b)
        count += order == 0
        a, b = a + (order <= 0), b + (order >= 0)
    return count


@compiled(types.int64(_BYTES, _I8, types.int64, _U64, _I8, _I8, _I8, _I8))
def sets(
    data: Any, ends: Any, size: Any, hashes: Any, starts: Any, stops: Any, firsts: Any, lasts: Any
) -> Any:
    """The distinct shingles of every text, sorted: those of text i at firsts[i] … lasts[i]-1.

    `hashes`, `starts` and `stops` need a place for every word. Returns the places used.
    """
    most = room(data, ends)
    words, places = np.empty(most, np.uint64), np.empty(most, np.int64)
    used = np.int64(0)
    for text in range(ends.size - 1):
        count, width = shingles(data, ends[text], ends[text + 1], size, words, places)
        firsts[text] = used
        for i in range(count):
            hashes[used + i] = words[i]
            starts[used + i], stops[used + i] = places[i], places[i + width] - 1
        used = distinct(data, hashes, starts, stops, used, used + count)
        lasts[text] = used
    return used


@compiled(types.int64(_BYTES))
def words_in(data: Any) -> Any:
    """No fewer than the words of texts back to back, but for one a text."""
    count = np.int64(0)
    for byte in data:
        count += byte == _SPACE
    return count


@compiled(
    types.int64(*_SETS, _I8, _I8, _I8, _I8, _I8, _I8, types.float64, types.int64[:, ::1], _F8)
)
def join(
    data: Any, hashes: Any, starts: Any, stops: Any, firsts: Any, lasts: Any,
    rows: Any, members: Any, edges: Any, parent: Any, jaccard: Any, pairs: Any, similarities: Any,
) -> Any:  # fmt: skip
    """Unite the members of each bucket whose similarity is `jaccard` or more.

    Bucket g holds texts members[edges[g]:edges[g+1]], ascending; text t is row rows[t]. Members
    already in one group are not compared again. Writes each uniting pair of rows with its
    similarity, at most one a member, and returns how many.
    """
    found = np.int64(0)
    after = np.empty(members.size, np.int64)  # next member of the same group in this bucket
    heads, tails = np.empty(members.size, np.int64), np.empty(members.size, np.int64)
    for bucket in range(edges.size - 1):
        groups = np.int64(0)
        for second in range(edges[bucket], edges[bucket + 1]):
            row, mine, left = rows[members[second]], np.int64(-1), np.int64(0)
            b, b_end = firsts[members[second]], lasts[members[second]]
            after[second] = -1
            for group in range(groups):
                first = heads[group]
                while first >= 0:
                    earlier = rows[members[first]]
                    if root(parent, earlier) == root(parent, row):
                        break
                    a, a_end = firsts[members[first]], lasts[members[first]]
                    small, large = min(a_end - a, b_end - b), max(a_end - a, b_end - b)
                    if small >= jaccard * large:
                        same = shared(data, hashes, starts, stops, a, a_end, b, b_end)
                        similarity = same / (small + large - same)
                        if similarity >= jaccard:
                            pairs[found, 0], pairs[found, 1] = earlier, row
                            similarities[found] = similarity
                            found += 1
                            _unite(parent, earlier, row)
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
