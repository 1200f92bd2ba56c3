"""Eq. 4, zero-advantage groups, and what unscored answers do to their group."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.advantages import group_advantages

NAN = float("nan")


def test_advantages_are_rewards_in_population_deviations_from_the_group_mean():
    rewards = [0.25, 1.0, 0.0, 0.25]
    mean, sigma = statistics.mean(rewards), statistics.pstdev(rewards)
    found = group_advantages(torch.tensor([rewards]))
    assert found.advantage[0].tolist() == pytest.approx([(r - mean) / sigma for r in rewards])
    assert found.mixed.all()


def test_the_unbiased_deviation_is_the_authors_option():
    rewards = [1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    population = group_advantages(torch.tensor([rewards])).advantage
    unbiased = group_advantages(torch.tensor([rewards]), "unbiased").advantage
    assert unbiased[0, 0].item() == pytest.approx(population[0, 0].item() * (7 / 8) ** 0.5)


def test_a_group_of_equal_rewards_has_nothing_to_teach():
    found = group_advantages(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    assert found.mixed.tolist() == [[False, False], [True, True]]
    assert found.advantage[0].tolist() == [0.0, 0.0]
    assert found.scored.all()


def test_an_unscored_answer_leaves_its_group():
    with_gap = group_advantages(torch.tensor([[1.0, NAN, 0.0, 0.5]]))
    without = group_advantages(torch.tensor([[1.0, 0.0, 0.5]]))
    assert with_gap.advantage[0, [0, 2, 3]].tolist() == without.advantage[0].tolist()
    assert with_gap.advantage[0, 1].item() == 0.0
    assert with_gap.mixed.tolist() == [[True, False, True, True]]


def test_a_group_with_fewer_than_two_scored_answers_is_dropped():
    found = group_advantages(torch.tensor([[1.0, NAN, NAN], [NAN, NAN, NAN]]))
    assert not found.scored.any()
    assert not found.mixed.any()
    assert not found.advantage.any()


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=4, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_advantages_are_finite_and_sum_to_zero_in_every_group(rows):
    rewards = torch.tensor(
        [[NAN if r is None else r for r in row] for row in rows], dtype=torch.float64
    )
    found = group_advantages(rewards)
    assert torch.isfinite(found.advantage).all()
    assert found.advantage.sum(1).abs().max().item() < 1e-6
    assert not found.advantage[~found.mixed].any()
