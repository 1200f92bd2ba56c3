"""Batches of tokens, not padding: sequences of like length together, under a token budget."""

import random
from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

POOL = 2_048  # sequences sorted by length at a time: like lengths meet, yet epochs differ


def length_groups(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut indices, sorted by length, into groups whose padded size stays within `budget`.

    The padded size of a group is its number of sequences times its longest. A sequence longer
    than `budget` is alone in its group.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not groups or (len(groups[-1]) + 1) * lengths[i] > budget:
            groups.append([])
        groups[-1].append(i)
    return groups


def epoch_batches(
    lengths: Sequence[int], budget: int, epochs: float, seed: int, multiple: int = 1
) -> list[list[int]]:
    """All batches of a whole training run: a pure function of its arguments.

    Every epoch visits every sequence once, in an order of its own; the last epoch may be a part.
    The number of batches is a multiple of `multiple`: the first batches are repeated at the end
    if it must be.
    """
    batches: list[list[int]] = []
    epoch = 0
    while epoch < epochs:
        rng = random.Random(f"{seed}:{epoch}")
        order = list(range(len(lengths)))
        rng.shuffle(order)
        order = order[: round(len(order) * min(1.0, epochs - epoch))]
        of_epoch: list[list[int]] = []
        for start in range(0, len(order), POOL):
            pool = order[start : start + POOL]
            groups = length_groups([lengths[i] for i in pool], budget)
            of_epoch += [[pool[i] for i in group] for group in groups]
        rng.shuffle(of_epoch)
        batches += of_epoch
        epoch += 1
    if not batches:
        raise ValueError(f"no batch: {len(lengths)} sequences over {epochs} epochs")
    missing = -len(batches) % multiple
    return batches + [batches[i % len(batches)] for i in range(missing)]


def optimizer_steps(
    lengths: Sequence[int], batch_tokens: int, longest: int, epochs: float, seed: int
) -> list[list[int]]:
    """The sequences of every optimizer step, about `batch_tokens` of them padded.

    A step takes whole cells of at most `longest` tokens, each of like lengths, drawn in any order:
    steps mix short and long, and what is in them depends on no machine.
    """
    cell = min(batch_tokens, longest)
    cells = max(1, round(batch_tokens / cell))
    batches = epoch_batches(lengths, cell, epochs, seed, multiple=cells)
    starts = range(0, len(batches), cells)
    return [[i for batch in batches[s : s + cells] for i in batch] for s in starts]


def cut_steps(
    steps: Sequence[list[int]], lengths: Sequence[int], budget: int, processes: int
) -> tuple[list[list[int]], int]:
    """(micro-batches of at most `budget` tokens, how many of them each process takes a step).

    All steps have the same number of micro-batches; an empty one has nothing to train on.
    """
    cut = [_like_lengths(step, lengths, budget) for step in steps]
    each = max(-(-len(batches) // processes) for batches in cut)
    for batches in cut:
        _split_until(each * processes, batches, lengths)
    return [batch for batches in cut for batch in batches], each


def _like_lengths(step: list[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    groups = length_groups([lengths[i] for i in step], budget)
    return [[step[j] for j in group] for group in groups]


def _split_until(count: int, batches: list[list[int]], lengths: Sequence[int]) -> None:
    """Halve the largest batches until there are `count`; single sequences leave empty ones."""

    def size(batch: list[int]) -> int:
        return len(batch) * max(lengths[i] for i in batch) if len(batch) > 1 else 0

    while len(batches) < count:
        largest = max(batches, key=size)
        if len(largest) < 2:
            batches += [[] for _ in range(count - len(batches))]
            return
        batches.remove(largest)
        half = len(largest) // 2
        batches += [largest[:half], largest[half:]]


class PlannedBatches(Sampler[list[int]]):
    """A batch sampler over a fixed plan, so that resuming is skipping.

    `filler` is the row that stands in for an empty batch.
    """

    def __init__(self, plan: Sequence[list[int]], filler: int) -> None:
        self.plan, self.filler = plan, filler

    def __iter__(self) -> Iterator[list[int]]:
        return (batch or [self.filler] for batch in self.plan)

    def __len__(self) -> int:
        return len(self.plan)


class PromptOrder(Sampler[int]):
    """Which prompts each rollout step uses, in the shape TRL's generation batches expect.

    Epochs over the prompts are shuffled by (`seed`, epoch) and run on without a break, so every
    step has `prompts_per_step` prompts and no prompt waits for more than one epoch. Each prompt
    is repeated `rollouts` times, and each step `updates` times (TRL reads the batch of a rollout
    once for every optimizer update). The whole run is one pass, hence resuming is skipping.
    """

    def __init__(
        self,
        prompts: int,
        *,
        prompts_per_step: int,
        rollouts: int,
        updates: int,
        steps: int,
        seed: int,
    ) -> None:
        if prompts < 1:
            raise ValueError("there is no prompt to train on")
        self.prompts, self.prompts_per_step = prompts, prompts_per_step
        self.rollouts, self.updates = rollouts, updates
        self.steps, self.seed = steps, seed

    def _stream(self) -> Iterator[int]:
        epoch = 0
        while True:
            order = list(range(self.prompts))
            random.Random(f"{self.seed}:{epoch}").shuffle(order)
            yield from order
            epoch += 1

    def __iter__(self) -> Iterator[int]:
        stream = self._stream()
        for _ in range(self.steps):
            step = [i for _ in range(self.prompts_per_step) for i in [next(stream)] * self.rollouts]
            for _ in range(self.updates):
                yield from step

    def __len__(self) -> int:
        return self.steps * self.updates * self.prompts_per_step * self.rollouts
