"""What one rollout step logs: sums over tokens and sequences, turned into means at the end.

Tokens outside the clip range are counted at every update with the gradient that they carry. The
policy term of Eq. 12 has, with respect to the logits z_t that a token was drawn from, the gradient

    ∂L/∂z_t = −F_t·Ã/Z · (e_{a_t} − softmax(z_t)),    ‖∂L/∂z_t‖₁ = 2·|F_t·Ã|·(1 − π_t)/Z

so the log-probability, the advantage and F give its length: no second pass through the model. Z is
common to an update and is left out, as are the language-model term and the entropy bonus.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...configs.settings.loss import AnyLoss
from ..losses import (
    Advantages,
    EntropyRatio,
    ImportanceCorrection,
    clipped_tokens,
    log_importance_ratio,
)
from .off_policy_counts import CELLS, ENTROPY_EDGES, SHAPE, Table
from .rollout import MicroBatch, Processes, Rollout


@dataclass
class RolloutRecord:
    """One rollout as an observer sees it. Tensors [N, G] are of all processes, by group."""

    step: int  # from 0
    inputs: list[dict[str, Any]]  # the dataset row of each answer of this process
    rollout: Rollout  # of this process
    rewards: Tensor  # [N, G]; NaN: unscored
    overlong: Tensor  # [N, G] bool: left out because it was cut at the length limit
    lengths: Tensor  # [N, G]: tokens of the answers
    advantages: Advantages
    seconds: float

    def metrics(self) -> dict[str, float]:
        """Shares of what was scored (else 0), and speeds; `reward/std` is of all processes."""
        scored = self.rewards[self.rewards.isfinite()]
        kinds = self.advantages.scored, self.advantages.mixed
        groups, mixed = (int(kind.any(1).sum()) for kind in kinds)
        spread = {"reward/std": scored.std(correction=0).item()} if len(scored) else {}
        return {
            **spread,
            "zero_advantage_share": (groups - mixed) / max(groups, 1),
            "unscored": float(self.rewards.numel() - len(scored)),
            "overlong": float(self.overlong.sum()),
            "seconds/generate_and_score": self.seconds,
            "tokens_per_second": float(self.lengths.sum()) / max(self.seconds, 1e-9),
        }


def gradient_length(logp: Tensor, advantage: Tensor, weight: Tensor) -> Tensor:
    """2·|F·Ã|·(1 − π) per token, detached; shapes as in `training.losses`."""
    return 2 * (weight * advantage).abs() * -torch.expm1(logp.detach())


class TokenStatistics:
    """Adds up statistics of the tokens of the updates of one rollout, on this process."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.extremes = [0.0, 0.0]  # lowest and highest log-ratio
        self.off_policy: dict[int, Tensor] = {}  # update → [2, CELLS]: tokens, gradient

    def add(
        self, update: int, micro: MicroBatch, logp: Tensor, old_logp: Tensor, entropy: Tensor,
        weight: Tensor, correction: ImportanceCorrection | None, loss: AnyLoss,
        erc: EntropyRatio | None = None,
    ) -> None:  # fmt: skip
        """One micro-batch; tensors [b, answers]; `weight`: F of Eq. 12, before its `correction`."""
        kept = micro.mask
        logp, entropy = logp.detach(), entropy.detach()
        ratio = log_importance_ratio(logp, old_logp).exp()
        advantage = micro.advantage.expand_as(ratio)
        above, below = clipped_tokens(ratio, advantage, loss)
        values = {"tokens": torch.ones_like(ratio), "clip/high": above, "clip/low": below}
        values |= {"policy_weight": weight, "ratio": ratio, "entropy": entropy}
        if micro.sampling_logp is not None:
            difference = (old_logp - micro.sampling_logp).abs()
            values["mismatch/logp_difference"] = torch.nan_to_num(difference)
        for side, masked in erc._asdict().items() if erc else ():
            values[f"erc/{side}_positive"] = masked & (advantage > 0)
            values[f"erc/{side}_negative"] = masked & (advantage < 0)
        if correction is not None:
            values |= {f"mismatch/{n}": value for n, value in correction._asdict().items()}
            weight = weight * correction.weight
        for name, value in values.items():
            self.sums[name] += float(value[kept].sum())
        if kept.any():
            low, high = (logp - old_logp)[kept].aminmax()
            self.extremes = [min(self.extremes[0], float(low)), max(self.extremes[1], float(high))]
        length = gradient_length(logp, advantage, weight)
        kept = kept & (advantage != 0)
        table = _off_policy_table(ratio, advantage, entropy, length, kept, loss)
        self.off_policy[update] = self.off_policy.get(update, 0) + table

    def means(self, processes: Processes) -> dict[str, float]:
        """Means per token over all processes; clears the sums."""
        names = sorted(self.sums)
        totals = processes.total([self.sums[n] for n in names]) if names else []
        sums = dict(zip(names, totals, strict=True))
        tokens = sums.pop("tokens", 0.0)
        means = {name: value / max(tokens, 1.0) for name, value in sums.items()}
        means["ratio/log_min"] = min(processes.each(self.extremes[0]))
        means["ratio/log_max"] = max(processes.each(self.extremes[1]))
        self.sums.clear()
        self.extremes = [0.0, 0.0]
        return {**means, "trained_tokens": tokens}

    def off_policy_tables(self, updates: int, processes: Processes) -> list[Table]:
        """A table for each of so many updates, over all processes; clears them."""
        empty = torch.zeros(2, CELLS)
        tables = torch.stack([self.off_policy.get(i, empty) for i in range(updates)])
        self.off_policy = {}
        return [*np.reshape(processes.total(tables.flatten().tolist()), (updates, *SHAPE))]


def _off_policy_table(
    ratio: Tensor, advantage: Tensor, entropy: Tensor, length: Tensor, kept: Tensor, loss: AnyLoss
) -> Tensor:
    """[2, CELLS]: tokens and their gradient by sign of Ã, side of the clip range and entropy."""
    low, high = loss.clip_range
    side = 1 + (ratio > high).long() - (ratio < low).long()
    edges = torch.tensor(ENTROPY_EDGES, device=ratio.device)
    bins = torch.bucketize(entropy.float().contiguous(), edges, right=True)
    kept = kept & length.isfinite()  # the update is skipped, and one NaN would be that of every sum
    cell = (((advantage > 0).long() * 3 + side) * (len(ENTROPY_EDGES) + 1) + bins)[kept].cpu()
    length = length[kept].float().cpu()
    sums = (torch.bincount(cell, weights, CELLS).float() for weights in (None, length))
    return torch.stack(list(sums))
