"""eval.benchmarks.metrics against brute force and hand-derived values."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.benchmarks.metrics import (
    avg_at_k,
    bootstrap_interval,
    majority_at_k,
    mean_pass_at_k,
    pass_at_k,
    sample_interval,
    summarise,
    upper_bound_of_zero,
    wilson_interval,
)


def test_every_problem_weighs_the_same_however_many_samples_were_scored():
    outcomes = {"a": [True, None, None, None], "b": [False, False, False, True]}
    assert avg_at_k(outcomes) == pytest.approx((1 + 1 / 4) / 2)


def test_a_problem_without_a_scored_sample_is_excluded_and_counted():
    outcomes = {"a": [True, False], "lost": [None, None], "b": [True, None]}
    summary = summarise(outcomes, k=2, resamples=50, seed=0)
    assert (summary.problems, summary.problems_unscored) == (2, 1)
    assert (summary.samples, summary.samples_unscored) == (3, 3)
    assert summary.avg == pytest.approx((1 / 2 + 1) / 2)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_sample(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    samples = [i < c for i in range(n)]
    subsets = list(combinations(samples, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_is_stable_where_binomials_overflow_a_float():
    # One right sample of n: it is among k drawn ones with probability k/n, exactly.
    assert pass_at_k(100_000, 1, 50_000) == pytest.approx(0.5, abs=1e-9)


def test_a_lost_sample_lowers_k_for_its_problem_only():
    outcomes = {"a": [False, True, None], "b": [False, False, True]}
    assert mean_pass_at_k(outcomes, 3) == 1.0
    assert mean_pass_at_k({"a": [False, None, None]}, 3) == 0.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def test_majority_counts_votes_not_right_samples():
    answers = {"p": ["7", "7", "8"], "q": ["1", "2", " 2 "]}
    outcomes = {"p": [False, False, True], "q": [False, True, True]}
    assert majority_at_k(answers, outcomes) == pytest.approx((0 + 1) / 2)


def test_a_tied_vote_is_the_expected_value_of_drawing_one():
    answers, outcomes = {"p": ["7", "8"]}, {"p": [True, False]}
    assert majority_at_k(answers, outcomes) == pytest.approx(1 / 2)


def test_a_sample_without_an_answer_or_a_score_casts_no_vote():
    answers = {"p": [None, None, "8", "7", "7"]}
    outcomes = {"p": [False, False, True, None, None]}
    assert majority_at_k(answers, outcomes) == 1.0
    assert majority_at_k({"p": [None]}, {"p": [False]}) == 0.0
    assert math.isnan(majority_at_k({"p": ["1"]}, {"p": [None]}))


def test_bootstrap_matches_the_exact_distribution_of_all_resamples():
    means = np.array([0.0, 0.2, 0.9, 1.0])
    exact = np.array([np.mean(draw) for draw in product(means, repeat=4)])
    low, high = bootstrap_interval(means, resamples=40_000, seed=3)
    assert low == pytest.approx(np.percentile(exact, 2.5), abs=0.03)
    assert high == pytest.approx(np.percentile(exact, 97.5), abs=0.03)


def test_bootstrap_is_a_function_of_its_seed_whatever_the_block_size(monkeypatch):
    means = np.linspace(0, 1, 30)
    whole = bootstrap_interval(means, 500, seed=1)
    assert whole != bootstrap_interval(means, 500, seed=2)
    monkeypatch.setattr("eval.benchmarks.metrics._RESAMPLED_CELLS", 30 * 7)
    assert bootstrap_interval(means, 500, seed=1) == whole


def test_the_interval_over_samples_matches_every_redraw_of_the_samples():
    """Two problems with 2 samples each: all 4 x 4 redraws, each as likely."""
    rows = {"a": [True, False], "b": [True, True]}
    exact = [np.mean([np.mean(a), np.mean(b)]) for a in product(rows["a"], repeat=2)
             for b in product(rows["b"], repeat=2)]  # fmt: skip
    low, high = sample_interval(rows, resamples=20_000, seed=0)
    assert (low, high) == (np.percentile(exact, 2.5), np.percentile(exact, 97.5))
    assert sample_interval({"a": [True, True], "b": [False]}, 100, 0) == (0.5, 0.5)


def test_nothing_scored_is_none_not_zero():
    summary = summarise({"a": [None]}, k=1, resamples=10, seed=0)
    assert summary.problems_unscored == summary.samples_unscored == 1
    assert not any((summary.avg, summary.ci_low, summary.pass_at_k, summary.sample_high))
    assert summary.avg is None


def test_zero_of_thirty_does_not_rule_out_one_in_eleven():
    bound = upper_bound_of_zero(30)
    assert (1 - bound) ** 30 == pytest.approx(0.05)
    assert bound == pytest.approx(3 / 30, rel=0.06)


def test_wilson_interval_solves_its_defining_equation():
    # Its ends are the p with |share - p| = z * sqrt(p (1 - p) / n).
    for successes, trials in [(0, 20), (17, 20), (20, 20), (989, 990)]:
        share = successes / trials
        for p in wilson_interval(successes, trials):
            assert (share - p) ** 2 == pytest.approx(1.959964**2 * p * (1 - p) / trials, abs=1e-9)
