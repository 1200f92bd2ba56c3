"""Group-relative advantages (Eq. 4), and which answers have one that is not zero."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

SAME_REWARD = 1e-6  # rewards closer than this are equal: rounding is no signal


class Advantages(NamedTuple):
    """All [N, G]: N groups (prompts) of G answers."""

    advantage: Tensor
    """Ã; 0 for every answer outside `mixed`."""
    scored: Tensor
    """bool: the answer has a reward, in a group with at least two of them."""
    mixed: Tensor
    """bool: scored, in a group whose rewards differ."""


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
