"""Gradients of the policy losses: Eq. 11, 12, 13, 17, 18 and the cases where they differ."""

import math

import pytest
import torch

from training.losses import (
    POLICY_LOSSES,
    Clip,
    policy_weight,
    token_weight,
    weighted_nll,
)

CLIP = Clip(eps_low=0.2, eps_high=0.28)


def weight_of(loss, ratio, advantage, clip=CLIP):
    """F for single tokens with the given ratios and advantages."""
    logp = torch.tensor([ratio], dtype=torch.float64).log()
    return policy_weight(loss, logp, torch.zeros_like(logp), torch.tensor([advantage]), clip)[0]


def published_gppo(logp, old_logp, advantage, clip):
    """Eq. 11 as printed, per token, a loss: the clip bounds carry δ/sg(δ)."""
    ratio = (logp - old_logp).exp()
    grown = ratio / ratio.detach()
    clipped = torch.minimum(
        torch.maximum(ratio, (1 - clip.eps_low) * grown), (1 + clip.eps_high) * grown
    )
    return -torch.minimum(ratio * advantage, clipped * advantage)


def test_gppo_weights_are_the_cases_of_equation_12():
    ratios = [1.0, 1.2, 0.9, 2.0, 0.5, 0.5, 2.0]
    advantages = [1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0]
    #            in range        |  high, kept at the bound | pessimistic δ | low bound | δ
    expected = [1.0, 1.2, 0.9, 1 + 0.28, 0.5, 1 - 0.2, 2.0]
    assert weight_of("gppo", ratios, advantages).tolist() == pytest.approx(expected)


def test_betas_scale_the_clipped_tokens_only():
    clip = Clip(0.2, 0.28, beta1=0.25, beta2=0.5)
    weights = weight_of("gppo", [2.0, 0.5, 1.1], [1.0, -1.0, 1.0], clip)
    assert weights.tolist() == pytest.approx([0.5 * 1.28, 0.25 * 0.8, 1.1])


def test_clip_higher_gives_clipped_tokens_no_gradient():
    weights = weight_of("clip_higher", [2.0, 0.5, 0.5, 2.0], [1.0, -1.0, 1.0, -1.0])
    assert weights.tolist() == pytest.approx([0.0, 0.0, 0.5, 2.0])


def test_grpo_uses_one_epsilon_on_both_sides():
    assert weight_of("grpo", [1.25], [1.0]).item() == 0.0  # 1.25 > 1 + ε_low
    assert weight_of("clip_higher", [1.25], [1.0]).item() == pytest.approx(1.25)


def test_cispo_clamps_whatever_the_sign():
    weights = weight_of("cispo", [2.0, 2.0, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0])
    assert weights.tolist() == pytest.approx([1.28, 1.28, 0.8, 0.8])


def test_dual_clip_is_off_by_default_and_cuts_only_large_ratios_of_bad_answers():
    assert weight_of("gppo", [50.0], [-1.0]).item() == pytest.approx(50.0)
    clip = Clip(0.2, 0.28, dual_clip=10.0)
    assert weight_of("gppo", [50.0, 9.0, 50.0], [-1.0, -1.0, 1.0], clip).tolist() == pytest.approx(
        [0.0, 9.0, 1.28]
    )


@pytest.mark.parametrize("seed", range(5))
def test_gppo_has_the_gradient_of_the_published_form(seed):
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    new = old + 0.6 * torch.randn(4, 9, generator=generator, dtype=torch.float64)
    advantage = torch.randn(4, 1, generator=generator, dtype=torch.float64)
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    weight = policy_weight("gppo", ours, old, advantage, CLIP)
    weighted_nll(ours, weight * advantage).backward()
    published_gppo(theirs, old, advantage, CLIP).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-7)


def test_the_published_form_is_not_finite_there():
    """Why the detached form exists: 0/0 in δ/sg(δ), even with a zero advantage."""
    logp = torch.tensor([-200.0], requires_grad=True)
    published_gppo(logp, torch.zeros(1), torch.zeros(1), CLIP).backward()
    assert logp.grad is not None
    assert torch.isnan(logp.grad).all()


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_a_zero_advantage_gives_no_policy_gradient(loss):
    logp = torch.tensor([[0.7, -3.0]], requires_grad=True)
    advantage = torch.zeros(1, 1)
    weight = policy_weight(loss, logp, torch.zeros(1, 2), advantage, CLIP)
    weighted_nll(logp, weight * advantage).backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [[0.0, 0.0]]


def test_the_lm_loss_is_the_mean_nll_of_correct_answers():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    positive = torch.tensor([True, False])
    weight = token_weight(
        torch.ones(2, 3),
        torch.zeros(2, 1),
        positive,
        mask,
        policy_tokens=3,
        positive_tokens=2,
        lm_weight=0.1,
    )
    assert weight.tolist() == [[pytest.approx(0.05), pytest.approx(0.05), 0.0], [0.0] * 3]


def test_no_correct_answer_means_no_lm_loss_and_no_division_by_zero():
    weight = token_weight(
        torch.ones(1, 2),
        torch.ones(1, 1),
        torch.tensor([False]),
        torch.ones(1, 2),
        policy_tokens=2.0,
        positive_tokens=0.0,
        lm_weight=0.1,
    )
    assert weight.tolist() == [[0.5, 0.5]]


def test_padding_with_infinite_log_probabilities_does_not_reach_the_loss():
    logp = torch.tensor([[-1.0, -math.inf]], requires_grad=True)
    weight = token_weight(
        torch.ones(1, 2),
        torch.ones(1, 1),
        torch.tensor([True]),
        torch.tensor([[1, 0]]),
        policy_tokens=1,
        positive_tokens=1,
        lm_weight=0.1,
    )
    loss = weighted_nll(logp, weight)
    loss.backward()
    assert loss.item() == pytest.approx(1.1)
    assert logp.grad is not None
    assert logp.grad.tolist() == [[pytest.approx(-1.1), 0.0]]
