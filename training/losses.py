"""Advantages, and policy losses as a weighted negative log-likelihood with a detached weight
(§3.2.2, App. A).

Every loss here has the gradient of Eq. 12,

    ∇L = −Σ_t F_t · Ã · ∇log π_t / Z,

and they differ in F alone. GPPO is published (Eq. 11) as a clipped surrogate whose bounds carry
δ/sg(δ); that form divides 0 by 0 at extreme log-ratios and gives NaN even where Ã = 0. The
detached weight has the same gradient in all other cases and is finite everywhere.

Shapes: all tensors are [B, T] (sequences × answer tokens) unless said otherwise; `advantage` may
be [B, 1]. Signs: `weighted_nll` is minimised; a positive advantage makes its tokens likelier.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # e^20 is far outside any clip range, and its square still fits in float32
SAME_REWARD = 1e-6  # rewards closer than this are equal: rounding is no signal


class Advantages(NamedTuple):
    """All [N, G]: N groups (prompts) of G answers (Eq. 4)."""

    advantage: Tensor  # Ã; 0 for every answer outside `mixed`
    scored: Tensor  # bool: the answer has a reward, in a group with at least two of them
    mixed: Tensor  # bool: scored, in a group whose rewards differ


def group_advantages(
    rewards: Tensor, std: Literal["population", "unbiased"] = "population"
) -> Advantages:
    """Ã = (R − μ)/σ within each group (Eq. 4; the authors' code uses the unbiased σ).

    `rewards` [N, G]; NaN (or infinity) is an unscored answer, which leaves its group: it has no
    advantage and no part in μ and σ. A group with fewer than two scored answers is dropped.
    Groups of equal rewards have zero advantage (§5.2.5).
    """
    known = rewards.isfinite()
    count = known.sum(1, keepdim=True)
    scored = known & (count >= 2)
    value = torch.where(scored, rewards, 0.0)
    mean = value.sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(scored, rewards - mean, 0.0)
    free = count - 1 if std == "unbiased" else count
    sigma = (centred.square().sum(1, keepdim=True) / free.clamp(min=1)).sqrt()
    high = torch.where(scored, rewards, -torch.inf).amax(1, keepdim=True)
    low = torch.where(scored, rewards, torch.inf).amin(1, keepdim=True)
    mixed = scored & (high - low > SAME_REWARD)
    advantage = torch.where(mixed, centred / torch.where(mixed, sigma, 1.0), 0.0)
    return Advantages(advantage, scored, mixed)


@dataclass(frozen=True)
class Clip:
    """Clip range [1 − ε_low, 1 + ε_high] (Eq. 5), β1 and β2 (Eq. 17), optional dual clip c."""

    eps_low: float = 0.2
    eps_high: float = 0.28
    beta1: float = 1.0
    beta2: float = 1.0
    dual_clip: float | None = None

    def above(self, ratio: Tensor, advantage: Tensor) -> Tensor:
        """Tokens that clipping would cut off on the high side: Ã > 0, δ > 1 + ε_high."""
        return (advantage > 0) & (ratio > 1 + self.eps_high)

    def below(self, ratio: Tensor, advantage: Tensor) -> Tensor:
        """Tokens that clipping would cut off on the low side: Ã < 0, δ < 1 − ε_low."""
        return (advantage < 0) & (ratio < 1 - self.eps_low)


def gppo(ratio: Tensor, advantage: Tensor, clip: Clip) -> Tensor:
    """Eq. 12 and, for β ≠ 1, Eq. 18: a clipped token keeps a gradient, weighed at the clip bound:
    β2 (1 + ε_high) above it, β1 (1 − ε_low) below."""
    weight = torch.where(clip.above(ratio, advantage), clip.beta2 * (1 + clip.eps_high), ratio)
    return torch.where(clip.below(ratio, advantage), clip.beta1 * (1 - clip.eps_low), weight)


def clip_higher(ratio: Tensor, advantage: Tensor, clip: Clip) -> Tensor:
    """Eq. 7 (gradient: Eq. 10 with asymmetric bounds): a clipped token has no gradient."""
    cut = clip.above(ratio, advantage) | clip.below(ratio, advantage)
    return ratio.masked_fill(cut, 0.0)


def grpo(ratio: Tensor, advantage: Tensor, clip: Clip) -> Tensor:
    """Eq. 3: as clip_higher, with ε_low on both sides."""
    return clip_higher(ratio, advantage, Clip(clip.eps_low, clip.eps_low))


def cispo(ratio: Tensor, advantage: Tensor, clip: Clip) -> Tensor:
    """Eq. 15 and 16: the clipped ratio weighs every token, whatever the sign of Ã."""
    return ratio.clamp(1 - clip.eps_low, 1 + clip.eps_high)


POLICY_LOSSES: dict[str, Callable[[Tensor, Tensor, Clip], Tensor]] = {
    loss.__name__: loss for loss in (gppo, clip_higher, grpo, cispo)
}


def importance_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """δ = π/π_old, detached, in float32 or better; |log δ| is at most `MAX_LOG_RATIO`, which acts
    on tokens that no clip range bounds: Ã < 0 with a large δ."""
    log_ratio = (logp - old_logp).detach()
    if log_ratio.dtype != torch.float64:
        log_ratio = log_ratio.float()
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True)
class Mismatch:
    """What is done about a sampler (vLLM) unlike the trainer, by ρ = π_old/π_sampler."""

    low: float = 1.0
    high: float = 1.0
    """Bounds of ρ as the weight of a token: truncated importance sampling."""
    mask: bool = False
    """A token outside of them has no gradient: IcePop."""
    drift: float = math.inf
    """An answer has no gradient where its mean log ρ is further from 0: a geometric mask."""


class Correction(NamedTuple):
    """All [B, T]."""

    weight: Tensor  # what F is multiplied with
    masked: Tensor  # bool: outside the range of a mask
    dropped: Tensor  # bool: of an answer that drifted


def correction(
    old_logp: Tensor, sampling_logp: Tensor, answer: Tensor, mask: Tensor, bounds: Mismatch
) -> Correction:
    """The weight of every token for its sampler's sake, detached; 1 where the log-probability that
    it was sampled with is unknown (NaN). `answer` [B, T] or [B, 1] numbers the answers from 0.
    """
    log_ratio = torch.nan_to_num((old_logp - sampling_logp).detach().float(), nan=0.0)
    ratio = log_ratio.exp()
    number, zeros = answer.expand_as(mask), ratio.new_zeros(mask.numel())
    tokens = zeros.index_add(0, number[mask], torch.ones_like(ratio[mask]))
    mean = zeros.index_add(0, number[mask], log_ratio[mask]) / tokens.clamp(min=1)
    dropped = mean.abs()[number] > bounds.drift
    masked = ((ratio < bounds.low) | (ratio > bounds.high)) & bounds.mask
    weight = ratio.clamp(bounds.low, bounds.high).masked_fill(masked | dropped, 0.0)
    return Correction(weight, masked, dropped)


def policy_weight(
    loss: str, logp: Tensor, old_logp: Tensor, advantage: Tensor, clip: Clip
) -> Tensor:
    """F of Eq. 12 for one of `POLICY_LOSSES`, detached.

    `clip.dual_clip` = c gives tokens with Ã < 0 and δ > c no gradient (the authors' code, c = 10).
    """
    ratio = importance_ratio(logp, old_logp)
    weight = POLICY_LOSSES[loss](ratio, advantage, clip)
    if clip.dual_clip is not None:
        weight = weight.masked_fill((advantage < 0) & (ratio > clip.dual_clip), 0.0)
    return weight


def token_weight(
    policy_weight: Tensor,
    advantage: Tensor,
    positive: Tensor,
    mask: Tensor,
    *,
    policy_tokens: float,
    positive_tokens: float,
    lm_weight: float,
) -> Tensor:
    """w = F·Ã/Z_pg + α·1[positive]/Z_pos on answer tokens, 0 elsewhere (Eq. 12, 13, 14).

    `positive` [B], [B, 1] or [B, T] marks correct answers (Φ of Eq. 13). `policy_tokens` and
    `positive_tokens` are the answer tokens, and those of correct answers, of the *whole* optimizer
    step, so the sum over micro-batches and processes is the loss of the step however it is cut.
    Eq. 13 prints π; the gradient of a likelihood needs log π, which is what the authors' code has.
    """
    policy = policy_weight * advantage / max(policy_tokens, 1.0)
    correct = positive[:, None] if positive.ndim == 1 else positive
    lm = lm_weight * correct.to(policy) / max(positive_tokens, 1.0)
    return torch.where(mask.bool(), policy + lm, 0.0).detach()


def weighted_nll(logp: Tensor, weight: Tensor) -> Tensor:
    """Σ −w·log π: a scalar with the gradient of Eq. 12 + α·Eq. 13. Weight 0 means no gradient."""
    return -(weight * torch.where(weight != 0, logp, 0.0)).sum()
