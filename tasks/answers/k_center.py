"""K-Center-Greedy: a subset whose farthest left-out point is near (Tables 4-5; Sener & Savarese,
arXiv 1708.00489).

Distances to the picks only ever shrink, so an old distance is an upper bound: only the points with
the largest bounds are brought up to date before a pick. Points lie on the grid of `embed`, where
every product and sum below is exact in float64, so the picks are the same on every machine and with
any number of threads.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.stage.progress import report

BLOCK = 4096
"""Points that are brought up to date at once, if as many bounds are that large."""
ROWS_A_PRODUCT = 512
SECONDS_PER_CHECKPOINT = 60.0


@dataclass(frozen=True)
class KCenters:
    """`picks` in greedy order; `radius` is the distance of the farthest point to its center."""

    picks: list[int]
    radius: float


def k_center_greedy(
    points: np.ndarray, k: int, first: int = 0, checkpoint: Path | None = None
) -> KCenters:
    """Pick `k` of `points` [n, d]: `first`, then always the point farthest from all picks.

    Distances are Euclidean; of equally far points the lowest index wins. Raises ValueError when k
    is not in 1..n or a coordinate is not finite. With `checkpoint` the state is saved there once a
    minute, and a second call goes on from it.
    """
    if not 1 <= k <= len(points):
        raise ValueError(f"cannot pick {k} of {len(points)} points")
    greedy = _Greedy(np.asarray(points, np.float64), first)
    if checkpoint and checkpoint.exists():
        greedy.load(checkpoint)
    saved = time.monotonic()
    while len(greedy.picks) < k:
        greedy.pick(greedy.farthest())
        report(len(greedy.picks), k, "picks")
        if checkpoint and time.monotonic() - saved > SECONDS_PER_CHECKPOINT:
            greedy.save(checkpoint)
            saved = time.monotonic()
    radius = np.sqrt(max(greedy.bound[greedy.farthest()], 0.0))
    return KCenters(greedy.picks, float(radius))


class _Greedy:
    """The picks, and for every point its squared distance to the first `seen` of them."""

    def __init__(self, points: np.ndarray, first: int) -> None:
        self.points, self.squares = points, np.einsum("nd,nd->n", points, points)
        if len(wrong := np.flatnonzero(~np.isfinite(self.squares))):
            raise ValueError(f"point {wrong[0]} has a coordinate that is not finite")
        self.picks: list[int] = []
        self.bound = np.full(len(points), np.inf)  # -1 marks a pick
        self.seen = np.zeros(len(points), np.int64)
        self.pick(first)

    def pick(self, point: int) -> None:
        self.picks.append(point)
        self.bound[point] = -1.0

    def farthest(self) -> int:
        """The point that is farthest from all picks."""
        while True:
            place = max(len(self.bound) - BLOCK, 0)
            least = np.partition(self.bound, place)[place]
            top = np.flatnonzero(self.bound >= least)
            age = len(self.picks) - self.seen[top]
            self._update(top[age == 1])
            self._update(top[age > 1])
            best = top[self.bound[top].argmax()]
            if self.bound[best] >= least:  # all others are nearer than that
                return int(best)

    def _update(self, stale: np.ndarray) -> None:
        for rows in np.split(stale, range(ROWS_A_PRODUCT, len(stale), ROWS_A_PRODUCT)):
            if not len(rows):
                continue
            new = self.picks[self.seen[rows].min() :]
            products = self.points[rows] @ self.points[new].T
            apart = self.squares[rows, None] + self.squares[new] - 2 * products
            self.bound[rows] = np.minimum(self.bound[rows], np.maximum(apart.min(axis=1), 0.0))
            self.seen[rows] = len(self.picks)

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all."""
        partial = path.with_name(f"partial-{path.name}")
        np.savez(partial, picks=self.picks, bound=self.bound, seen=self.seen)
        os.replace(partial, path)

    def load(self, path: Path) -> None:
        with np.load(path) as state:
            self.picks = state["picks"].tolist()
            self.bound, self.seen = state["bound"], state["seen"]
