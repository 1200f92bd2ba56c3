"""Which candidates a subset of fixed size takes: diverse prompts first, pools balanced if asked.

K-Center-Greedy (Tables 4-5; Sener & Savarese, arXiv 1708.00489) runs on the vectors of the distinct
prompts; the answers then come round by round, one for every picked prompt, until the subset is
full.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from configs.settings.data import SelectSettings
from tasks.data.words import alnum_words
from tasks.stage.progress import report

Candidates = Mapping[str, Mapping[str, Sequence[int]]]
"""Rows that passed every filter: for each pool (a domain, say), problem id → its rows."""
GRID = 2.0**-20
BLOCK = 4096
"""Points that are brought up to date at once, if as many bounds are that large."""
ROWS_A_PRODUCT = 512


def choose(
    candidates: Candidates,
    prompt_of: Callable[[str], str],
    settings: SelectSettings,
    seed: int,
) -> tuple[set[int], dict[str, float]]:
    """The rows to keep: all, or `size`, or equal shares of the pools (the smallest decides).

    Also, by pool, the largest distance from a prompt to a picked one (0: all were picked). The seed
    decides the first pick and the randomised SVD.
    """
    sizes = {name: sum(map(len, candidates[name].values())) for name in sorted(candidates)}
    size = settings.size or sum(sizes.values())
    if settings.balanced and sizes:
        share = min(size // len(sizes), *sizes.values())
        pools = {name: (candidates[name], share) for name in sizes}
    else:
        everything = {i: rows for name in sizes for i, rows in candidates[name].items()}
        pools = {"all": (everything, min(size, sum(sizes.values())))}
    kept: set[int] = set()
    radius: dict[str, float] = {}
    for name, (pool, wanted) in pools.items():
        order, radius[name] = list(pool), 0.0
        if 0 < wanted < len(order):
            prompts = [prompt_of(id_) for id_ in order]
            points = embed(prompts, settings.embedding["dimensions"], seed)
            first = int(np.random.default_rng(seed).integers(len(order)))
            picks, radius[name] = k_center_greedy(points, wanted, first)
            order = [order[i] for i in picks]
        rounds = sorted(  # the first answer of every prompt, then the second of every prompt
            (turn, place, row)
            for place, id_ in enumerate(order)
            for turn, row in enumerate(pool[id_])
        )
        kept.update(row for _, _, row in rounds[:wanted])
    return kept, radius


def embed(prompts: list[str], dimensions: int, seed: int) -> np.ndarray:
    """Unit vectors [N, ≤ dimensions] float32 of `prompts`.

    Coordinates are rounded to multiples of 2⁻²⁰. What linear algebra libraries and their threads
    change in the last bits is gone then, and prompts of the same words are the same point.
    """
    vectors = tfidf_svd(prompts, dimensions, seed)
    return np.asarray(np.round(vectors / GRID) * GRID, np.float32)


def tfidf_svd(prompts: list[str], dimensions: int, seed: int) -> np.ndarray:
    """TF-IDF of words and numbers, reduced by truncated SVD to [N, ≤ dimensions], unit length."""
    # Slow to import, and only sized subsets need it.
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    def terms(text: str) -> list[str]:
        return alnum_words(text) or [text]

    vectoriser = TfidfVectorizer(analyzer=terms, sublinear_tf=True)  # pyright: ignore
    weights = vectoriser.fit_transform(prompts)
    dimensions = min(dimensions, min(weights.shape) - 1)
    if dimensions < 1:
        return weights.toarray()
    with np.errstate(invalid="ignore"):  # equal prompts have no variance to be explained
        reduced = TruncatedSVD(dimensions, random_state=seed).fit_transform(weights)
    return np.asarray(normalize(reduced))


def k_center_greedy(points: np.ndarray, k: int, first: int = 0) -> tuple[list[int], float]:
    """Pick `k` of `points` [n, d], `first` and then always the point farthest from all picks; also
    the distance of the farthest point to its pick.

    Distances are Euclidean; of equally far points the lowest index wins. Raises ValueError when k
    is not in 1..n or a coordinate is not finite.
    """
    if not 1 <= k <= len(points):
        raise ValueError(f"cannot pick {k} of {len(points)} points")
    greedy = _Greedy(np.asarray(points, np.float64), first)
    while len(greedy.picks) < k:
        greedy.pick(greedy.farthest())
        report(len(greedy.picks), k, "picks")
    return greedy.picks, float(np.sqrt(max(greedy.bound[greedy.farthest()], 0.0)))


class _Greedy:
    """The picks, and for every point its squared distance to the first `seen` of them.

    Distances to the picks only ever shrink, so an old distance is an upper bound: only the points
    with the largest bounds are brought up to date before a pick. Points lie on the grid of `embed`,
    where every product and sum below is exact in float64, so the picks are the same on every
    machine and with any number of threads.
    """

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
