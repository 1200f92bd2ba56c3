"""Advantages, and policy losses as a weighted negative log-likelihood with a detached weight
(§3.2.2, App. A). GPPO, Eq. 11, is the function `gppo`.

Every loss here has the gradient of Eq. 12,

    ∇L = −Σ_t F_t · Ã · ∇log π_t / Z,

and they differ in F alone: a function a loss, which computes F from what `Tokens` holds and from
the constants of its settings, `configs/settings/loss.py`, by the names of the equation.

Shapes: all tensors are [B, T] (sequences × answer tokens) unless said otherwise; `advantage` may
be [B, 1]. Signs: `weighted_nll` is minimised; a positive advantage makes its tokens likelier.

Z is the tokens of the step (Eq. 7's mean). `gspo` and `sapo` are published as means over answers of
means over their tokens: their F holds L̄/|y|, the mean length of the step's answers over that of
this one, which turns the one mean into the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..configs.settings import loss as constants
from ..configs.settings.loss import AnyLoss

MAX_LOG_RATIO = 20.0  # e^20 is far outside any clip range, and its square still fits in float32
SAME_REWARD = 1e-6  # rewards closer than this are equal: rounding is no signal
LEAST_ENTROPY = 1e-8  # in nats, as ERC's authors' code has it
LEAST_LOG_WEIGHT = math.log(1e-8)  # of an answer in VESPO, as TRL has it


class Advantages(NamedTuple):
    """All [N, G]: N groups (prompts) of G answers (Eq. 4)."""

    advantage: Tensor  # Ã; 0 for every answer outside `mixed`
    scored: Tensor  # bool: the answer has a reward, in a group with at least two of them
    mixed: Tensor  # bool: scored, in a group whose rewards differ


def group_advantages(
    rewards: Tensor,
    std: Literal["population", "unbiased"] = "population",
    scale: Literal["group", "none", "batch", "maxrl"] = "group",
) -> Advantages:
    """Ã = (R − μ)/s, with the mean μ of each group and, by `scale`, s =

    - group: its deviation σ (Eq. 4; the authors' code uses the unbiased one)
    - none: 1 (Dr. GRPO, arXiv 2503.20783)
    - batch: the σ of R − μ over all groups whose rewards differ (ScaleRL, arXiv 2510.13786)
    - maxrl: μ (MaxRL, arXiv 2602.02710), for rewards of 0 and 1: where μ = 0 there is no advantage.
      A negative reward raises ValueError.

    `rewards` [N, G]; NaN (or infinity) is an unscored answer, which leaves its group: it has no
    advantage and no part in μ and σ. A group with fewer than two scored answers is dropped.
    Groups of equal rewards have zero advantage (§5.2.5).
    """
    finite = rewards.isfinite()
    count = finite.sum(1, keepdim=True)
    scored = finite & (count >= 2)
    value = torch.where(scored, rewards, 0.0)
    if scale == "maxrl" and bool((value < 0).any()):
        raise ValueError("maxrl divides by the mean reward of a group: give it rewards of 0 and 1")
    mean = value.sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(scored, rewards - mean, 0.0)
    high = torch.where(scored, rewards, -torch.inf).amax(1, keepdim=True)
    low = torch.where(scored, rewards, torch.inf).amin(1, keepdim=True)
    mixed = scored & (high - low > SAME_REWARD)
    squares = centred.square()
    if scale == "batch":
        squares, count = (squares * mixed).sum(), mixed.sum()
    else:
        squares = squares.sum(1, keepdim=True)
    free = count - 1 if std == "unbiased" else count
    sigma = (squares / free.clamp(min=1)).sqrt()
    divisor = {"none": torch.ones_like(mean), "maxrl": mean}.get(scale, sigma)
    advantage = torch.where(mixed, centred / torch.where(mixed, divisor, 1.0), 0.0)
    return Advantages(advantage, scored, mixed)


def clipped_tokens(ratio: Tensor, advantage: Tensor, s: AnyLoss) -> tuple[Tensor, Tensor]:
    """Tokens that clipping cuts off: Ã > 0 and δ > 1 + ε_high; Ã < 0 and δ < 1 − ε_low."""
    low, high = s.clip_range
    return (advantage > 0) & (ratio > high), (advantage < 0) & (ratio < low)


class Answers(NamedTuple):
    """Which answer a token is of."""

    number: Tensor  # [B, T] or [B, 1], from 0
    mask: Tensor  # [B, T] bool: answer tokens
    mean_length: float  # L̄: tokens an answer, over the whole optimizer step

    def sums(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T] each: the sum of `values` over the token's answer, and |y|, its tokens."""
        number, zeros = self.number.expand_as(self.mask), values.new_zeros(self.mask.numel())
        answer, inside = number[self.mask], values[self.mask]
        tokens = zeros.index_add(0, answer, torch.ones_like(inside)).clamp(min=1)
        return zeros.index_add(0, answer, inside)[number], tokens[number]


class Tokens(NamedTuple):
    """What a loss reads, detached, in float32 or better."""

    log_ratio: Tensor  # log δ
    ratio: Tensor  # δ = π/π_old
    advantage: Tensor
    old_logp: Tensor  # log π_old
    answers: Answers

    def where(self, condition: Tensor, yes: float, no: float) -> Tensor:
        """[B, T] in the type of δ."""
        return torch.where(condition, yes, torch.full_like(self.ratio, no))


def gppo(t: Tokens, s: constants.GPPO) -> Tensor:
    """Gradient-preserving clipping. Eq. 11, to be maximised, with sg the stop-gradient:

        Σ_t min(δ·Ã, clip(δ, (1 − ε_low)·δ/sg(δ), (1 + ε_high)·δ/sg(δ))·Ã) / Z

    δ/sg(δ) is 1 with the gradient ∇log π: the value is that of PPO's clipping, and a clipped token
    keeps a gradient. β1 and β2 weigh it (Eq. 17; both 1 is Eq. 11):

        β2·(1 + ε_high)·δ/sg(δ)·Ã    where Ã > 0 and δ > 1 + ε_high
        β1·(1 − ε_low)·δ/sg(δ)·Ã     where Ã < 0 and δ < 1 − ε_low
        δ·Ã                          elsewhere

    F (Eq. 12; with β, Eq. 18) is what stands before Ã, without δ/sg(δ), which would be 0/0 at
    extreme log-ratios: NaN even where Ã = 0. The detached F has the same gradient, and is finite.
    """
    above, below = clipped_tokens(t.ratio, t.advantage, s)
    weight = torch.where(above, s.beta2 * (1 + s.eps_high), t.ratio)
    return torch.where(below, s.beta1 * (1 - s.eps_low), weight)


def clip_higher(t: Tokens, s: constants.ClipHigher | constants.GRPO | constants.GSPO) -> Tensor:
    """Eq. 7 (gradient: Eq. 10 with asymmetric bounds): a clipped token has no gradient."""
    above, below = clipped_tokens(t.ratio, t.advantage, s)
    return t.ratio.masked_fill(above | below, 0.0)


def grpo(t: Tokens, s: constants.GRPO) -> Tensor:
    """Eq. 3: as clip_higher, with one ε on both sides."""
    return clip_higher(t, s)


def cispo(t: Tokens, s: constants.CISPO) -> Tensor:
    """Eq. 15 and 16: the clipped ratio weighs every token, whatever the sign of Ã."""
    return t.ratio.clamp(1 - s.eps_low, 1 + s.eps_high)


def dgpo(t: Tokens, s: constants.DGPO) -> Tensor:
    """arXiv 2603.14389, as its authors' code has it: a clipped token keeps a gradient that decays,
    δ·((1 + ε_high)/δ)^(1/m) above the range and δ·(δ/(1 − ε_low))^n below: δ at the bounds."""
    above, below = clipped_tokens(t.ratio, t.advantage, s)
    high = t.ratio * ((1 + s.eps_high) / t.ratio) ** (1 / s.m)
    low = t.ratio * (t.ratio / (1 - s.eps_low)) ** s.n
    return torch.where(above, high, torch.where(below, low, t.ratio))


def dppo_tv(t: Tokens, s: constants.DPPO) -> Tensor:
    """Binary total variation (arXiv 2602.04879, verl's dppo_tv): min(δ, cap), and no gradient where
    the token's probability has moved too far with its advantage: Ã > 0 and π − π_old > ε_high, or
    Ã < 0 and π − π_old < −ε_low."""
    moved = t.old_logp.exp() * t.log_ratio.expm1()
    cut = (t.advantage > 0) & (moved > s.eps_high)
    cut |= (t.advantage < 0) & (moved < -s.eps_low)
    return t.ratio.clamp(max=s.cap).masked_fill(cut, 0.0)


def gspo(t: Tokens, s: constants.GSPO) -> Tensor:
    """arXiv 2507.18071, as TRL and verl have it: r = exp(mean of log δ over the answer) in place
    of every token's δ; an answer whose r is clipped has no gradient. F = r·L̄/|y|."""
    total, tokens = t.answers.sums(t.log_ratio)
    by_answer = t._replace(ratio=(total / tokens).exp())
    return clip_higher(by_answer, s) * t.answers.mean_length / tokens


def sapo(t: Tokens, s: constants.SAPO) -> Tensor:
    """arXiv 2511.20347, as TRL and verl have it: a gate σ(τ(δ − 1))·4/τ in the place of clipping,
    with τ by the sign of Ã. F = 4σ(1 − σ)·δ·L̄/|y|."""
    _, tokens = t.answers.sums(t.log_ratio)
    tau = t.where(t.advantage > 0, s.temperature_pos, s.temperature_neg)
    x = tau * (t.ratio - 1)
    return 4 * x.sigmoid() * (-x).sigmoid() * t.ratio * t.answers.mean_length / tokens


def vespo(t: Tokens, s: constants.VESPO) -> Tensor:
    """arXiv 2602.10693, as TRL has it: F = w^k·exp(λ(1 − w)) with w = ∏ δ over the answer, k and λ
    by the sign of Ã; 1 at w = 1."""
    log_w = t.answers.sums(t.log_ratio)[0].clamp(LEAST_LOG_WEIGHT, MAX_LOG_RATIO)
    positive = t.advantage >= 0
    k = t.where(positive, s.k_pos, s.k_neg)
    decay = t.where(positive, s.lambda_pos, s.lambda_neg)
    return (k * log_w - decay * log_w.expm1()).exp()


_ALL = (gppo, clip_higher, grpo, cispo, dgpo, dppo_tv, gspo, sapo, vespo)
POLICY_LOSSES: dict[str, Callable[[Tokens, Any], Tensor]] = {loss.__name__: loss for loss in _ALL}
"""Each takes the settings of its name (`configs.settings.loss.LOSSES`)."""


def log_importance_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """log δ = log π − log π_old, detached, in float32 or better; at most `MAX_LOG_RATIO` either
    way, which acts on tokens that no clip range bounds: Ã < 0 with a large δ."""
    log_ratio = (logp - old_logp).detach()
    return _float32(log_ratio).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True)
class ImportanceBounds:
    """What is done about a sampler (vLLM) unlike the trainer, by ρ = π_old/π_sampler."""

    low: float = 1.0
    high: float = 1.0  # Bounds of ρ as the weight of a token: truncated importance sampling.
    mask: bool = False  # A token outside of them has no gradient: IcePop.
    drift: float = math.inf
    """An answer has no gradient where its mean log ρ is further from 0: a geometric mask."""


class ImportanceCorrection(NamedTuple):
    """All [B, T]."""

    weight: Tensor  # what F is multiplied with
    masked: Tensor  # bool: outside the range of a mask
    dropped: Tensor  # bool: of an answer that drifted


def importance_correction(
    old_logp: Tensor, sampling_logp: Tensor, answer: Tensor, mask: Tensor, bounds: ImportanceBounds
) -> ImportanceCorrection:
    """The weight of every token for its sampler's sake, detached; 1 where the log-probability that
    it was sampled with is NaN. `answer` [B, T] or [B, 1] numbers the answers from 0."""
    log_ratio = torch.nan_to_num((old_logp - sampling_logp).detach().float(), nan=0.0)
    ratio = log_ratio.exp()
    total, tokens = Answers(answer, mask, 1.0).sums(log_ratio)
    dropped = (total / tokens).abs() > bounds.drift
    masked = ((ratio < bounds.low) | (ratio > bounds.high)) & bounds.mask
    weight = ratio.clamp(bounds.low, bounds.high).masked_fill(masked | dropped, 0.0)
    return ImportanceCorrection(weight, masked, dropped)


def policy_weight(
    loss: AnyLoss, logp: Tensor, old_logp: Tensor, advantage: Tensor, answers: Answers | None = None
) -> Tensor:
    """F of Eq. 12 by one of `POLICY_LOSSES`, detached. Without `answers` every row is one.
    `dual_clip` = c gives tokens with Ã < 0 and δ > c no gradient (the authors' code, c = 10)."""
    if answers is None:
        rows, length = logp.shape
        number = torch.arange(rows, device=logp.device)[:, None]
        answers = Answers(number, torch.ones_like(logp, dtype=torch.bool), float(length))
    log_ratio = log_importance_ratio(logp, old_logp)
    ratio = log_ratio.exp()
    tokens = Tokens(log_ratio, ratio, advantage, _float32(old_logp.detach()), answers)
    weight = POLICY_LOSSES[loss.name](tokens, loss)
    if isinstance(loss, constants.DualClipped) and loss.dual_clip is not None:
        weight = weight.masked_fill((advantage < 0) & (ratio > loss.dual_clip), 0.0)
    return weight


class EntropyRatio(NamedTuple):
    """All [B, T] bool."""

    below: Tensor
    above: Tensor


def entropy_ratio(entropy: Tensor, old_entropy: Tensor, low: float, high: float) -> EntropyRatio:
    """Tokens at which the policy's entropy left that of the policy that sampled (ERC, arXiv
    2512.05591, as its authors' code has it): ρ = (H + 1e-8)/(H_old + 1e-8) outside of [low, high],
    H in nats over the whole vocabulary, detached. F of such a token is 0; Z still counts it."""
    now, then = (_float32(x.detach()) + LEAST_ENTROPY for x in (entropy, old_entropy))
    ratio = now / then
    return EntropyRatio(ratio < low, ratio > high)


def overlong_penalty(lengths: Tensor, longest: int, buffer: int) -> Tensor:
    """What an answer of so many tokens is paid beside its reward (soft overlong punishment, DAPO,
    arXiv 2503.14476, Eq. 13): 0 up to `longest` − `buffer`, from there linear to −1 at `longest`.
    """
    return ((longest - buffer - lengths.float()) / buffer).clamp(-1.0, 0.0)


def token_weight(
    policy_weight: Tensor, advantage: Tensor, positive: Tensor, mask: Tensor, *,
    policy_tokens: float, positive_tokens: float, lm_weight: float,
) -> Tensor:  # fmt: skip
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


def entropy_bonus(entropy: Tensor, mask: Tensor, *, policy_tokens: float, weight: float) -> Tensor:
    """c·Σ H_t/Z, a scalar that is taken off the loss; `entropy` [B, T] with its gradient."""
    return weight / max(policy_tokens, 1.0) * torch.where(mask, entropy, 0.0).sum()
