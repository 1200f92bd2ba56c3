"""What is trained together: sequences in batches of tokens, and prompts in rollouts. The paper
counts prompts, rollouts and tokens; TRL sequences on one device, and updates. Importable without
torch."""

import math
import random
from collections.abc import Iterable, Sequence
from functools import lru_cache

from ..configs.settings.training import RLSettings

POOL = 2_048  # sequences sorted by length at a time: like lengths meet, yet epochs differ


def length_groups(rows: Iterable[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """`rows` by length in groups of a padded size (sequences × the longest) within `budget`."""
    groups: list[list[int]] = []
    for i in sorted(rows, key=lambda i: lengths[i]):
        if not groups or (len(groups[-1]) + 1) * lengths[i] > budget:
            groups.append([])
        groups[-1].append(i)
    return groups


def epoch_batches(
    lengths: Sequence[int], budget: int, epochs: float, seed: int, multiple: int = 1
) -> list[list[int]]:
    """All batches of a training run: a pure function. Every epoch visits every sequence once, in
    its own order; the last may be a part. The first batches are repeated at the end up to a
    `multiple`."""
    batches: list[list[int]] = []
    for epoch in range(math.ceil(epochs)):
        rng = random.Random(f"{seed}:{epoch}")
        order = list(range(len(lengths)))
        rng.shuffle(order)
        order = order[: round(len(order) * min(1.0, epochs - epoch))]
        of_epoch: list[list[int]] = []
        for start in range(0, len(order), POOL):
            of_epoch += length_groups(order[start : start + POOL], lengths, budget)
        rng.shuffle(of_epoch)
        batches += of_epoch
    if not batches:
        raise ValueError(f"no batch: {len(lengths)} sequences over {epochs} epochs")
    return batches + [batches[i % len(batches)] for i in range(-len(batches) % multiple)]


def optimizer_steps(
    lengths: Sequence[int], batch_tokens: int, longest: int, epochs: float, seed: int
) -> list[list[int]]:
    """The sequences of every optimizer step, about `batch_tokens` of them padded: cells of at most
    `longest` tokens, each of like lengths, drawn in any order, whatever the machine."""
    cell = min(batch_tokens, longest)
    cells = max(1, round(batch_tokens / cell))
    batches = epoch_batches(lengths, cell, epochs, seed, multiple=cells)
    starts = range(0, len(batches), cells)
    return [[i for batch in batches[s : s + cells] for i in batch] for s in starts]


def cut_steps(
    steps: Sequence[list[int]], lengths: Sequence[int], budget: int, processes: int
) -> tuple[list[list[int]], int]:
    """(micro-batches of at most `budget` tokens, how many of them each process takes a step). All
    steps have the same number of micro-batches; an empty one has nothing to train on."""
    cut = [length_groups(step, lengths, budget) for step in steps]
    each = max(-(-len(batches) // processes) for batches in cut)

    def size(batch: list[int]) -> int:
        return len(batch) * max(lengths[i] for i in batch) if len(batch) > 1 else 0

    for batches in cut:
        while len(batches) < each * processes:  # the largest is halved; a single sequence is whole
            largest = max(batches, key=size)
            half = len(largest) // 2
            if half:
                batches.remove(largest)
            batches += [largest[:half], largest[half:]] if half else [[]]
    return [batch for batches in cut for batch in batches], each


@lru_cache(maxsize=8)
def epoch_order(prompts: int, epoch: int, seed: int, shuffle: bool = True) -> list[int]:
    """The prompts of an epoch, by (`seed`, epoch)."""
    order = list(range(prompts))
    if shuffle:
        random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def prompt_order(
    prompts: int, *, prompts_per_step: int, rollouts: int, updates: int, steps: int, seed: int,
    shuffle: bool = True,
) -> list[int]:  # fmt: skip
    """Which prompts each rollout step uses, in the shape TRL's generation batches expect. Epochs,
    each in its `epoch_order`, run on without a break. Each prompt is repeated `rollouts`
    times, each step `updates` times (TRL reads its batch at every update). One pass: resuming is
    skipping."""
    if prompts < 1:
        raise ValueError("there is no prompt to train on, within max_prompt_tokens")
    stream: list[int] = []
    for epoch in range(-(-steps * prompts_per_step // prompts)):
        stream += epoch_order(prompts, epoch, seed, shuffle)
    chosen: list[int] = []
    for start in range(0, steps * prompts_per_step, prompts_per_step):
        step = [i for i in stream[start : start + prompts_per_step] for _ in range(rollouts)]
        chosen += step * updates
    return chosen


def rl_schedule(s: RLSettings, world: int) -> dict[str, int]:
    """`s` on `world` processes as arguments of GRPOConfig: sequences of one update on one device
    (times `oversampling`); steps are updates, also those of the warm-up. Raises ValueError when the
    numbers do not divide."""
    updates = s.prompts_per_step // s.mini_batch_prompts
    prompts, rest = divmod(s.mini_batch_prompts, world)
    if rest:
        mistake = f"no multiple of processes = {world}"
        raise ValueError(f"mini_batch_prompts = {s.mini_batch_prompts} is {mistake}")
    return {
        "per_device_train_batch_size": prompts * s.rollouts_per_prompt * s.oversampling,
        "steps_per_generation": updates,  # optimizer updates of one rollout
        "num_generations": s.rollouts_per_prompt,
        "max_steps": s.steps * updates,
        "warmup_steps": s.warmup_steps * updates,
    }
