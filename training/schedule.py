"""The paper's numbers in the units of the trainers.

The paper counts prompts, rollouts and tokens; TRL counts sequences on one device and optimizer
updates. A combination that does not divide is refused, with the arithmetic shown.
"""

import os
from dataclasses import dataclass

from configs.settings.training import RLSettings


@dataclass(frozen=True)
class RLSchedule:
    """One RL stage in TRL's units; fields are named as those of GRPOConfig."""

    per_device_train_batch_size: int
    """Sequences of one optimizer update on one device, times `oversampling`."""
    steps_per_generation: int
    """Optimizer updates of one rollout."""
    num_generations: int
    max_steps: int
    """Optimizer updates of the whole stage."""
    warmup_steps: int
    """Optimizer updates; the authors warm up over rollouts (80 and 40 updates, §4.1)."""


def world_size() -> int:
    """Training processes of this launch (torchrun and accelerate set WORLD_SIZE)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_sharded() -> bool:
    """Whether accelerate was told to spread the weights over the processes."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def rl_schedule(s: RLSettings, world: int) -> RLSchedule:
    """`s` on `world` processes; raises ValueError when the numbers do not divide."""
    updates = _divide(s.prompts_per_step, s.mini_batch_prompts, "prompts a step", "mini-batch")
    prompts = _divide(s.mini_batch_prompts, world, "mini-batch prompts", "processes")
    return RLSchedule(
        per_device_train_batch_size=prompts * s.rollouts_per_prompt * s.oversampling,
        steps_per_generation=updates,
        num_generations=s.rollouts_per_prompt,
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
