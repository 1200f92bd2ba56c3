"""Eq. 11 to 18 against finite differences in float64, and the losses in each other's limits."""

import math

import pytest
import torch

from training.losses import (
    POLICY_LOSSES,
    Clip,
    importance_ratio,
    mismatch_weight,
    policy_weight,
    token_weight,
    weighted_nll,
)

CLIP = Clip(eps_low=0.2, eps_high=0.28, beta1=0.5, beta2=0.75)
ALPHA = 0.1
STEP = 1e-6
PLAIN = Clip(eps_low=0.2, eps_high=0.28)


class Case:
    """A softmax policy over 7 tokens: logits [4, 6, 7] near those of the old policy."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        old = torch.randn(4, 6, 7, generator=g, dtype=torch.float64)
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

    def ours(self, loss, logits, clip=CLIP, alpha=ALPHA):
        logp = self.logp(logits)
        weight = policy_weight(loss, logp, self.old, self.advantage, clip)
        tokens = token_weight(weight, self.advantage, self.positive, self.mask, lm_weight=alpha,
                              policy_tokens=self.policy_tokens,
                              positive_tokens=self.positive_tokens)  # fmt: skip
        return weighted_nll(logp, tokens)

    def gradient(self, loss, **options):
        logits = self.logits.clone().requires_grad_()
        self.ours(loss, logits, **options).backward()
        return logits.grad

    def objective(self, loss, logits, frozen):
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
        return policy - ALPHA * (self.logp(logits) * correct).sum() / self.positive_tokens


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_finite_differences(loss, seed):
    case = Case(seed)
    frozen = (case.logp(case.logits) - case.old).exp()
    ours = case.gradient(loss)
    numeric = torch.zeros_like(ours)
    for index in range(case.logits.numel()):
        moved = torch.zeros(case.logits.numel(), dtype=torch.float64)
        moved[index] = STEP
        moved = moved.view_as(case.logits)
        up = case.objective(loss, case.logits + moved, frozen)
        down = case.objective(loss, case.logits - moved, frozen)
        numeric.view(-1)[index] = (up - down) / (2 * STEP)
    torch.testing.assert_close(ours, numeric, rtol=1e-6, atol=1e-9)
    assert (frozen > 1.28).any()
    assert (frozen < 0.8).any()


def test_a_wide_clip_range_is_reinforce_with_importance_weights():
    case = Case(0)
    wide = Clip(eps_low=1 - 1e-12, eps_high=1e12)
    logits = case.logits.clone().requires_grad_()
    ratio = (case.logp(logits) - case.old).exp()
    (-(ratio * case.advantage * case.mask).sum() / case.policy_tokens).backward()
    for loss in ("gppo", "clip_higher", "cispo"):
        found = case.gradient(loss, clip=wide, alpha=0.0)
        torch.testing.assert_close(found, logits.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
def test_a_log_ratio_of_a_thousand_is_finite(loss, dtype, log_ratio):
    for advantage in (-1.0, 0.0, 1.0):
        logp = torch.full((1, 3), log_ratio, dtype=dtype, requires_grad=True)
        a = torch.tensor([[advantage]])
        weight = policy_weight(loss, logp, torch.zeros(1, 3, dtype=dtype), a, CLIP)
        loss_value = weighted_nll(logp, weight * a)
        loss_value.backward()
        assert logp.grad is not None
        assert torch.isfinite(logp.grad).all()
        assert torch.isfinite(loss_value)


def test_the_log_ratio_clamp_is_a_choice():
    logp = torch.tensor([50.0, -50.0, 1.0])
    ratio = importance_ratio(logp, torch.zeros(3), max_log_ratio=2.0)
    assert ratio.tolist() == pytest.approx([math.exp(2), math.exp(-2), math.exp(1)])
    bad = torch.tensor([[-1.0]])
    weight = policy_weight("gppo", logp[None, :1], torch.zeros(1, 1), bad, Clip(max_log_ratio=3.0))
    assert weight.item() == pytest.approx(math.exp(3))


def test_the_mismatch_weight_is_capped_above_only_and_one_where_unknown():
    trainer = torch.log(torch.tensor([0.2, 0.9, 0.01, 0.5]))
    sampler = torch.log(torch.tensor([0.1, 0.1, 0.1, math.nan]))
    found = mismatch_weight(trainer, sampler, cap=3.0)
    assert found.tolist() == pytest.approx([2.0, 3.0, 0.1, 1.0])


def weight_of(loss, ratio, advantage, clip=PLAIN):
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
    weight = policy_weight("gppo", ours, old, advantage, PLAIN)
    weighted_nll(ours, weight * advantage).backward()
    published_gppo(theirs, old, advantage, PLAIN).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-7)


def test_the_published_form_is_not_finite_there():
    """Why the detached form exists: 0/0 in δ/sg(δ), even with a zero advantage."""
    logp = torch.tensor([-200.0], requires_grad=True)
    published_gppo(logp, torch.zeros(1), torch.zeros(1), PLAIN).backward()
    assert logp.grad is not None
    assert torch.isnan(logp.grad).all()


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
