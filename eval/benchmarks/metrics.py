"""Scores of a benchmark from 0/1 outcomes: avg@k, pass@k, majority@k and an interval. Pure.

An outcome is True (right), False (wrong) or None (unscored: the infrastructure failed). Unscored
samples leave every mean and are counted; a problem with no scored sample leaves the benchmark and
is counted. Neither is ever taken for wrong.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Outcomes = Mapping[str, Sequence[bool | None]]  # problem id → outcomes of its samples


def scored(outcomes: Outcomes) -> dict[str, list[bool]]:
    """The outcomes without unscored samples and problems that have none left, by problem id."""
    kept = {p: [o for o in row if o is not None] for p, row in sorted(outcomes.items())}
    return {p: row for p, row in kept.items() if row}


def problem_means(outcomes: Outcomes) -> np.ndarray:
    """Mean outcome of each scored problem, float64 [problems], ordered by problem id."""
    return np.array([np.mean(row) for row in scored(outcomes).values()], dtype=float)


def majority_at_k(answers: Mapping[str, Sequence[str | None]], outcomes: Outcomes) -> float:
    """Share of problems whose most frequent answer is right (majority vote, maj@k).

        maj@k = mean over problems of  Σ_{a in top} right(a) / |top|

    where `top` are the answers with the most votes (a tie is the expected value of drawing one)
    and right(a) is the share of right outcomes among its votes. Votes are compared as text without
    white space. A sample without an answer casts no vote, an unscored one neither; a problem
    without votes counts as wrong if any of its samples was scored.
    """
    values = []
    for problem, row in outcomes.items():
        votes: dict[str, list[bool]] = defaultdict(list)
        for answer, outcome in zip(answers[problem], row, strict=True):
            if outcome is not None and answer is not None:
                votes["".join(answer.split())].append(outcome)
        most = max(map(len, votes.values()), default=0)
        if any(outcome is not None for outcome in row):
            values.append(np.mean([np.mean(v) for v in votes.values() if len(v) == most] or 0.0))
    return float(np.mean(values))


def bootstrap_interval(means: np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of `means`, resampling problems.

    Problems, not samples, are what another draw of the benchmark would change (Efron 1979); the
    samples of one problem are not independent. `means` is float [problems]. All-equal means (a
    score of exactly 0, say) give an interval without width: see `upper_bound_of_zero`.
    """
    rng = np.random.default_rng(seed)
    draws = means[rng.integers(0, means.size, (resamples, means.size))].mean(axis=1)
    return _percentiles(draws)


def sample_interval(outcomes: Outcomes, resamples: int, seed: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of avg@k, resampling the samples of every problem.

    What another draw of answers to the same problems would change: it says whether k is large
    enough, and two runs of one checkpoint should agree within it. A problem with c of n right
    draws Binomial(n, c/n) right ones.
    """
    n = np.array([len(row) for row in scored(outcomes).values()])
    share = problem_means(outcomes)
    rng = np.random.default_rng(seed)
    draws = np.array([(rng.binomial(n, share) / n).mean() for _ in range(resamples)])
    return _percentiles(draws)


def _percentiles(draws: np.ndarray) -> tuple[float, float]:
    return float(np.percentile(draws, 2.5)), float(np.percentile(draws, 97.5))


def upper_bound_of_zero(problems: int) -> float:
    """Largest share of solvable problems that n problems without one solved do not rule out. Exact
    binomial at 95 %: (1 − p)^n = 0.05, about 3/n ("rule of three")."""
    return 1.0 - 0.05 ** (1.0 / problems) if problems else 1.0


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval (1927) of a share, wide at 0 and 1 too; (0, 1) for no trials."""
    from scipy.stats import binomtest  # takes a second to import

    if trials == 0:
        return 0.0, 1.0
    low, high = binomtest(successes, trials).proportion_ci(0.95, "wilson")
    return float(low), float(high)


def summarise(outcomes: Outcomes, resamples: int, seed: int) -> dict[str, Any]:
    """The fields of a `BenchmarkResult` that follow from its outcomes.

        avg@k = mean over problems of the mean over their scored samples (§4, Table 1)
        pass@k = share of problems with a right sample among all k

    Every problem weighs the same, however many of its samples were scored. No share where none was.
    """
    means = problem_means(outcomes)
    samples = sum(len(row) for row in outcomes.values())
    unscored = sum(o is None for row in outcomes.values() for o in row)
    shares: dict[str, float] = {}
    if means.size:
        shares = {"avg": float(means.mean()), "pass_at_k": float((means > 0).mean())}
        shares["ci_low"], shares["ci_high"] = bootstrap_interval(means, resamples, seed)
        shares["sample_low"], shares["sample_high"] = sample_interval(outcomes, resamples, seed)
    return {
        "problems": means.size,
        "problems_unscored": len(outcomes) - means.size,
        "samples": samples - unscored,
        "samples_unscored": unscored,
        **shares,
    }
