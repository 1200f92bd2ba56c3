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

    The difference d of seed i on problem j is taken as effect + seed + problem + noise. The
    interval is the smallest that holds both of these:

    - Student's, two-way: d̄ ± √(S² + P²), for other seeds and other problems.
      S = t_{1−α/2, n−1} · s_seeds / √n, of the n means over problems, in which noise is counted;
      P = t_{1−α/2, m−1} · √max(0, s²_problems / m − s²_noise / (nm)), of the m means over seeds,
      without the noise that S has. Half-widths of independent parts add in squares (MOVER: Zou and
      Donner 2008, Statistics in Medicine 27:1693); the three terms are the variance of a two-way
      mean (Cameron, Gelbach and Miller 2011, "Robust inference with multiway clustering", §2).
    - A two-way bootstrap, its 2.5 % and 97.5 % percentiles: seeds and problems are drawn with
      replacement, the same problems for every drawn seed and for both ways, so that what makes a
      problem hard cancels; it follows effects that few problems carry.

    The bootstrap alone would not do: few seeds drawn from themselves vary too little, and where
    only seeds matter it misses in 24, 16 and 11 % of experiments with 3, 5 and 8 of them. The
    interval misses in at most 5 % (simulated in tests/tasks/test_ablation_effects.py; in 4 to 6 %
    where a tenth of the problems carries every difference), in fewer where noise outweighs both,
    which a two-way bootstrap counts up to three times (Owen 2007, arXiv 0712.1111): there it is
    1.1, 1.2 and 1.4 times as wide as it need be.

    Raises ValueError for fewer than FEWEST_SEEDS seeds or lists that do not pair.
    """
    n = paired_seeds(first, second)
    problems = common_problems(first, second)
    if not problems:
        raise ValueError("the runs have no problem in common")
    table = np.array(
        [[a[p] - b[p] for p in problems] for a, b in zip(first, second, strict=True)]
    )  # [seeds, problems]
    by_seed = table.mean(axis=1)
    tail = 100 * (1 - confidence) / 2
    drawn = np.percentile(_resampled(table, resamples, seed), [tail, 100 - tail])
    spread = float(by_seed.std(ddof=1))
    mean = float(by_seed.mean())
    half = _two_way(table, confidence)
    return Effect(
        mean=mean,
        low=float(min(drawn[0], mean - half)),
        high=float(max(drawn[1], mean + half)),
        size=mean / spread if spread else float("nan"),
        wins=int((by_seed > 0).sum()),
        seeds=n,
    )


def paired_seeds(first: Sequence[object], second: Sequence[object]) -> int:
    """How many; raises ValueError for fewer than FEWEST_SEEDS, or lists that do not pair."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} runs do not pair")
    if len(first) < FEWEST_SEEDS:
        raise ValueError(f"{len(first)} seeds give no interval; run at least {FEWEST_SEEDS}")
    return len(first)


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


def _two_way(table: np.ndarray, confidence: float) -> float:
    """Half the width of Student's two-way interval; table is [seeds, problems].

    A single problem says nothing of others: its interval is for other seeds alone.
    """
    n, m = table.shape
    by_seed, by_problem = table.mean(axis=1), table.mean(axis=0)
    of_seeds = _student(n, confidence) ** 2 * by_seed.var(ddof=1) / n
    if m == 1:
        return float(np.sqrt(of_seeds))
    noise = table - by_seed[:, None] - by_problem + table.mean()
    noise_variance = (noise**2).sum() / ((n - 1) * (m - 1))
    own = max(0.0, by_problem.var(ddof=1) / m - noise_variance / (n * m))
    return float(np.sqrt(of_seeds + _student(m, confidence) ** 2 * own))


def students_half(by_seed: np.ndarray, confidence: float) -> float:
    """Half the width of Student's interval of a mean over seeds."""
    n = len(by_seed)
    return _student(n, confidence) * float(by_seed.std(ddof=1)) / n**0.5


def _student(n: int, confidence: float) -> float:
    return float(stats.t.ppf(1 - (1 - confidence) / 2, n - 1))


Band = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""A curve over seeds: steps that all of them reached; mean, lowest and highest value at each."""


def band(curves: Sequence[Mapping[int, float]]) -> Band:
    """`curves`: step → value of each seed."""
    steps = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not steps:
        return (), (), (), ()
    table = np.array([[c[s] for s in steps] for c in curves], dtype=float)
    mean, low, high = (of(table, axis=0).tolist() for of in (np.mean, np.min, np.max))
    return tuple(map(float, steps)), tuple(mean), tuple(low), tuple(high)
