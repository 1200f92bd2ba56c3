"""From a rollout to optimizer updates: whole groups, cut into micro-batches of tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from ..packing import length_groups
from .config import GPPOConfig


class Processes:
    """What the processes of a run know together; all of them call every method but `local`."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.rank, self.size = accelerator.process_index, accelerator.num_processes
        self._accelerator: Any = accelerator

    def total(self, values: list[float]) -> list[float]:
        tensor = torch.tensor(values, device=self._accelerator.device)
        return self._accelerator.reduce(tensor, reduction="sum").tolist()

    def each(self, value: Any) -> list[Any]:
        """The number `value` of every process, by rank."""
        return self.gathered(torch.tensor([value], device=self._accelerator.device)).tolist()

    def gathered(self, local: Tensor) -> Tensor:
        """[B] of every process as [B × processes], by rank."""
        return self._accelerator.gather(local)

    def objects(self, values: list[Any]) -> list[Any]:
        """The values of every process, by rank."""
        return gather_object(values)

    def local(self, grouped: Tensor) -> Tensor:
        """This process's part of a tensor over all processes, flattened to [B]."""
        return grouped.reshape(self.size, -1)[self.rank]


@dataclass
class Rollout:
    """The answers of this process, one row a sequence, and what the loss needs of them."""

    tokens: list[Tensor]  # prompt and answer, [T_i], no padding
    prompt_length: list[int]
    advantage: Tensor  # [B]
    positive: Tensor  # [B] bool: correct answers, Φ of Eq. 13
    keep: Tensor  # [B] bool: forwarded and counted; the others left before any compute
    sampling_logp: list[Tensor] | None = None
    """The sampler's log-probabilities of the answer tokens, where it reported them."""

    def answer_length(self, i: int) -> int:
        return len(self.tokens[i]) - self.prompt_length[i]

    @classmethod
    def of_padded(
        cls, batch: dict[str, Tensor], advantage: Tensor, positive: Tensor, keep: Tensor
    ) -> "Rollout":
        """From TRL's padded tensors: prompts [B, P] (left), completions [B, C] (right)."""
        prompts, answers = batch["prompt_mask"].bool(), batch["completion_mask"].bool()
        columns = batch["prompt_ids"], prompts, batch["completion_ids"], answers
        rows = zip(*columns, strict=True)
        tokens = [torch.cat([prompt[real], answer[kept]]) for prompt, real, answer, kept in rows]
        sampled = batch.get("sampling_per_token_logps")
        if sampled is not None:
            sampled = [row[kept] for row, kept in zip(sampled, answers, strict=True)]
        return cls(tokens, prompts.sum(1).tolist(), advantage, positive, keep, sampled)


@dataclass
class MicroBatch:
    """One forward pass. Padded: b sequences of like length [b, T], right-padded to the longest.
    Packed: b = 1, the sequences one after another, told apart by `position_ids`."""

    input_ids: Tensor
    answers: int  # the last `answers` columns hold every answer token of the batch
    mask: Tensor  # [b, answers] bool: answer tokens; none: it keeps this process in step
    advantage: Tensor  # [b, 1]; packed: [1, answers]
    positive: Tensor  # as `advantage`
    answer: Tensor  # as `advantage`: the answers by number, from 0
    old_logp: Tensor | None = None  # [b, answers]; None: the policy is still that of the rollout
    old_entropy: Tensor | None = None  # likewise, where the loss is masked by it
    position_ids: Tensor | None = None  # [1, T] of a packed batch, from 0 in every sequence
    sampling_logp: Tensor | None = None  # [b, answers]

    @property
    def labels(self) -> Tensor:
        """[b, T]: the tokens to score, −100 on prompts and padding."""
        labels = torch.full_like(self.input_ids, -100)
        answers = slice(self.input_ids.shape[1] - self.answers, None)
        labels[:, answers] = torch.where(self.mask, self.input_ids[:, answers], -100)
        return labels


@dataclass
class Update:
    """One optimizer update: micro-batches and the normalisers of the whole mini-batch."""

    micro_batches: list[MicroBatch]
    policy_tokens: float
    positive_tokens: float
    answers: float


def drop_surplus(rollout: Rollout, processes: Processes, args: GPPOConfig) -> None:
    """Keep no more groups than the updates of a rollout take; the largest stocks are cut first."""
    groups = _kept_groups(rollout, args)
    most = args.mini_batch_groups * args.updates_a_pass
    quota = fair_quotas(processes.each(len(groups)), most)[processes.rank]
    rollout.keep = rollout.keep.clone()  # it may be a view of all processes' own
    rollout.keep[[i for group in groups[quota:] for i in group]] = False


def _kept_groups(rollout: Rollout, args: GPPOConfig) -> list[list[int]]:
    size = args.num_generations or 1
    starts = range(0, len(rollout.tokens), size)
    groups = [[i for i in range(s, s + size) if rollout.keep[i]] for s in starts]
    return [g for g in groups if g]


def plan_updates(
    rollout: Rollout, rng: random.Random, processes: Processes, args: GPPOConfig,
    packed: bool = False,
) -> list[Update]:  # fmt: skip
    """The kept groups, shuffled, in at most `args.updates` mini-batches of
    `args.mini_batch_groups` groups; where fewer survive there are fewer updates, not smaller ones,
    as in the authors' code. A micro-batch has at most `args.micro_batch_tokens`, padding included.
    All processes plan as many, and every pass of `args.num_iterations` is the same."""
    groups = _kept_groups(rollout, args)
    survivors = sum(processes.each(len(groups)))
    if not survivors:
        return []
    rng.shuffle(groups)
    updates = min(args.updates_a_pass, max(1, round(survivors / args.mini_batch_groups)))
    plan, lengths = [], list(map(len, rollout.tokens))
    for number in range(updates):
        rows = [i for group in groups[number::updates] for i in group]
        cut = length_groups(rows, lengths, args.micro_batch_tokens)
        batches = [_micro_batch(rollout, group, packed) for group in cut]
        for _ in range(max(processes.each(len(batches))) - len(batches)):
            idle = _micro_batch(rollout, [lengths.index(min(lengths))], packed)
            batches.append(replace(idle, mask=torch.zeros_like(idle.mask)))
        tokens = [float(rollout.answer_length(i)) for i in rows]
        positive = [t for t, i in zip(tokens, rows, strict=True) if rollout.positive[i]]
        totals = processes.total([sum(tokens), sum(positive), float(len(rows))])
        plan.append(Update(batches, *totals))
    return plan * args.num_iterations


def fair_quotas(counts: Sequence[int], most: int) -> list[int]:
    """How many groups each process keeps: `most` in all, the largest stocks cut first."""
    quotas = list(counts)
    for _ in range(sum(quotas) - most):
        quotas[max(range(len(quotas)), key=lambda p: (quotas[p], p))] -= 1
    return quotas


def _micro_batch(rollout: Rollout, rows: list[int], packed: bool) -> MicroBatch:
    tokens = [rollout.tokens[i] for i in rows]
    lengths = [rollout.prompt_length[i] for i in rows]
    device, positions = tokens[0].device, None
    prompt, index = torch.tensor(lengths, device=device), torch.tensor(rows, device=device)
    if packed:
        ids, first = torch.cat(tokens)[None], lengths[0]
        answer = torch.cat([torch.full_like(t, n) for n, t in enumerate(tokens)])[None, first:]
        positions = torch.cat([torch.arange(len(t), device=device) for t in tokens])[None]
        mask = positions[:, first:] >= prompt[answer]
    else:
        ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        first = min(lengths)
        answer = torch.arange(len(rows), device=device)[:, None]
        position = torch.arange(first, ids.shape[1], device=device)
        end = torch.tensor([len(t) for t in tokens], device=device)
        mask = (position >= prompt[:, None]) & (position < end[:, None])
    advantage, positive = rollout.advantage[index[answer]], rollout.positive[index[answer]]
    sampled = None
    if rollout.sampling_logp is not None:
        logps = torch.cat([rollout.sampling_logp[i] for i in rows]).float()
        sampled = torch.zeros(mask.shape, device=logps.device).masked_scatter(mask, logps)
    more = {"position_ids": positions, "sampling_logp": sampled}
    return MicroBatch(ids, ids.shape[1] - first, mask, advantage, positive, answer, **more)
