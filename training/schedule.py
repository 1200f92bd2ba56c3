"""The paper's numbers in the units of the trainers.

The paper counts prompts, rollouts and tokens; TRL counts sequences on one device and optimizer
updates. A combination that does not divide is refused, with the arithmetic shown.
"""

import os
from dataclasses import dataclass

from configs.training_stages import RLSettings


@dataclass(frozen=True)
class RLSchedule:
    """One RL stage in TRL's units (GRPOConfig's names)."""

    per_device_train_batch_size: int
    """Sequences of one optimizer update on one device, times `oversampling`."""
    gradient_accumulation_steps: int
    steps_per_generation: int
    """Calls of the trainer (not optimizer updates) between two rollouts."""
    generation_batch_size: int
    """Sequences generated for one rollout, over all devices: `oversampling` times those trained."""
    num_generations: int
    updates_per_rollout: int
    max_steps: int
    """Optimizer updates of the whole stage."""
    warmup_steps: int
    """Optimizer updates; the authors warm up over rollouts (80 and 40 updates, §4.1)."""


def world_size() -> int:
    """Training processes of this launch (torchrun and accelerate set WORLD_SIZE)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_sharded() -> bool:
    """Whether accelerate was told to spread the weights over the processes (FSDP or DeepSpeed)."""
    names = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    return any(os.environ.get(name, "").lower() in ("1", "true") for name in names)


def rl_schedule(s: RLSettings, world: int, sequences_per_device: int | None = None) -> RLSchedule:
    """`s` on `world` processes.

    With `sequences_per_device`, a mini-batch is cut into that many sequences a forward pass by
    gradient accumulation, as the stock trainer does it; without, each device takes its part of
    the mini-batch at once (GPPOTrainer cuts it by tokens itself).
    Raises ValueError when the numbers do not divide.
    """
    rollout = s.prompts_per_step * s.rollouts_per_prompt
    mini_batch = s.mini_batch_prompts * s.rollouts_per_prompt
    updates = _divide(s.prompts_per_step, s.mini_batch_prompts, "prompts a step", "mini-batch")
    part = _divide(s.mini_batch_prompts, world, "mini-batch prompts", "processes")
    device = part * s.rollouts_per_prompt
    micro = sequences_per_device or device
    accumulation = _divide(device, micro, f"{mini_batch} sequences / {world}", "micro-batch")
    return RLSchedule(
        per_device_train_batch_size=micro * s.oversampling,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=updates * accumulation,
        generation_batch_size=rollout * s.oversampling,
        num_generations=s.rollouts_per_prompt,
        updates_per_rollout=updates,
        max_steps=s.steps * updates,
        warmup_steps=s.warmup_steps * updates,
    )


def _divide(number: int, by: int, what: str, unit: str) -> int:
    if number % by:
        near = number - number % by or by
        raise ValueError(
            f"{what} = {number} is no multiple of {unit} = {by}: {number} = {number // by} × {by} "
            f"+ {number % by}; {near} and {number - number % by + by} would divide"
        )
    return number // by
