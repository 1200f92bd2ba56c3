"""Scores of a benchmark from 0/1 outcomes: avg@k, pass@k, majority@k and an interval. Pure. An
outcome is True (right), False (wrong) or None (unscored): unscored samples, and problems without a
scored one, leave every mean and are counted; neither is ever taken for wrong."""

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

    where `top` are the answers with the most votes, right(a) the share of right outcomes among
    them. Answers are compared without white space. No answer, or an unscored one, is no vote; a
    problem with scored samples and no votes counts as wrong.
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
    """95 % percentile bootstrap interval of the mean of `means`, float [problems], resampling
    problems (Efron 1979): samples of one problem are not independent. All-equal means give no
    width."""
    rng = np.random.default_rng(seed)
    return _percentiles(means[rng.integers(0, means.size, (resamples, means.size))].mean(axis=1))


def sample_interval(
    outcomes: Outcomes, resamples: int, seed: int
) -> tuple[float, float] | tuple[None, None]:
    """95 % percentile bootstrap interval of avg@k, resampling the samples of every problem: what
    other answers to the same problems would change. c of n right draws Binomial(n, c/n), spread
    by √(n/(n − 1)), for the variance of n draws is too small by that; one sample tells none."""
    n = np.array([len(row) for row in scored(outcomes).values()])
    if n.min() < 2:
        return None, None
    share, spread = problem_means(outcomes), np.sqrt(n / (n - 1))
    rng = np.random.default_rng(seed)
    drawn = [
        (share + spread * (rng.binomial(n, share) / n - share)).mean() for _ in range(resamples)
    ]
    return _percentiles(np.array(drawn))


def _percentiles(draws: np.ndarray) -> tuple[float, float]:
    return float(np.percentile(draws, 2.5)), float(np.percentile(draws, 97.5))


def upper_bound_of_zero(problems: int) -> float:
    """Largest share of solvable problems that none of n solved leaves: (1 − p)^n = 0.05."""
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

    Every problem weighs the same.
    """
    means = problem_means(outcomes)
    samples = sum(len(row) for row in outcomes.values())
    unscored = sum(o is None for row in outcomes.values() for o in row)
    shares: dict[str, float | None] = {}
    if means.size:
        shares = {"avg": float(means.mean()), "pass_at_k": float((means > 0).mean())}
        shares["ci_low"], shares["ci_high"] = bootstrap_interval(means, resamples, seed)
        shares["sample_low"], shares["sample_high"] = sample_interval(outcomes, resamples, seed)
    counts = {"problems": means.size, "problems_unscored": len(outcomes) - means.size}
    return {**counts, "samples": samples - unscored, "samples_unscored": unscored, **shares}
