"""What one rollout step logs: sums over tokens and sequences, turned into means at the end."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.losses import Clip, importance_ratio, surrogate
from training.rollout import Rollout


class TokenStatistics:
    """Adds up token-level statistics of the updates of one rollout."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.extremes = [0.0, 0.0]  # lowest and highest log-ratio

    def add(
        self,
        *,
        logp: Tensor,
        old_logp: Tensor,
        entropy: Tensor | None,
        weight: Tensor,
        advantage: Tensor,
        mask: Tensor,
        clip: Clip,
    ) -> None:
        """One micro-batch; tensors [B, T], `advantage` [B, 1], `weight` is F of Eq. 12."""
        kept = mask.bool()
        ratio = importance_ratio(logp, old_logp)
        advantage = advantage.expand_as(ratio)
        values = {
            "tokens": torch.ones_like(ratio),
            "clip/high": clip.above(ratio, advantage),
            "clip/low": clip.below(ratio, advantage),
            "policy_weight": weight,
            "surrogate": surrogate(ratio, advantage, clip),
            "ratio": ratio,
        }
        if entropy is not None:
            values["entropy"] = entropy.detach()
        for name, value in values.items():
            self.sums[name] += float(value[kept].sum())
        if kept.any():
            log_ratio = (logp.detach() - old_logp)[kept]
            self.extremes[0] = min(self.extremes[0], float(log_ratio.min()))
            self.extremes[1] = max(self.extremes[1], float(log_ratio.max()))

    def means(
        self, total: Callable[[list[float]], list[float]], largest: Callable[[float], float]
    ) -> dict[str, float]:
        """Means per token over all processes (`total` and `largest` reduce); clears the sums."""
        names = sorted(self.sums)
        sums = dict(zip(names, total([self.sums[n] for n in names]) if names else [], strict=True))
        tokens = sums.pop("tokens", 0.0)
        means = {name: value / max(tokens, 1.0) for name, value in sums.items()}
        means["ratio/log_min"] = -largest(-self.extremes[0])
        means["ratio/log_max"] = largest(self.extremes[1])
        means["trained_tokens"] = tokens
        self.sums.clear()
        self.extremes = [0.0, 0.0]
        return means


@dataclass
class RolloutRecord:
    """One rollout as an observer sees it."""

    step: int
    inputs: list[dict[str, Any]]
    """The dataset row of each answer."""
    tokens: Rollout
    reward: Tensor
    """[B]; NaN: unscored."""
