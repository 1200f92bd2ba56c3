"""The difference between two ways of training, with an interval, from runs paired by seed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["confirmed", "not seen", "reversed"]
Means = Mapping[str, float]
"""Problem id → mean outcome of its samples, in [0, 1]."""

RESAMPLES = 10_000
FEWEST_SEEDS = 3
RESAMPLED_CELLS = 1_000_000  # bounds the memory of one block of draws to ~16 MB


@dataclass(frozen=True)
class Effect:
    """`mean` = score of the first minus score of the second, in [-1, 1], over seeds."""

    mean: float
    low: float
    high: float
    size: float
    """Mean difference over its standard deviation between seeds (Cohen's d of pairs); NaN when all
    differences are equal."""
    wins: int
    """Seeds in which the first scored higher."""
    seeds: int

    @property
    def verdict(self) -> Verdict:
        """Of the claim that the first is better, at this scale and with these seeds."""
        if self.low > 0:
            return "confirmed"
        return "reversed" if self.high < 0 else "not seen"


def paired_effect(
    first: Sequence[Means],
    second: Sequence[Means],
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> Effect:
    """The effect over seeds; entry i of both are the scores of one benchmark with seed i.

    The interval is the smallest that holds both of these:

    - Student's over seeds, d̄ ± t_{1−α/2, n−1} · s_d / √n, for other seeds on the same problems. A
      bootstrap of a few seeds cannot leave their range, which n seeds without an effect lie on one
      side of with the probability 2^{1−n}: 25 % for three.
    - A two-way bootstrap, for other problems too: seeds and problems are drawn with replacement,
      the same problems for every drawn seed and for both ways, so that what makes a problem hard
      cancels. Its percentiles are moved out (Hesterberg 2015, "What Teachers Should Know About the
      Bootstrap", §3.3, "expanded percentile"): α'/2 = Φ(−√(n/(n−1)) · t_{1−α/2, n−1}).

    So it misses at most as often as it says; where problems matter more than seeds, less often.

    Raises ValueError for fewer than FEWEST_SEEDS seeds or lists that do not pair.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} runs do not pair")
    if len(first) < FEWEST_SEEDS:
        raise ValueError(f"{len(first)} seeds give no interval; run at least {FEWEST_SEEDS}")
    problems = common_problems(first, second)
    if not problems:
        raise ValueError("the runs have no problem in common")
    table = np.array(
        [[a[p] - b[p] for p in problems] for a, b in zip(first, second, strict=True)]
    )  # [seeds, problems]
    by_seed = table.mean(axis=1)
    drawn = _expanded(_resampled(table, resamples, seed), len(first), confidence)
    spread = float(by_seed.std(ddof=1))
    mean = float(by_seed.mean())
    half = _student(len(first), confidence) * spread / np.sqrt(len(first))
    return Effect(
        mean=mean,
        low=float(min(drawn[0], mean - half)),
        high=float(max(drawn[1], mean + half)),
        size=mean / spread if spread else float("nan"),
        wins=int((by_seed > 0).sum()),
        seeds=len(first),
    )


def common_problems(first: Sequence[Means], second: Sequence[Means]) -> list[str]:
    """Ids of the problems that every run scored, sorted."""
    return sorted(set.intersection(*(set(m) for m in (*first, *second))))


def _resampled(table: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of two-way resamples, float64 [resamples]; table is [seeds, problems]."""
    rng = np.random.default_rng(seed)
    seeds, problems = table.shape
    block = max(1, RESAMPLED_CELLS // table.size)
    means = []
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        rows = rng.integers(0, seeds, (count, seeds, 1))
        columns = rng.integers(0, problems, (count, 1, problems))
        means.append(table[rows, columns].mean(axis=(1, 2)))
    return np.concatenate(means)


def _expanded(means: np.ndarray, n: int, confidence: float) -> tuple[float, float]:
    tail = 100 * float(stats.norm.cdf(-np.sqrt(n / (n - 1)) * _student(n, confidence)))
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


def _student(n: int, confidence: float) -> float:
    return float(stats.t.ppf(1 - (1 - confidence) / 2, n - 1))


@dataclass(frozen=True)
class Band:
    """A curve over seeds: mean, lowest and highest value at each step that all seeds reached."""

    steps: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def band(curves: Sequence[Mapping[int, float]]) -> Band:
    """`curves`: step → value of each seed."""
    steps = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    table = np.array([[c[s] for s in steps] for c in curves], dtype=float)
    if not steps:
        return Band((), (), (), ())
    return Band(
        tuple(map(float, steps)),
        tuple(table.mean(axis=0).tolist()),
        tuple(table.min(axis=0).tolist()),
        tuple(table.max(axis=0).tolist()),
    )
