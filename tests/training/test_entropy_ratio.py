"""Entropy-ratio clipping masks tokens whose entropy moved; a penalty of length is an advantage."""

import math

import pytest
import torch
from pydantic import ValidationError

from klear.configs.settings.training import RLSettings
from klear.training.losses import (
    entropy_ratio,
    overlong_penalty,
    policy_weight,
    token_weight,
    weighted_nll,
)
from tests.training.conftest import by_row, close
from tests.training.test_gppo_equivalence import fixed
from tests.training.test_gppo_trainer import FIRST_IS_RIGHT, logged, weights_of
from tests.training.test_loss_gradients import CLIP, Case, finite_differences

OFF = {"rollout_func": fixed, "mini_batch": 1, "lm_weight": 0.0, "steps": 2}
"""The second and later of four updates of a rollout are off-policy."""


def test_a_masked_token_keeps_its_value_and_loses_its_gradient():
    """Against central differences of the loss in float64, in which a token outside of the bounds is
    a constant (arXiv 2512.05591): logits move, entropies and probabilities with them."""
    case = Case(3)

    def entropy(logits):
        every = logits.log_softmax(-1)
        return -(every.exp() * every).sum(-1)

    leaf = case.logits.clone().requires_grad_()
    outside = entropy_ratio(entropy(leaf), entropy(case.old_logits), 0.95, 1.05)
    masked = outside.below | outside.above
    assert (outside.below & case.mask).any()
    assert (outside.above & case.mask).any()
    assert (~masked & case.mask).any()
    logp = case.logp(leaf)
    weight = policy_weight(CLIP, logp, case.old, case.advantage).masked_fill(masked, 0.0)
    sums = {"policy_tokens": case.policy_tokens, "positive_tokens": 0.0, "lm_weight": 0.0}
    tokens = token_weight(weight, case.advantage, case.positive, case.mask, **sums)
    weighted_nll(logp, tokens).backward()
    frozen = (case.logp(case.logits) - case.old).exp()

    def published(logits):
        still = torch.where(masked[..., None], case.logits, logits)
        return case.objective("gppo", still, frozen, alpha=0.0)

    numeric = finite_differences(published, case.logits)
    torch.testing.assert_close(leaf.grad, numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", ["gppo", "clip_higher", "gspo"])
def test_bounds_of_0_and_infinity_change_no_bit(make_trainer, loss):
    reached = []
    for bounds in (None, (0.0, math.inf)):
        trainer = make_trainer(FIRST_IS_RIGHT, policy_loss=loss, erc=bounds, **OFF)
        trainer.train()
        reached.append(weights_of(trainer))
    close(*reached, rtol=0.0, atol=0.0)


def test_what_is_outside_of_narrow_bounds_has_no_gradient_and_is_counted_by_sign(
    make_trainer, gradients
):
    """But for the first update of a rollout, whose policy is the one that sampled."""
    trainer = make_trainer(FIRST_IS_RIGHT, erc=(1.0 - 1e-12, 1.0 + 1e-12), **OFF, max_grad_norm=0.0)
    first, *later = gradients(trainer)[:4]
    assert any(g.abs().max() > 0 for g in first.values())
    assert all(g.abs().max() == 0 for update in later for g in update.values())
    shares = [logged(trainer, f"erc/{side}_{sign}")[0]
              for side in ("below", "above") for sign in ("positive", "negative")]  # fmt: skip
    # The tokens of the first update have F = 1, the others 0.
    assert sum(shares) == pytest.approx(1 - logged(trainer, "policy_weight")[0])
    assert min(shares) > 0


def test_the_reward_falls_over_the_last_tokens_before_the_limit():
    lengths = torch.tensor([1, 16, 17, 18, 20])
    assert overlong_penalty(lengths, 20, 4).tolist() == [0.0, 0.0, -0.25, -0.5, -1.0]


def test_of_answers_that_are_paid_alike_the_shorter_become_likelier(make_trainer):
    """They would have no advantage else; what is logged as reward is without the penalty."""
    kept = []
    for buffer in (0, 11):
        trainer = make_trainer(by_row(1.0), rollout_func=fixed, overlong_buffer=buffer)
        trainer.on_rollout = lambda record: kept.append(record.advantages.advantage)
        trainer.train()
    lengths = trainer.state.log_history[0]
    assert kept[0].abs().max() == 0
    assert kept[1].abs().max() > 0
    assert lengths["reward/overlong_penalty"] < 0
    assert lengths["reward"] == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overlong_buffer": 64, "max_tokens": 64}, "below max_tokens=64"),
        ({"overlong_buffer": 4, "advantage": "maxrl"}, "maxrl takes 0 and 1"),
        ({"erc": {"low": 1.0}}, "less than 1"),
    ],
)
def test_a_penalty_or_bound_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        RLSettings.model_validate(settings)
