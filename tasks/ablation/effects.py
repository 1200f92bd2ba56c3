"""The difference between two ways of training, with an interval, from runs paired by seed.

Of the last score (`paired_effect`), and of how steadily accuracy rose (`steadiness_effect`); how
many seeds a difference takes (`seeds_needed`), and which one was in reach (`detectable`). Pure.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from typing import Literal, NamedTuple

import numpy as np
from scipy import special, stats

from ...eval.records import Record

Verdict = Literal["confirmed", "not seen", "reversed"]
Means = Mapping[str, float]
"""Problem id → mean outcome of its samples, in [0, 1]."""

RESAMPLES = 10_000
FEWEST_SEEDS = 3
LEAST = 1e-9  # points: what rounding leaves of an interval without width
POWER = 0.8


class Effect(Record):
    """The first minus the second in points of avg@k, over seeds, with its 95 % interval."""

    points: float
    low: float
    high: float
    wins: int
    """Seeds in which the first was better."""
    seeds: int

    @property
    def verdict(self) -> Verdict:
        """Of the claim that the first is better, at this scale and with these seeds."""
        if self.low > 0:
            return "confirmed"
        return "reversed" if self.high < 0 else "not seen"

    @property
    def half(self) -> float:
        """Half of the interval's width, points."""
        return (self.high - self.low) / 2

    @property
    def sd(self) -> float:
        """That of the paired differences, points, by which Student's interval over seeds has this
        width; what problems add to the interval makes it larger than that of the seeds alone."""
        return float(self.half * math.sqrt(self.seeds) / stats.t.ppf(0.975, self.seeds - 1))

    @property
    def could_see(self) -> float | None:
        """The difference, points, that as many seeds would have found with 80 % power. None where
        no two runs differ, as at 0 %: that shows no spread."""
        return detectable(self.sd, self.seeds) if self.half > LEAST else None

    def seeds_for(self, points: float) -> int | None:
        """Seeds that would find a difference of so many points with 80 % power."""
        return seeds_needed(points, self.sd) if self.half > LEAST else None


def seeds_needed(points: float, sd: float) -> int:
    """The fewest seeds that find a difference of `points` with 80 % power, where the paired
    differences have the standard deviation `sd` (points)."""
    errors = stats.norm.ppf(0.975) + stats.norm.ppf(POWER)
    least = (errors * sd / points) ** 2  # if the deviation were known
    return next(n for n in count(max(2, int(least))) if detectable(sd, n) <= points)


def detectable(sd: float, seeds: int) -> float:
    """The smallest difference, points, that the two-sided paired t-test at 5 % finds with its sign
    in 80 % of experiments of so many seeds: by the noncentral t of seeds − 1 degrees of freedom
    (Cohen 1988, Statistical Power Analysis for the Behavioral Sciences)."""
    edge = stats.t.ppf(0.975, seeds - 1)
    errors = special.nctdtrinc(seeds - 1, 1 - POWER, edge)  # standard errors that exceed it so
    return float(errors) * sd / math.sqrt(seeds)


def paired_effect(
    first: Sequence[Means], second: Sequence[Means], resamples: int = RESAMPLES
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

    The bootstrap alone misses in 24, 16 and 11 % of experiments with 3, 5 and 8 seeds where only
    seeds matter. The interval misses in at most 5 % (simulated in
    tests/tasks/test_ablation_effects.py), in fewer where noise outweighs seeds and problems, which
    a two-way bootstrap counts up to three times (Owen 2007, arXiv 0712.1111): there it is up to 1.4
    times as wide as it need be.

    Raises ValueError for fewer than FEWEST_SEEDS seeds, lists that do not pair, or runs without a
    common problem.
    """
    problems = sorted(set.intersection(*map(set, (*first, *second)))) if first else []
    if not problems:
        raise ValueError("the runs have no problem in common")
    pairs = zip(first, second, strict=True)
    table = 100 * np.array([[a[p] - b[p] for p in problems] for a, b in pairs])  # [seeds, problems]
    low, high = np.percentile(_resampled(table, resamples), [2.5, 97.5])
    return _effect(table.mean(axis=1), _of_problems(table), low, high)


def _effect(
    by_seed: np.ndarray, of_problems: float = 0.0, low: float = math.inf, high: float = -math.inf
) -> Effect:
    """Student's interval over seeds, with P² `of_problems`, and wide enough for `low` to `high`."""
    n = len(by_seed)
    if n < FEWEST_SEEDS:
        raise ValueError(f"{n} seeds give no interval; run at least {FEWEST_SEEDS}")
    mean = by_seed.mean()
    half = math.sqrt(stats.t.ppf(0.975, n - 1) ** 2 * by_seed.var(ddof=1) / n + of_problems)
    return Effect(
        points=float(mean),
        low=float(min(low, mean - half)),
        high=float(max(high, mean + half)),
        wins=int((by_seed > 0).sum()),
        seeds=n,
    )


def _resampled(table: np.ndarray, resamples: int) -> np.ndarray:
    """Means of two-way resamples, float64 [resamples], of a table [seeds, problems]."""
    rng = np.random.default_rng(0)
    rows, columns = (rng.multinomial(k, np.full(k, 1 / k), resamples) / k for k in table.shape)
    return ((rows @ table) * columns).sum(axis=1)


def _of_problems(table: np.ndarray) -> float:
    """P² of the two-way interval; table is [seeds, problems]. A single problem says nothing of
    others: its interval is for other seeds alone."""
    n, m = table.shape
    if m == 1 or n == 1:
        return 0.0
    by_seed, by_problem = table.mean(axis=1), table.mean(axis=0)
    noise = table - by_seed[:, None] - by_problem + table.mean()
    noise_variance = (noise**2).sum() / ((n - 1) * (m - 1))
    without_noise = max(0.0, by_problem.var(ddof=1) / m - noise_variance / (n * m))
    return float(stats.t.ppf(0.975, m - 1) ** 2 * without_noise)


class Half(NamedTuple):
    """The answers of one model with an even or with an odd index."""

    accuracy: float
    answers: int


Learning = Mapping[int, tuple[Half, Half]]
"""Rollout step → two measurements of the model on one benchmark; the same k at every step."""


def fall(curve: Learning) -> float:
    """How far accuracy fell on its way: Σₜ max(0, aₜ₋₁ − aₜ), without the falls that are noise.

    Cross-fitted: between consecutive models one half of the answers selects the drops larger than a
    standard error, the other half measures them; both ways, and their mean. So noise averages to
    zero, whatever the level and the slope of the curve: plain drops of noisy scores are fewer where
    the curve rises, and where nearly all is wrong, and would call such an arm steadier. A
    true fall below the error of a half counts in part.
    """
    total = 0.0
    for before, now in pairwise(curve[step] for step in sorted(curve)):
        even, odd = zip(before, now, strict=True)
        for selecting, measuring in ((even, odd), (odd, even)):
            # of a difference of two accuracies; at most, for problems differ
            variance = sum(h.accuracy * (1 - h.accuracy) / h.answers for h in selecting)
            if selecting[0].accuracy - selecting[1].accuracy > math.sqrt(variance):
                total += (measuring[0].accuracy - measuring[1].accuracy) / 2
    return total


def steadiness_effect(first: Sequence[Learning], second: Sequence[Learning]) -> Effect:
    """By how much less the first fell on its way than the second; entry i of both have seed i.

    Student's interval of the paired differences of `fall`, over seeds. With no fall in either arm
    at most 3 % are called confirmed, and as many reversed, also if one rises or is stuck at zero
    (simulated in tests/tasks/test_ablation_effects.py).

    Raises ValueError for fewer than FEWEST_SEEDS seeds, lists that do not pair, or points of other
    steps: a curve with more points has more chances to fall.
    """
    if len({frozenset(curve) for curve in (*first, *second)}) > 1:
        raise ValueError("the curves have points at different steps")
    falls = [fall(b) - fall(a) for a, b in zip(first, second, strict=True)]
    return _effect(100 * np.array(falls))
