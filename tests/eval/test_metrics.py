"""klear.eval.benchmarks.metrics against brute force and hand-derived values."""

from itertools import product

import numpy as np
import pytest

from klear.eval.benchmarks import metrics


def test_a_problem_without_a_scored_sample_is_excluded_and_counted():
    """And every other weighs the same, however many of its samples were scored."""
    outcomes = {"a": [True, False], "lost": [None, None], "b": [True, None], "c": [False, None]}
    summary = metrics.summarise(outcomes, resamples=50, seed=0)
    assert (summary["problems"], summary["problems_unscored"]) == (3, 1)
    assert (summary["samples"], summary["samples_unscored"]) == (4, 4)
    assert summary["avg"] == pytest.approx((1 / 2 + 1) / 3)
    assert summary["pass_at_k"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answers", "outcomes", "share"),
    [
        (["7", "7", "8"], [False, False, True], 0),  # votes count, not right samples
        (["1", "2", " 2 "], [False, True, True], 1),
        (["7", "8"], [True, False], 1 / 2),  # a tie: the expected value of drawing one
        ([None, None, "8", "7", "7"], [False, False, True, None, None], 1),  # no vote
        ([None], [False], 0),
    ],
)
def test_the_majority_is_the_most_frequent_answer(answers, outcomes, share):
    assert metrics.majority_at_k({"p": answers}, {"p": outcomes}) == pytest.approx(share)


def test_bootstrap_matches_the_exact_distribution_of_all_resamples():
    means = np.array([0.0, 0.2, 0.9, 1.0])
    exact = np.array([np.mean(draw) for draw in product(means, repeat=4)])
    low, high = found = metrics.bootstrap_interval(means, resamples=40_000, seed=3)
    assert found == metrics.bootstrap_interval(means, resamples=40_000, seed=3)
    assert low == pytest.approx(np.percentile(exact, 2.5), abs=0.03)
    assert high == pytest.approx(np.percentile(exact, 97.5), abs=0.03)


def test_the_interval_over_samples_matches_every_redraw_of_the_samples():
    """Two problems with 2 samples each: all 4 x 4 redraws, each as likely."""
    rows = {"a": [True, False], "b": [True, True]}
    exact = [np.mean([np.mean(a), np.mean(b)]) for a in product(rows["a"], repeat=2)
             for b in product(rows["b"], repeat=2)]  # fmt: skip
    low, high = metrics.sample_interval(rows, resamples=20_000, seed=0)
    assert (low, high) == (np.percentile(exact, 2.5), np.percentile(exact, 97.5))
    assert metrics.sample_interval({"a": [True, True], "b": [False]}, 100, 0) == (0.5, 0.5)


def test_zero_of_thirty_does_not_rule_out_one_in_eleven():
    bound = metrics.upper_bound_of_zero(30)
    assert (1 - bound) ** 30 == pytest.approx(0.05)
    assert bound == pytest.approx(3 / 30, rel=0.06)
