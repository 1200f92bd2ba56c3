"""Shares of a rollout: of what was scored, not of what was asked."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.advantages import group_advantages
from training.rollout_metrics import rollout_metrics

NAN = float("nan")


def metrics(*groups: list[float]) -> dict[str, float]:
    rewards = torch.tensor(groups)
    rollout: Any = SimpleNamespace(tokens=[0] * rewards.numel(), answer_length=lambda _: 5)
    return rollout_metrics(
        rewards,
        group_advantages(rewards),
        rollout,
        overlong=torch.zeros_like(rewards).bool(),
        positive_reward=1.0,
        seconds=2.0,
        total=lambda values: values,
    )


def test_unscored_answers_have_no_part_in_the_shares():
    """Four groups: live, all right, wholly unscored, and half of it unscored but live."""
    found = metrics([1, -1, -1, -1], [1, 1, 1, 1], [NAN] * 4, [1, -1, NAN, NAN])
    assert found["unscored"] == 6
    assert found["positive_share"] == pytest.approx((1 + 4 + 1) / (4 + 4 + 2))
    assert found["zero_advantage_share"] == pytest.approx(1 / 3)
    assert found["tokens_per_second"] == 16 * 5 / 2


def test_the_spread_of_rewards_is_that_of_all_scored_answers_together():
    """Not the mean of what groups or processes have: within each group rewards are equal here."""
    found = metrics([1, 1, NAN, 1], [-1, -1, -1, NAN])
    assert found["reward/std"] == pytest.approx(1.0)  # three of 1 and three of -1, population


def test_a_rollout_without_any_score_has_shares_of_zero():
    found = metrics([NAN, NAN], [NAN, NAN])
    assert (found["positive_share"], found["zero_advantage_share"]) == (0, 0)
    assert found["unscored"] == 4
    assert "reward/std" not in found
