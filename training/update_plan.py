"""From a rollout to optimizer updates: whole groups, cut into micro-batches of tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.batching import length_groups
from training.processes import Processes
from training.rollout import MicroBatch, Rollout, Update


@dataclass(frozen=True)
class PlanUnits:
    """How a rollout is cut. Counts of groups are over all processes."""

    group_size: int
    mini_batch_groups: int
    most_updates: int
    budget: int
    """Tokens of one forward pass, padding included."""
    pad_id: int
    packed: bool = False

    @property
    def most_groups(self) -> int:
        """Survivors beyond this many are left out (oversampling generates more than it trains)."""
        return self.mini_batch_groups * self.most_updates


def plan_updates(
    rollout: Rollout, units: PlanUnits, rng: random.Random, processes: Processes
) -> list[Update]:
    """The surviving groups, shuffled, in mini-batches of about `mini_batch_groups` groups.

    When groups were dropped there are fewer updates, not smaller ones, as in the authors' code.
    Every process plans the same number of updates and of micro-batches.
    """
    starts = range(0, len(rollout.tokens), units.group_size)
    groups = [[i for i in range(s, s + units.group_size) if rollout.keep[i]] for s in starts]
    groups = [g for g in groups if g]
    quotas = fair_quotas(processes.counts(len(groups)), units.most_groups)
    survivors = sum(quotas)
    if not survivors:
        return []
    groups = groups[: quotas[processes.rank]]
    rng.shuffle(groups)
    updates = min(units.most_updates, max(1, round(survivors / units.mini_batch_groups)))
    return [
        _update(rollout, [i for group in groups[u::updates] for i in group], units, processes)
        for u in range(updates)
    ]


def fair_quotas(counts: Sequence[int], most: int) -> list[int]:
    """How many groups each process keeps: `most` in all, the largest stocks cut first."""
    quotas = list(counts)
    for _ in range(sum(quotas) - most):
        quotas[max(range(len(quotas)), key=lambda p: (quotas[p], p))] -= 1
    return quotas


def _update(rollout: Rollout, rows: list[int], units: PlanUnits, processes: Processes) -> Update:
    lengths = [len(rollout.tokens[i]) for i in rows]
    cut = [[rows[j] for j in group] for group in length_groups(lengths, units.budget)]
    make = _packed if units.packed else _padded
    batches = [make(rollout, group, units.pad_id, 1.0) for group in cut]
    for _ in range(int(processes.largest(len(batches))) - len(batches)):
        shortest = min(range(len(rollout.tokens)), key=lambda i: len(rollout.tokens[i]))
        batches.append(make(rollout, [shortest], units.pad_id, 0.0))
    tokens = [float(rollout.answer_length(i)) for i in rows]
    positive = [t for t, i in zip(tokens, rows, strict=True) if rollout.positive[i]]
    policy_tokens, positive_tokens = processes.total([sum(tokens), sum(positive)])
    return Update(batches, policy_tokens, positive_tokens)


def _padded(rollout: Rollout, rows: list[int], pad_id: int, share: float) -> MicroBatch:
    tokens = [rollout.tokens[i] for i in rows]
    ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=pad_id)
    first = min(rollout.prompt_length[i] for i in rows)
    position = torch.arange(first, ids.shape[1], device=ids.device)
    prompt = torch.tensor([rollout.prompt_length[i] for i in rows], device=ids.device)
    end = torch.tensor([len(t) for t in tokens], device=ids.device)
    mask = (position >= prompt[:, None]) & (position < end[:, None])
    index = torch.tensor(rows, device=rollout.advantage.device)
    return MicroBatch(
        input_ids=ids,
        answers=ids.shape[1] - first,
        mask=mask & (share > 0),
        advantage=rollout.advantage[index, None],
        positive=rollout.positive[index],
        share=share,
        sampling_logp=_scattered(rollout, rows, mask),
    )


def _packed(rollout: Rollout, rows: list[int], pad_id: int, share: float) -> MicroBatch:
    tokens = [rollout.tokens[i] for i in rows]
    device = tokens[0].device
    first = rollout.prompt_length[rows[0]]
    row_of = torch.cat([torch.full_like(t, n) for n, t in enumerate(tokens)])[first:]
    position = torch.cat([torch.arange(len(t), device=device) for t in tokens])
    prompt = torch.tensor([rollout.prompt_length[i] for i in rows], device=device)
    mask = (position[first:] >= prompt[row_of])[None]
    index = torch.tensor(rows, device=rollout.advantage.device)[row_of.to(rollout.advantage.device)]
    return MicroBatch(
        input_ids=torch.cat(tokens)[None],
        answers=len(row_of),
        mask=mask & (share > 0),
        advantage=rollout.advantage[index][None],
        positive=rollout.positive[index][None],
        share=share,
        position_ids=position[None],
        sampling_logp=_scattered(rollout, rows, mask),
    )


def _scattered(rollout: Rollout, rows: list[int], mask: Tensor) -> Tensor | None:
    """The sampler's log-probabilities at the places of `mask`, in the order of `rows`."""
    if rollout.sampling_logp is None:
        return None
    known = torch.cat([rollout.sampling_logp[i] for i in rows])
    return torch.zeros(mask.shape, device=known.device).masked_scatter(mask, known.float())
