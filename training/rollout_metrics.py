"""What one rollout step logs: sums over tokens and sequences, turned into means at the end."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.advantages import Advantages
from training.losses import Clip, importance_ratio, surrogate
from training.off_policy import UpdateCounts
from training.rollout import MicroBatch, Rollout

Total = Callable[[list[float]], list[float]]
BINS = 40
RANGES = {
    "answer_tokens": (0.0, 1.0),  # in shares of the longest allowed
    "reward": (-2.0, 2.0),
    "advantage": (-3.0, 3.0),
    "log_ratio": (-1.0, 1.0),
    "entropy": (0.0, 4.0),
}
"""Lower and upper end of each histogram; what lies outside is counted in the outermost bin."""


class TokenStatistics:
    """Adds up statistics of one rollout and of the tokens of its updates."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.sums: dict[str, float] = defaultdict(float)
        self.counts: dict[str, Tensor] = {}
        self.extremes = [0.0, 0.0]  # lowest and highest log-ratio
        self.updates = UpdateCounts()

    def add(
        self,
        logp: Tensor,
        old_logp: Tensor,
        entropy: Tensor,
        weight: Tensor,
        micro: MicroBatch,
        clip: Clip,
    ) -> None:
        """One micro-batch; tensors [b, answers], `weight` is F of Eq. 12."""
        kept = micro.mask.bool()
        ratio = importance_ratio(logp, old_logp, clip.max_log_ratio)
        advantage = micro.advantage.expand_as(ratio)
        values = {
            "tokens": torch.ones_like(ratio),
            "clip/high": clip.above(ratio, advantage),
            "clip/low": clip.below(ratio, advantage),
            "policy_weight": weight,
            "surrogate": surrogate(ratio, advantage, clip),
            "ratio": ratio,
            "entropy": entropy.detach(),
        }
        for name, value in values.items():
            self.sums[name] += float(value[kept].sum())
        log_ratio = (logp.detach() - old_logp)[kept]
        self._count("log_ratio", log_ratio)
        self._count("entropy", entropy.detach()[kept])
        if kept.any():
            self.extremes[0] = min(self.extremes[0], float(log_ratio.min()))
            self.extremes[1] = max(self.extremes[1], float(log_ratio.max()))

    def add_mismatch(
        self, old_logp: Tensor, sampling_logp: Tensor, correction: Tensor | None, mask: Tensor
    ) -> None:
        """How far the sampler is from the trainer, and the mean weight that corrects for it."""
        difference = torch.nan_to_num((old_logp - sampling_logp).abs()[mask])
        self.sums["mismatch/logp_difference"] += float(difference.sum())
        if correction is not None:
            self.sums["mismatch/weight"] += float(correction[mask].sum())

    def add_rollout(self, rollout: Rollout, reward: Tensor) -> None:
        """Answers of one rollout on this process; `reward` [B], NaN where unscored."""
        rows = range(len(rollout.tokens))
        lengths = torch.tensor([rollout.answer_length(i) / self.longest for i in rows])
        self._count("answer_tokens", lengths)
        self._count("reward", reward[reward.isfinite()])
        self._count("advantage", rollout.advantage[rollout.keep])

    def _count(self, name: str, values: Tensor) -> None:
        low, high = RANGES[name]
        counts = torch.histc(values.float().clamp(low, high).cpu(), BINS, low, high)
        self.counts[name] = self.counts[name] + counts if name in self.counts else counts

    def means(self, total: Total, largest: Callable[[float], float]) -> dict[str, float]:
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

    def histograms(self, total: Total) -> dict[str, list[float]]:
        """Counts of every histogram of `RANGES` over all processes; clears them."""
        empty = torch.zeros(BINS)
        found = {name: total(self.counts.get(name, empty).tolist()) for name in RANGES}
        self.counts = {}
        return found

    def state(self) -> dict[str, dict[str, list[float]]]:
        """Everything that was added, as plain numbers."""
        return {
            "sums": {name: [value] for name, value in self.sums.items()},
            "counts": {name: value.tolist() for name, value in self.counts.items()},
            "extremes": {"both": self.extremes},
            "updates": self.updates.state(),
        }

    def restore(self, state: dict[str, dict[str, list[float]]]) -> None:
        """Go on from a `state`."""
        self.sums.update({name: value for name, (value,) in state["sums"].items()})
        self.counts = {name: torch.tensor(value) for name, value in state["counts"].items()}
        self.extremes = state["extremes"]["both"]
        self.updates.restore(state.get("updates", {}))


@dataclass
class RolloutRecord:
    """One rollout as an observer sees it."""

    step: int
    inputs: list[dict[str, Any]]
    """The dataset row of each answer."""
    tokens: Rollout
    reward: Tensor
    """[B]; NaN: unscored."""


def rollout_metrics(
    rewards: Tensor,
    found: Advantages,
    rollout: Rollout,
    *,
    overlong: Tensor,
    positive_reward: float,
    seconds: float,
    total: Total,
) -> dict[str, float]:
    """Shares and speeds of one rollout; `rewards` and `overlong` [N, G] are of all processes.

    Shares are of what was scored (answers, groups); 0 where nothing was. `reward/std` is the
    population's, over the scored answers of all processes, which no mean of theirs would be.
    """
    known = rewards.isfinite()
    groups, live = found.scored.any(1).sum().item(), found.live.any(1).sum().item()
    positive = (known & (rewards >= positive_reward)).sum().item()
    lengths = [rollout.answer_length(i) for i in range(len(rollout.tokens))]
    (tokens,) = total([float(sum(lengths))])
    spread = {"reward/std": rewards[known].std(correction=0).item()} if known.any() else {}
    return {
        **spread,
        "zero_advantage_share": (groups - live) / max(groups, 1),
        "unscored": float((~known).sum()),
        "overlong": float(overlong.sum()),
        "positive_share": positive / max(known.sum().item(), 1),
        "seconds/generate_and_score": seconds,
        "tokens_per_second": tokens / max(seconds, 1e-9),
    }
