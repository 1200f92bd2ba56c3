"""A rollout on its way into optimizer updates: no padding, no dead group is ever forwarded."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from training.batching import length_groups


@dataclass
class Rollout:
    """The answers of this process, one row a sequence, and what the loss needs of them."""

    tokens: list[Tensor]
    """Prompt and answer, [T_i], no padding."""
    prompt_length: list[int]
    advantage: Tensor
    """[B]"""
    positive: Tensor
    """[B] bool: correct answers, Φ of Eq. 13."""
    keep: Tensor
    """[B] bool: forwarded and counted; the others left before any compute."""

    def answer_length(self, i: int) -> int:
        return len(self.tokens[i]) - self.prompt_length[i]

    @staticmethod
    def of_padded(
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        advantage: Tensor,
        positive: Tensor,
        keep: Tensor,
    ) -> "Rollout":
        """From TRL's padded tensors: prompts [B, P] (left), completions [B, C] (right)."""
        rows = zip(prompt_ids, prompt_mask.bool(), completion_ids, completion_mask.bool(),
                   strict=True)  # fmt: skip
        tokens, lengths = [], []
        for prompt, prompt_kept, answer, answer_kept in rows:
            tokens.append(torch.cat([prompt[prompt_kept], answer[answer_kept]]))
            lengths.append(int(prompt_kept.sum()))
        return Rollout(tokens, lengths, advantage, positive, keep)


@dataclass
class MicroBatch:
    """Sequences of like length, right-padded to the longest; [b, T] unless said otherwise."""

    input_ids: Tensor
    answers: int
    """The last `answers` columns hold every answer token of the batch."""
    mask: Tensor
    """[b, answers] bool: answer tokens."""
    advantage: Tensor
    """[b, 1]"""
    positive: Tensor
    """[b]"""
    share: float = 1.0
    """0 for a batch that only keeps this process in step with the others."""
    old_logp: Tensor | None = None
    """[b, answers]; None while the policy has not moved since the rollout."""


@dataclass
class Update:
    """One optimizer update: micro-batches and the normalisers of the whole mini-batch."""

    micro_batches: list[MicroBatch]
    policy_tokens: float
    positive_tokens: float


def plan_updates(
    rollout: Rollout,
    *,
    group_size: int,
    mini_batch_groups: float,
    most_updates: int,
    budget: int,
    pad_id: int,
    rng: random.Random,
    total: Callable[[list[float]], list[float]],
    largest: Callable[[float], float],
) -> list[Update]:
    """Whole groups, shuffled, into mini-batches of about `mini_batch_groups` groups.

    When groups were dropped there are fewer updates, not smaller ones, as in the authors' code.
    `total` and `largest` reduce over processes; every process plans the same number of updates
    and of micro-batches.
    """
    starts = range(0, len(rollout.tokens), group_size)
    groups = [[i for i in range(s, s + group_size) if rollout.keep[i]] for s in starts]
    groups = [g for g in groups if g]
    rng.shuffle(groups)
    (survivors,) = total([float(len(groups))])
    if not survivors:
        return []
    updates = min(most_updates, max(1, round(survivors / mini_batch_groups)))
    planned = []
    for u in range(updates):
        rows = [i for group in groups[u::updates] for i in group]
        planned.append(_update(rollout, rows, budget, pad_id, total, largest))
    return planned


def _update(
    rollout: Rollout,
    rows: list[int],
    budget: int,
    pad_id: int,
    total: Callable[[list[float]], list[float]],
    largest: Callable[[float], float],
) -> Update:
    lengths = [len(rollout.tokens[i]) for i in rows]
    cut = [[rows[j] for j in group] for group in length_groups(lengths, budget)]
    batches = [_micro_batch(rollout, group, pad_id) for group in cut]
    for _ in range(int(largest(len(batches))) - len(batches)):
        shortest = min(range(len(rollout.tokens)), key=lambda i: len(rollout.tokens[i]))
        batches.append(_micro_batch(rollout, [shortest], pad_id, share=0.0))
    tokens = [float(rollout.answer_length(i)) for i in rows]
    positive = [t for t, i in zip(tokens, rows, strict=True) if rollout.positive[i]]
    policy_tokens, positive_tokens = total([sum(tokens), sum(positive)])
    return Update(batches, policy_tokens, positive_tokens)


def _micro_batch(rollout: Rollout, rows: list[int], pad_id: int, share: float = 1.0) -> MicroBatch:
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
    )
