"""Models of RL along the way, to score accuracy over training (Figures 2 and 5)."""

import copy
from collections.abc import Callable
from pathlib import Path

from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from eval.kept import kept_models
from training.adapters import has_adapters, merged
from training.whole_model import first_process_copy


class KeepModels(TrainerCallback):
    """Calls `write(step)` after every `every`th rollout step but the last, whose model is the
    result. On all processes: weights may be spread over them."""

    def __init__(self, write: Callable[[int], None], every: int, updates_per_step: int) -> None:
        self.write = write
        self.updates = every * updates_per_step
        self.updates_per_step = updates_per_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.global_step % self.updates == 0 and state.global_step < state.max_steps:
            self.write(state.global_step // self.updates_per_step)


def copy_of_policy(trainer: Trainer) -> PreTrainedModel | None:
    """All weights as they are now, adapters merged, apart from what is being trained.

    In CPU memory; with adapters beside the model, for which there must be room. On the first
    process; None on others, which must call it too.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if has_adapters(model):
        return merged(copy.deepcopy(model)) if trainer.is_world_process_zero() else None
    return first_process_copy(trainer)


def count_kept(out: Path, every: int, steps: int) -> int:
    """How many models were kept; raises RuntimeError if one of them is missing."""
    kept = [step for step, _ in kept_models(out)]
    wanted = list(range(every, steps, every)) if every else []
    if kept != wanted:
        raise RuntimeError(f"models of rollout steps {kept} were kept, and not those of {wanted}")
    return len(kept)
