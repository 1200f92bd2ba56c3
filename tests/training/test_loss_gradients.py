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


@pytest.mark.parametrize("seed", range(3))
def test_zero_betas_have_the_gradient_of_clip_higher_exactly(seed):
    case = Case(seed)
    none = Clip(0.2, 0.28, beta1=0.0, beta2=0.0)
    assert torch.equal(case.gradient("gppo", clip=none), case.gradient("clip_higher", clip=none))


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_alpha_zero_removes_the_lm_term_exactly(loss):
    case = Case(1)
    with_correct = case.gradient(loss, alpha=0.0)
    case.positive = torch.zeros(4, dtype=torch.bool)
    assert torch.equal(case.gradient(loss, alpha=0.0), with_correct)
    assert torch.equal(case.gradient(loss, alpha=ALPHA), with_correct)


@pytest.mark.parametrize("loss", sorted(POLICY_LOSSES))
def test_on_policy_every_loss_is_reinforce(loss):
    case = Case(2)
    case.old = case.logp(case.logits)
    assert torch.equal(case.gradient(loss), case.gradient("grpo"))


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


def test_the_ratio_of_float64_is_float64_and_of_bfloat16_is_float32():
    one = torch.ones(1)
    assert importance_ratio(one.double(), one.double()).dtype == torch.float64
    assert importance_ratio(one.bfloat16(), one.bfloat16()).dtype == torch.float32


def test_the_mismatch_weight_is_capped_above_only_and_one_where_unknown():
    trainer = torch.log(torch.tensor([0.2, 0.9, 0.01, 0.5]))
    sampler = torch.log(torch.tensor([0.1, 0.1, 0.1, math.nan]))
    found = mismatch_weight(trainer, sampler, cap=3.0)
    assert found.tolist() == pytest.approx([2.0, 3.0, 0.1, 1.0])
