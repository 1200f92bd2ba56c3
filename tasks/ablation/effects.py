"""The difference between two ways of training, with an interval, from runs paired by seed.

Of the last score (`paired_effect`), and of how steadily accuracy rose (`steadiness_effect`). Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    interval misses in at most 5 % (simulated in tests/tasks/test_ablation_effects.py), in fewer
    where noise outweighs seeds and problems, which a two-way bootstrap counts up to three times
    (Owen 2007, arXiv 0712.1111): there it is up to 1.4 times as wide as it need be.

    Raises ValueError for fewer than FEWEST_SEEDS seeds or lists that do not pair.
    """
    n = _paired_seeds(first, second)
    problems = sorted(set.intersection(*(set(means) for means in (*first, *second))))
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


def _paired_seeds(first: Sequence[object], second: Sequence[object]) -> int:
    """How many; raises ValueError for fewer than FEWEST_SEEDS, or lists that do not pair."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} runs do not pair")
    if len(first) < FEWEST_SEEDS:
        raise ValueError(f"{len(first)} seeds give no interval; run at least {FEWEST_SEEDS}")
    return len(first)


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


def _student(n: int, confidence: float) -> float:
    return float(stats.t.ppf(1 - (1 - confidence) / 2, n - 1))


@dataclass(frozen=True)
class Point:
    """One half of the answers of one model."""

    accuracy: float
    answers: int


@dataclass(frozen=True)
class Learning:
    """Accuracy on one benchmark over training."""

    curve: Mapping[int, float]
    """Rollout step → avg@k in [0, 1]; the same k at every step."""
    halves: tuple[Mapping[int, Point], Mapping[int, Point]]
    """By step, of answers with even and with odd index: two measurements of each model."""


def fall(halves: tuple[Mapping[int, Point], Mapping[int, Point]]) -> float:
    """How far accuracy fell on its way: Σₜ max(0, aₜ₋₁ − aₜ), without the falls that are noise.

    Cross-fitted: between consecutive models one half of the answers selects the drops larger than a
    standard error, the other half measures them; both ways, and their mean. So noise averages to
    zero, whatever the level and the slope of the curve: plain drops of noisy scores are fewer where
    the curve rises, and where nearly all is wrong, and would call such an arm steadier. A
    true fall below the error of a half counts in part.
    """
    total = 0.0
    for before, now in pairwise(sorted(halves[0])):
        first, second = ((half[before], half[now]) for half in halves)
        for selecting, measuring in ((first, second), (second, first)):
            # of a difference of two accuracies; at most, for problems differ
            variance = sum(p.accuracy * (1 - p.accuracy) / p.answers for p in selecting)
            if selecting[0].accuracy - selecting[1].accuracy > math.sqrt(variance):
                total += (measuring[0].accuracy - measuring[1].accuracy) / 2
    return total


def steadiness_effect(
    first: Sequence[Learning], second: Sequence[Learning], confidence: float = 0.95
) -> Effect:
    """By how much less the first fell on its way than the second; entry i of both have seed i.

    Student's interval of the paired differences of `fall`, over seeds. With no fall in either arm
    at most 3 % are called confirmed, and as many reversed, also if one rises or is stuck at zero
    (simulated in tests/tasks/test_ablation_effects.py).

    Raises ValueError for fewer than FEWEST_SEEDS seeds, lists that do not pair, or points of other
    steps: a curve with more points has more chances to fall.
    """
    n = _paired_seeds(first, second)
    if len({tuple(sorted(one.curve)) for one in (*first, *second)}) > 1:
        raise ValueError("the curves have points at different steps")
    falls = np.array([fall(b.halves) - fall(a.halves) for a, b in zip(first, second, strict=True)])
    mean, spread = float(falls.mean()), float(falls.std(ddof=1))
    half = _student(n, confidence) * spread / n**0.5
    size = mean / spread if spread else float("nan")
    return Effect(mean, mean - half, mean + half, size, int((falls > 0).sum()), n)


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
