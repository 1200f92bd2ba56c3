"""Eq. 4, and Eq. 11 to 18 against finite differences in float64 and in each other's limits."""

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from klear.configs.settings.loss import GPPO, LOSSES
from klear.training.losses import (
    POLICY_LOSSES,
    ImportanceBounds,
    group_advantages,
    importance_correction,
    policy_weight,
    token_weight,
    weighted_nll,
)

CLIP = GPPO(eps_low=0.2, eps_high=0.28, beta1=0.5, beta2=0.75)
SETTINGS = {name: CLIP if name == "gppo" else loss() for name, loss in LOSSES.items()}
ALPHA = 0.1
STEP = 1e-6


class Case:
    """A softmax policy over 7 tokens: logits [4, 6, 7] near those of the old policy."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        old = torch.randn(4, 6, 7, generator=g, dtype=torch.float64)
        self.old_logits = old
        self.logits = old + 0.5 * torch.randn(4, 6, 7, generator=g, dtype=torch.float64)
        self.target = torch.randint(7, (4, 6, 1), generator=g)
        self.old = self.logp(old)
        self.advantage = torch.randn(4, 1, generator=g, dtype=torch.float64)
        self.positive = self.advantage[:, 0] > 0
        self.mask = torch.arange(6)[None] < torch.tensor([6, 2, 4, 5])[:, None]
        self.policy_tokens = float(self.mask.sum())
        self.positive_tokens = float(self.mask[self.positive].sum())

    def logp(self, logits):
        return logits.log_softmax(-1).gather(2, self.target)[..., 0]

    def gradient(self, loss):
        logits = self.logits.clone().requires_grad_()
        logp = self.logp(logits)
        weight = policy_weight(SETTINGS[loss], logp, self.old, self.advantage)
        tokens = token_weight(weight, self.advantage, self.positive, self.mask, lm_weight=ALPHA,
                              policy_tokens=self.policy_tokens,
                              positive_tokens=self.positive_tokens)  # fmt: skip
        weighted_nll(logp, tokens).backward()
        return logits.grad

    def objective(self, loss, logits, frozen, alpha=ALPHA):
        """Eq. 14 as printed, a number; `frozen` is δ under the stop-gradient of Eq. 11, 15, 17."""
        ratio = (self.logp(logits) - self.old).exp()
        low, high = 1 - CLIP.eps_low, 1 + CLIP.eps_high
        a = self.advantage
        above, below = (a > 0) & (frozen > high), (a < 0) & (frozen < low)
        if loss == "cispo":
            value = frozen.clamp(low, high) * a * self.logp(logits)
        elif loss == "gppo":  # Eq. 17
            value = torch.where(above, CLIP.beta2 * high * ratio / frozen * a, ratio * a)
            value = torch.where(below, CLIP.beta1 * low * ratio / frozen * a, value)
        else:
            top = high if loss == "clip_higher" else 1 + CLIP.eps_low
            value = torch.minimum(ratio * a, ratio.clamp(low, top) * a)
        policy = -(value * self.mask).sum() / self.policy_tokens
        correct = self.mask & self.positive[:, None]
        return policy - alpha * (self.logp(logits) * correct).sum() / self.positive_tokens


def finite_differences(value, at):
    """The gradient of `value` at the tensor `at`, by central differences."""
    numeric = torch.zeros_like(at)
    for index in range(at.numel()):
        step = torch.zeros_like(at)
        step.view(-1)[index] = STEP
        numeric.view(-1)[index] = (value(at + step) - value(at - step)) / (2 * STEP)
    return numeric


@pytest.mark.parametrize("loss", ["gppo", "clip_higher", "grpo", "cispo"])
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_finite_differences(loss, seed):
    case = Case(seed)
    frozen = (case.logp(case.logits) - case.old).exp()
    numeric = finite_differences(lambda z: case.objective(loss, z, frozen), case.logits)
    torch.testing.assert_close(case.gradient(loss), numeric, rtol=1e-6, atol=1e-9)
    assert (frozen > 1.28).any()
    assert (frozen < 0.8).any()


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
def test_a_log_ratio_of_a_thousand_is_finite(loss, dtype, log_ratio):
    for advantage in (-1.0, 0.0, 1.0):
        logp = torch.full((1, 3), log_ratio, dtype=dtype, requires_grad=True)
        a = torch.tensor([[advantage]])
        weight = policy_weight(SETTINGS[loss], logp, torch.zeros(1, 3, dtype=dtype), a)
        loss_value = weighted_nll(logp, weight * a)
        loss_value.backward()
        assert torch.isfinite(logp.grad).all()
        assert torch.isfinite(loss_value)


@pytest.mark.parametrize(
    ("bounds", "weights", "masked"),
    [  # of ρ = 2, 9, 0.1 and, where the sampler told nothing, 1
        (ImportanceBounds(0.0, 3.0), [2.0, 3.0, 0.1, 1.0], 0),
        (ImportanceBounds(0.5, 5.0, mask=True), [2.0, 0.0, 0.0, 1.0], 2),
        (ImportanceBounds(drift=0.2), [1.0, 1.0, 1.0, 1.0], 0),  # mean log ρ = log(1.8)/4 = 0.147
        (ImportanceBounds(drift=0.1), [0.0, 0.0, 0.0, 0.0], 0),
    ],
)
def test_a_sampler_unlike_the_trainer_is_corrected_for(bounds, weights, masked):
    trainer = torch.log(torch.tensor([[0.2, 0.9, 0.01, 0.5]]))
    sampler = torch.log(torch.tensor([[0.1, 0.1, 0.1, math.nan]]))
    one, mask = torch.zeros(1, 1).long(), torch.ones(1, 4).bool()
    corrected = importance_correction(trainer, sampler, one, mask, bounds)
    assert corrected.weight[0].tolist() == pytest.approx(weights)
    assert corrected.masked.sum() == masked
    assert corrected.dropped.all() == (weights[0] == 0)


def test_an_answer_drifts_by_itself_in_a_packed_row_as_in_rows_of_their_own():
    """Two answers of mean log ρ = 0.5 and −0.01 with a prompt between them."""
    mask = torch.tensor([[1, 1, 0, 1, 1]]).bool()
    logp, answer = torch.tensor([[0.9, 0.1, 7.0, 0.0, -0.02]]), torch.tensor([[0, 0, 1, 1, 1]])
    packed = importance_correction(
        logp, torch.zeros(1, 5), answer, mask, ImportanceBounds(drift=0.1)
    )
    rows = importance_correction(
        logp[:, [[0, 1], [3, 4]]][0], torch.zeros(2, 2), torch.arange(2)[:, None],
        torch.ones(2, 2).bool(), ImportanceBounds(drift=0.1),
    )  # fmt: skip
    assert packed.weight[mask].tolist() == rows.weight.flatten().tolist() == [0.0, 0.0, 1.0, 1.0]


def test_dual_clip_cuts_large_ratios_of_bad_answers_alone():
    ratios, advantages = [50.0, 9.0, 50.0, 2.0], torch.tensor([[-1, -1, 1, -1]])
    logp = torch.tensor([ratios], dtype=torch.float64).log()
    old = torch.zeros_like(logp)
    for loss, expected in (
        (GPPO(dual_clip=10.0), [0.0, 9.0, 1.28, 2.0]),
        (GPPO(), [50.0, 9.0, 1.28, 2.0]),
    ):
        assert policy_weight(loss, logp, old, advantages)[0].tolist() == pytest.approx(expected)


def test_where_nothing_is_correct_nothing_is_divided_by_0():
    weight = token_weight(torch.ones(1, 2), torch.ones(1, 1), torch.tensor([False]),
                          torch.ones(1, 2), policy_tokens=2, positive_tokens=0,
                          lm_weight=0.1)  # fmt: skip
    assert weight.tolist() == [[0.5, 0.5]]


def test_padding_with_infinite_log_probabilities_does_not_reach_the_loss():
    logp = torch.tensor([[-1.0, -math.inf]], requires_grad=True)
    loss = weighted_nll(logp, torch.tensor([[1.1, 0.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(1.1)
    assert logp.grad.tolist() == [[pytest.approx(-1.1), 0.0]]


NAN = float("nan")


def test_advantages_are_rewards_in_deviations_from_the_group_mean():
    """Eq. 4 has the population's deviation, the authors' code the unbiased one."""
    rewards = [0.25, 1.0, 0.0, 0.25]
    mean = statistics.mean(rewards)
    kind: Any
    for kind, sigma in (("population", statistics.pstdev), ("unbiased", statistics.stdev)):
        advantages = group_advantages(torch.tensor([rewards]), kind)
        expected = [(r - mean) / sigma(rewards) for r in rewards]
        assert advantages.advantage[0].tolist() == pytest.approx(expected)
        assert advantages.mixed.all()


@pytest.mark.parametrize(
    ("scale", "expected"),
    [  # of rewards 1, 0, 0, 0 and 1, 1, 1, 0; a third group of equal ones has no part in any
        ("none", [[0.75, -0.25, -0.25, -0.25], [0.25, 0.25, 0.25, -0.75]]),
        ("maxrl", [[3.0, -1, -1, -1], [1 / 3, 1 / 3, 1 / 3, -1]]),
        # the σ of all eight is that of either group, √(3/16)
        ("batch", [[3**0.5, *[-(3**-0.5)] * 3], [*[3**-0.5] * 3, -(3**0.5)]]),
    ],
)
def test_what_divides_a_reward_less_its_mean_is_a_choice(scale, expected):
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    advantages = group_advantages(rewards, scale=scale)
    torch.testing.assert_close(advantages.advantage[:2], torch.tensor(expected))
    assert not advantages.advantage[2].any()


def test_the_deviation_of_a_batch_is_that_of_all_answers_of_groups_that_differ():
    rewards = [[0.0, 1.0, NAN], [5.0, 9.0, 7.0], [3.0, 3.0, 3.0]]
    centred = [-0.5, 0.5, -2.0, 2.0, 0.0]
    kind: Any
    for kind, sigma in (("population", statistics.pstdev), ("unbiased", statistics.stdev)):
        advantages = group_advantages(torch.tensor(rewards), kind, "batch").advantage
        expected = [c / sigma(centred) for c in centred]
        assert advantages.flatten()[[0, 1, 3, 4, 5]].tolist() == pytest.approx(expected)
        assert not advantages.flatten()[[2, 6, 7, 8]].any()


def test_maxrl_is_for_rewards_of_0_and_1():
    with pytest.raises(ValueError, match="give it rewards of 0 and 1"):
        group_advantages(torch.tensor([[1.0, -1.0]]), scale="maxrl")


def test_equal_rewards_teach_nothing_and_an_unscored_answer_leaves_its_group():
    groups = group_advantages(torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, NAN], [NAN, NAN]]))
    assert groups.mixed.tolist() == [[False, False], [True, True], [False, False], [False, False]]
    assert groups.scored.tolist() == [[True, True], [True, True], [False, False], [False, False]]
    assert not groups.advantage[[0, 2, 3]].any()
    gap = group_advantages(torch.tensor([[1.0, NAN, 0.0, 0.5]])).advantage[0]
    without = group_advantages(torch.tensor([[1.0, 0.0, 0.5]])).advantage[0]
    assert gap[[0, 2, 3]].tolist() == without.tolist()
    assert gap[1].item() == 0.0


REWARDS = st.lists(st.one_of(st.none(), st.floats(-2, 2)), min_size=4, max_size=4)


@given(st.lists(REWARDS, min_size=1, max_size=6))
def test_advantages_are_finite_and_sum_to_zero_in_every_group(rows):
    rewards = [[NAN if r is None else r for r in row] for row in rows]
    groups = group_advantages(torch.tensor(rewards, dtype=torch.float64))
    assert torch.isfinite(groups.advantage).all()
    assert groups.advantage.sum(1).abs().max().item() < 1e-6
    assert not groups.advantage[~groups.mixed].any()
