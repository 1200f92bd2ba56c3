"""Counts the tokens outside the clip range, and the gradient they carry, at every update.

The policy term of Eq. 12 has, with respect to the logits z_t that a token was drawn from, the
gradient

    ∂L/∂z_t = −F_t·Ã/Z · (e_{a_t} − softmax(z_t)),    ‖∂L/∂z_t‖₁ = 2·|F_t·Ã|·(1 − π_t)/Z

so the log-probability, the advantage and F give its length: no second pass through the model. Z is
common to an update and is left out, as is the language-model term.
"""

from pathlib import Path

import torch
from torch import Tensor

from eval.off_policy import CELLS, ENTROPY_EDGES, JOURNAL, OffPolicy, summed
from training.losses import Clip, importance_ratio
from training.progress_files import StepLines


def gradient_length(logp: Tensor, advantage: Tensor, weight: Tensor) -> Tensor:
    """2·|F·Ã|·(1 − π) per token, detached; shapes as in `training.losses`."""
    return 2 * (weight * advantage).abs() * -torch.expm1(logp.detach())


class UpdateCounts:
    """Tables of `eval.off_policy`, one an update of the present rollout, on this process."""

    def __init__(self) -> None:
        self._tables: dict[int, Tensor] = {}  # update → [2, CELLS]: tokens, gradient

    def add(
        self,
        update: int,
        logp: Tensor,
        old_logp: Tensor,
        entropy: Tensor,
        weight: Tensor,
        advantage: Tensor,
        mask: Tensor,
        clip: Clip,
    ) -> None:
        """One micro-batch of an update; tensors [b, answers], `weight` is F of Eq. 12.

        A token whose gradient is not finite is left out.
        """
        advantage = advantage.expand_as(logp)
        kept = mask.bool() & (advantage != 0)
        ratio = importance_ratio(logp, old_logp, clip.max_log_ratio)
        above, below = ratio > 1 + clip.eps_high, ratio < 1 - clip.eps_low
        side = 1 + above.long() - below.long()
        edges = torch.tensor(ENTROPY_EDGES, device=logp.device)
        bins = torch.bucketize(entropy.detach().float().contiguous(), edges, right=True)
        length = gradient_length(logp, advantage, weight)
        kept &= length.isfinite()  # the update is skipped, and one NaN would be that of every sum
        cell = (((advantage > 0).long() * 3 + side) * (len(ENTROPY_EDGES) + 1) + bins)[kept].cpu()
        length = length[kept].float().cpu()
        table = torch.stack(
            [
                torch.bincount(cell, minlength=CELLS).float(),
                torch.bincount(cell, length, minlength=CELLS).float(),
            ]
        )
        known = self._tables.get(update)
        self._tables[update] = table if known is None else known + table

    def flat(self, updates: int) -> list[float]:
        """The tables of so many updates, zeros where there was none; clears them."""
        empty = torch.zeros(2, CELLS)
        tables = [self._tables.get(i, empty) for i in range(updates)]
        self._tables = {}
        return torch.stack(tables).flatten().tolist() if tables else []

    def state(self) -> dict[str, list[float]]:
        """Everything that was added, as plain numbers."""
        return {str(update): table.flatten().tolist() for update, table in self._tables.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        """Go on from a `state`."""
        self._tables = {int(u): torch.tensor(flat).view(2, CELLS) for u, flat in state.items()}


def tables_of(flat: list[float]) -> list[OffPolicy]:
    """The tables of `UpdateCounts.flat`, summed over processes or not, by update."""
    halves = [flat[i : i + CELLS] for i in range(0, len(flat), CELLS)]
    return [OffPolicy.of_lists(*pair) for pair in zip(halves[::2], halves[1::2], strict=True)]


def headline(tables: list[OffPolicy]) -> dict[str, float]:
    """The figures of one rollout step; none where no token was counted."""
    whole = summed(tables)
    return whole.headline() if whole.tokens.any() else {}


class OffPolicyJournal(StepLines):
    """Appends every update of a rollout step to `out/logs/off_policy.jsonl`."""

    def __init__(self, out: Path, *, after_step: int = 0) -> None:
        super().__init__(out / JOURNAL, after_step=after_step)

    def add(self, step: int, tables: list[OffPolicy]) -> None:
        """One rollout step; an update without a counted token is left out."""
        for update, table in enumerate(tables):
            if table.tokens.any():
                self.write(
                    {
                        "step": step,
                        "update": update,
                        "tokens": table.tokens.flatten().tolist(),
                        "gradient": [float(f"{g:.6g}") for g in table.gradient.flatten()],
                    }
                )
