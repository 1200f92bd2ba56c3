"""Trainer callbacks that write the metrics and progress files."""

import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from training.progress_files import MetricsFile, ProgressFile

# What the trainers log twice, or about themselves only.
_NOISE = {
    "epoch",
    "total_flos",
    "num_input_tokens_seen",
    "num_tokens",  # TRL forgets it on resuming SFT
    "step_time",
    "reward",
    "reward_std",
    "rewards/judge/mean",
    "rewards/judge/std",
    "frac_reward_zero_std",
}


class WriteMetrics(TrainerCallback):
    """One line of metrics.jsonl for each line the trainer logs.

    `updates_per_step` optimizer updates make one step of the files (RL: one rollout).
    """

    def __init__(
        self, metrics: MetricsFile, progress: ProgressFile, *, updates_per_step: int = 1
    ) -> None:
        self.metrics, self.progress = metrics, progress
        self.updates_per_step = updates_per_step
        self._started, self._first, self._note = time.monotonic(), 0, ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._started, self._first = time.monotonic(), state.global_step
        self._report(state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._report(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        numbers = {
            name: float(value)
            for name, value in logs.items()
            if isinstance(value, (int, float)) and name not in _NOISE
        }
        self.metrics.append(state.global_step // self.updates_per_step, numbers)
        shown = [f"{n} {numbers[n]:.3g}" for n in ("loss", "reward/mean") if n in numbers]
        self._note = ", ".join(shown)

    def _report(self, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        done = state.global_step // self.updates_per_step
        total = state.max_steps // self.updates_per_step
        self.progress.report(done, total, self._note)
