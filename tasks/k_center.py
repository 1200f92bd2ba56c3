"""K-Center-Greedy: a subset whose farthest left-out point is near (Tables 4-5; Sener & Savarese,
arXiv 1708.00489).

The naive algorithm reads all n points for every pick. Here the picks are made lazily in blocks:
the B points farthest from the picks so far are compared among themselves, and picks go on inside
the block as long as its farthest point is farther than every point outside it *was*, which the
distances only ever shrink. Then one matrix product applies all new picks to the n points. The
picks are those of the naive algorithm.
"""

from dataclasses import dataclass

import numpy as np

BLOCK = 512
ROWS_AT_ONCE = 65_536
SAME_POINT = 1e-12
"""Squared distances below this are rounding: the points are the same."""


@dataclass(frozen=True)
class KCenters:
    """`picks` in greedy order; `radius` is the distance of the farthest point to its center."""

    picks: list[int]
    radius: float


def k_center_greedy(points: np.ndarray, k: int, first: int = 0, block: int = BLOCK) -> KCenters:
    """Pick `k` of `points` [n, d]: `first`, then always the point farthest from all picks.

    Distances are Euclidean; of equally far points the lowest index wins. Raises ValueError when
    k is not in 1..n.
    """
    count = len(points)
    if not 1 <= k <= count:
        raise ValueError(f"cannot pick {k} of {count} points")
    points = np.ascontiguousarray(points, np.float64)
    norms = np.einsum("nd,nd->n", points, points)
    nearest = np.full(count, np.inf)
    picks = [first]
    _apply(points, norms, nearest, picks)
    while len(picks) < k:
        new = _picks_in_block(points, norms, nearest, k - len(picks), block)
        _apply(points, norms, nearest, new)
        picks += new
    return KCenters(picks, float(np.sqrt(max(nearest.max(), 0.0))))


def _picks_in_block(
    points: np.ndarray, norms: np.ndarray, nearest: np.ndarray, wanted: int, block: int
) -> list[int]:
    """The next picks, at least one and at most `wanted`, that need no look outside the block."""
    farthest = int(nearest.argmax())
    if nearest[farthest] <= 0.0:  # all points left are copies of picks
        return np.flatnonzero(nearest >= 0.0)[:wanted].tolist()
    members, outside = _farthest(nearest, block)
    members = np.union1d(members, [farthest])  # ascending: argmax prefers the lowest index
    between = _squared_distances(points[members], norms[members], points[members], norms[members])
    inside = nearest[members]
    picks: list[int] = []
    while len(picks) < wanted:
        j = int(inside.argmax())
        if picks and inside[j] <= outside:
            break
        picks.append(int(members[j]))
        np.minimum(inside, between[:, j], out=inside)
        inside[j] = -1.0
    return picks


def _farthest(nearest: np.ndarray, block: int) -> tuple[np.ndarray, float]:
    """Indices of the `block` farthest points, and the largest distance outside them."""
    if len(nearest) <= block:
        return np.arange(len(nearest)), -np.inf
    order = np.argpartition(nearest, len(nearest) - block - 1)
    return order[-block:], float(nearest[order[len(nearest) - block - 1]])


def _apply(points: np.ndarray, norms: np.ndarray, nearest: np.ndarray, picks: list[int]) -> None:
    """Lower `nearest` [n] to the squared distance to the new picks; -1 marks a pick itself."""
    centers, center_norms = points[picks], norms[picks]
    for start in range(0, len(points), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        distances = _squared_distances(points[rows], norms[rows], centers, center_norms)
        np.minimum(nearest[rows], distances.min(axis=1), out=nearest[rows])
    nearest[picks] = -1.0


def _squared_distances(
    a: np.ndarray, a_norms: np.ndarray, b: np.ndarray, b_norms: np.ndarray
) -> np.ndarray:
    """‖a−b‖² [len(a), len(b)] from one matrix product."""
    squared = a @ b.T
    squared *= -2.0
    squared += a_norms[:, None]
    squared += b_norms[None, :]
    squared[squared < SAME_POINT] = 0.0
    return squared
