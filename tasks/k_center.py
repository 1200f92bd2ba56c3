"""K-Center-Greedy: a subset whose farthest left-out point is near (Tables 4-5; Sener & Savarese,
arXiv 1708.00489).

The naive algorithm looks at all n points after every pick. But distances to the picks only ever
shrink, so an old distance is an upper bound, and a point whose bound is below the farthest point
has no say in the next pick: it is left alone until its turn comes. The points with the largest
bounds are brought up to date in blocks, by one float32 matrix product that proposes which picks
may be nearest and a float64 sum that decides. Every decision rests on those sums, whose order of
addition is fixed, so the picks are the same on every machine and with any number of threads.
"""

import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import types

from tasks.compiled import compiled
from tasks.progress import report

SHARE, LEAST, MOST = 16, 2048, 16_384
"""A block is one point in so many, within these bounds."""
SECONDS_PER_CHECKPOINT = 60.0
ROWS_AT_ONCE = 2048
"""Rows of one matrix product, which then stays in the cache."""
_F4 = types.Array(types.float32, 2, "C", readonly=True)
_F8 = types.Array(types.float64, 2, "C", readonly=True)
_F4M, _F4V = types.float32[:, ::1], types.float32[::1]
_I8, _D8 = types.int64[::1], types.float64[::1]


@dataclass(frozen=True)
class KCenters:
    """`picks` in greedy order; `radius` is the distance of the farthest point to its center."""

    picks: list[int]
    radius: float


def k_center_greedy(
    points: np.ndarray,
    k: int,
    first: int = 0,
    block: int | None = None,
    checkpoint: Path | None = None,
) -> KCenters:
    """Pick `k` of `points` [n, d]: `first`, then always the point farthest from all picks.

    Distances are Euclidean, of float64 or float32 points as they are; of equally far points the
    lowest index wins. Memory beyond the points: a float32 copy of float64 ones, and a few numbers
    a point. Raises ValueError when k is not in 1..n or a coordinate is not finite.
    With `checkpoint` the state is saved there once a minute, and a second call goes on from it.
    """
    if not 1 <= k <= len(points):
        raise ValueError(f"cannot pick {k} of {len(points)} points")
    block = block or min(max(len(points) // SHARE, LEAST), MOST)
    greedy = _Greedy(points, first, block)
    if checkpoint and checkpoint.exists():
        greedy.load(checkpoint)
    saved = time.monotonic()
    while len(greedy.picks) < k:
        greedy.pick(k - len(greedy.picks))
        report(len(greedy.picks), k, "picks")
        if checkpoint and time.monotonic() - saved > SECONDS_PER_CHECKPOINT:
            greedy.save(checkpoint)
            saved = time.monotonic()
    return KCenters(greedy.picks, greedy.radius())


class _Greedy:
    """The picks so far, and for every point its distance to the first `seen` of them."""

    def __init__(self, points: np.ndarray, first: int, block: int) -> None:
        dtype = np.float32 if points.dtype == np.float32 else np.float64
        self.points = np.ascontiguousarray(points, dtype)
        self.block = block
        self.picks = [first]
        self.bound = np.full(len(points), np.inf)  # squared; -1 marks a pick
        self.seen = np.zeros(len(points), np.int64)
        self.coarse = _Coarse(self.points)
        self._update(np.arange(len(points)))

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        partial = path.with_name(f"partial-{path.name}")
        np.savez(partial, picks=self.picks, bound=self.bound, seen=self.seen)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        with np.load(path) as state:
            self.picks = state["picks"].tolist()
            self.bound, self.seen = state["bound"], state["seen"]

    def pick(self, wanted: int) -> None:
        """Bring the points with the largest bounds up to date, then pick while one of them is
        farther than any other point can be. May pick nothing; then bounds have become tighter."""
        members, outside = self._farthest()
        self._update(members)
        if self.bound[members].max() <= 0.0 and outside < 0.0:  # what is left are copies of picks
            new = members[self.bound[members] >= 0.0][:wanted]
        else:
            new = np.empty(wanted, np.int64)
            bound, seen = self.bound[members], np.zeros(len(members), np.int64)
            new = new[: _pick(self.points, members, bound, seen, outside, new)]
        self.bound[new] = -1.0
        self.picks += new.tolist()

    def radius(self) -> float:
        """Distance of the farthest point to its pick."""
        while True:
            members, outside = self._farthest()
            self._update(members)
            farthest = self.bound[members].max()
            if farthest >= outside:
                return float(np.sqrt(max(farthest, 0.0)))

    def _farthest(self) -> tuple[np.ndarray, float]:
        """Points with the largest bounds, ascending and with all ties; the largest bound of the
        others, which is smaller than theirs."""
        if len(self.bound) <= self.block:
            return np.arange(len(self.bound)), -np.inf
        least = np.partition(self.bound, -self.block)[-self.block]
        inside = self.bound >= least
        return np.flatnonzero(inside), float(self.bound[~inside].max(initial=-np.inf))

    def _update(self, rows: np.ndarray) -> None:
        """Make `bound` the distance to all picks, for those of `rows` that are no picks."""
        rows = rows[(self.seen[rows] < len(self.picks)) & (self.bound[rows] >= 0.0)]
        rows = rows[np.argsort(self.seen[rows], kind="stable")]
        picks = _Picks.of(self.coarse, np.array(self.picks, np.int64))
        edges = np.flatnonzero(np.diff(self.seen[rows], prepend=-1, append=-1))
        for start, stop in pairwise(edges.tolist()):
            missing = picks.since(int(self.seen[rows[start]]))
            for at in range(start, stop, ROWS_AT_ONCE):
                some = rows[at : min(at + ROWS_AT_ONCE, stop)]
                self.coarse.nearest(self.points, some, missing, self.bound)
        self.seen[rows] = len(self.picks)
        self.bound[self.picks] = -1.0


class _Coarse:
    """Centered, scaled float32 points that say which picks may be nearest to a point."""

    def __init__(self, points: np.ndarray) -> None:
        _check_finite(points)
        center = np.mean(points, axis=0, dtype=np.float64)
        reach = max(float(np.abs(some - center).max()) for some in _slices(points))
        self.unit = reach * reach or 1.0
        self.points = np.empty(points.shape, np.float32)
        for some, to in zip(_slices(points), _slices(self.points), strict=True):
            np.divide(some - center, reach or 1.0, out=to, casting="same_kind")
        self.norms = np.einsum("nd,nd->n", self.points, self.points)
        # A float32 dot product of d terms is off by at most (d+2)·2⁻²⁴·|a||b| however it is added
        # up; centering in float64 rounds by 2⁻⁵³ of a coordinate.
        largest, size = float(self.norms.max()), points.shape[1]
        shifted = 2.0**-50 * float(np.abs(center).max()) / (reach or 1.0) * size
        self.error = 4.0 * (size + 8) * 2.0**-24 * largest + 4.0 * shifted * np.sqrt(largest)

    def nearest(
        self, points: np.ndarray, rows: np.ndarray, picks: "_Picks", bound: np.ndarray
    ) -> None:
        """Lower bound[rows] to the squared distance to the nearest of `picks`."""
        distances = self.points[rows] @ picks.doubled.T
        distances += picks.norms
        least = distances.min(axis=1)
        norms = self.norms[rows]
        _decide(points, rows, picks.rows, distances, least, norms, self.unit, self.error, bound)


class _Picks(NamedTuple):
    """Some picks, and what a product needs of them: gathered once for all products."""

    rows: np.ndarray
    doubled: np.ndarray
    """-2 times their coarse points."""
    norms: np.ndarray

    @classmethod
    def of(cls, coarse: _Coarse, rows: np.ndarray) -> "_Picks":
        return cls(rows, coarse.points[rows] * np.float32(-2.0), coarse.norms[rows])

    def since(self, first: int) -> "_Picks":
        """Without the first ones."""
        return _Picks(self.rows[first:], self.doubled[first:], self.norms[first:])


def _check_finite(points: np.ndarray) -> None:
    for number, some in enumerate(_slices(points)):
        wrong = np.flatnonzero(~np.isfinite(some).all(axis=1))
        if len(wrong):
            row = number * ROWS_AT_ONCE + int(wrong[0])
            raise ValueError(f"point {row} has a coordinate that is not finite")


def _slices(array: np.ndarray) -> list[np.ndarray]:
    """Some rows of `array` after the other, so that no temporary is as large as it."""
    return [array[at : at + ROWS_AT_ONCE] for at in range(0, len(array), ROWS_AT_ONCE)]


def _both(result: types.Type, *rest: types.Type) -> list[Any]:
    """Signatures for points in double and in single precision."""
    return [result(_F8, *rest), result(_F4, *rest)]


@compiled(_both(types.float64, types.int64, types.int64))
def _squared_distance(points: Any, a: Any, b: Any) -> Any:
    """|points[a] - points[b]|²: eight sums of every eighth term, then those in order."""
    size = points.shape[1]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = size - size % 8
    for at in range(0, whole, 8):
        d0 = np.float64(points[a, at]) - np.float64(points[b, at])
        d1 = np.float64(points[a, at + 1]) - np.float64(points[b, at + 1])
        d2 = np.float64(points[a, at + 2]) - np.float64(points[b, at + 2])
        d3 = np.float64(points[a, at + 3]) - np.float64(points[b, at + 3])
        d4 = np.float64(points[a, at + 4]) - np.float64(points[b, at + 4])
        d5 = np.float64(points[a, at + 5]) - np.float64(points[b, at + 5])
        d6 = np.float64(points[a, at + 6]) - np.float64(points[b, at + 6])
        d7 = np.float64(points[a, at + 7]) - np.float64(points[b, at + 7])
        s0, s1, s2, s3 = s0 + d0 * d0, s1 + d1 * d1, s2 + d2 * d2, s3 + d3 * d3
        s4, s5, s6, s7 = s4 + d4 * d4, s5 + d5 * d5, s6 + d6 * d6, s7 + d7 * d7
    for at in range(whole, size):
        rest = np.float64(points[a, at]) - np.float64(points[b, at])
        s0 += rest * rest
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@compiled(_both(types.void, _I8, _I8, _F4M, _F4V, _F4V, types.float64, types.float64, _D8))
def _decide(
    points: Any, rows: Any, picks: Any, distances: Any, least: Any, norms: Any,
    unit: Any, error: Any, bound: Any,
) -> Any:  # fmt: skip
    """Lower bound[rows] by the exact distances to the picks that may be nearest.

    `distances[r, p]` is |row - pick|² - |row|² in units of `unit`, give or take `error`.
    """
    for r in range(rows.size):
        row = rows[r]
        cut = min(least[r] + 2.0 * error, bound[row] / unit - norms[r] + error)
        for p in range(picks.size):
            if distances[r, p] <= cut:
                bound[row] = min(bound[row], _squared_distance(points, row, picks[p]))


@compiled(_both(types.int64, _I8, _D8, _I8, types.float64, _I8))
def _pick(points: Any, members: Any, bound: Any, seen: Any, outside: Any, new: Any) -> Any:
    """Fill `new` with picks among `members` while one is farther than `outside`; how many.

    Lazy as well: a member's distance to the new picks is computed when its bound is the largest.
    """
    count = np.int64(0)
    while count < new.size:
        farthest, j = np.float64(-1.0), np.int64(-1)
        for i in range(members.size):
            if bound[i] > farthest:
                farthest, j = bound[i], i
        if j < 0 or farthest <= outside:
            break
        for p in range(seen[j], count):
            bound[j] = min(bound[j], _squared_distance(points, members[j], new[p]))
        if seen[j] == count:
            new[count] = members[j]
            bound[j] = -1.0
            count += 1
        else:
            seen[j] = count
    return count
