"""What both trainers share: their configuration, where they begin, metrics and progress at their
steps, checkpoints that are marked as whole, and how they stop when told to."""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback

from ..configs.files import replace_text
from ..configs.metrics import display_order
from ..configs.settings.training import RLSettings, SFTSettings
from .alarms import DIVERGENCE, NO_LESSON, alarms
from .launch import result_files
from .launch.jobs import RLJob, SFTJob
from .models import broken_weights, check_layout, check_weights
from .speedups import speed_up

KEEP = 2  # checkpoints
# What the trainers log twice, or about themselves only; TRL forgets num_tokens on resuming SFT.
_NOISE = {"epoch", "total_flos", "num_input_tokens_seen", "num_tokens", "step_time", "reward",
          "reward_std", "rewards/judge/mean", "rewards/judge/std", "frac_reward_zero_std",
          "completions/min_terminated_length", "completions/max_terminated_length"}  # fmt: skip


def trainer_args(s: SFTSettings | RLSettings, seed: int, folder: Path) -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    if s.runtime.precision == "fp16" and not cuda:
        raise ValueError("runtime.precision=fp16 needs CUDA: take fp32 or bf16")
    return {
        "output_dir": str(folder),
        **s.model_dump(include={"learning_rate", "weight_decay", "max_grad_norm"}),
        "bf16": s.runtime.precision == "bf16",
        "fp16": s.runtime.precision == "fp16",
        "use_cpu": not cuda,
        "gradient_checkpointing": s.runtime.gradient_checkpointing,
        "dataloader_pin_memory": cuda,
        "logging_nan_inf_filter": False,  # it logs the mean of the other losses in their place
        "save_strategy": "steps",
        "seed": seed,
        "data_seed": seed,
        "report_to": [],
        "disable_tqdm": True,
    }


def resume_step(trainer: Any, updates: int) -> int:
    """Steps of so many updates that the newest checkpoint has behind it."""
    start = result_files.latest(Path(trainer.args.output_dir))
    return result_files.number_of(start) // updates if start else 0


def train(
    trainer: Any, job: SFTJob | RLJob, progress: result_files.ProgressFile, updates: int = 1,
    explain: Callable[[], str] = str,
) -> None:  # fmt: skip
    """Train from the newest checkpoint to the end or a stop. One step of the files (RL: a rollout)
    is `updates` optimizer updates; `explain` says how the latest answers were paid."""
    start = result_files.latest(Path(trainer.args.output_dir))
    check_layout(trainer, start)
    speed_up(trainer, job)
    if trainer.is_world_process_zero():
        after_step = resume_step(trainer, updates)
        trainer.add_callback(WriteMetrics(job, progress, updates, after_step, explain))
    StopOnTerm(trainer, updates).train(start)


class WriteMetrics(TrainerCallback):
    """A line of metrics.jsonl for each line that rank 0 logs; a step of it has `each` updates."""

    def __init__(
        self, job: SFTJob | RLJob, progress: result_files.ProgressFile, each: int, after_step: int,
        explain: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self.job, self.progress, self.each, self.explain = job, progress, each, explain
        self.metrics = result_files.MetricsFile(job.out, after_step=after_step)
        self.lines = [line["metrics"] for line in result_files.read_lines(self.metrics.path)]
        self._note = ""

    def on_step_end(self, args, state, control, **_) -> None:
        step, steps = state.global_step // self.each, state.max_steps // self.each
        self.progress.report(step, steps, self._note)

    on_train_begin = on_step_end

    def on_log(self, args, state, control, logs=None, **_) -> None:
        if not logs or "train_runtime" in logs:
            return
        items = sorted(logs.items(), key=lambda item: display_order(item[0]))
        numbers = {n: float(v) for n, v in items if isinstance(v, (int, float)) and n not in _NOISE}
        step = state.global_step // self.each
        rung, runtime = alarms(self.lines, numbers), self.job.settings.runtime
        if NO_LESSON in rung:
            rung[NO_LESSON] = f"{rung[NO_LESSON]}. {self.explain()}"
            replace_text(self.job.out / result_files.NO_LESSON, f"Step {step}: {rung[NO_LESSON]}\n")
        self.lines.append(numbers)
        self.metrics.append(step, dict.fromkeys(rung, float(step)) | numbers)
        shown = ("loss", "reward/mean")
        self._note = ", ".join(f"{n} {numbers[n]:.3g}" for n in shown if n in numbers)
        for name, why in rung.items():
            alarm = name.removeprefix(result_files.ALARM).replace("_", " ")
            print(f"{alarm} alarm at step {step}: {why}", flush=True)
            self._note += f", {alarm.upper()} ALARM"
        if NO_LESSON in rung and runtime.stop_without_lesson:
            fix = "(runtime.stop_without_lesson=false goes on all the same)"
            why = f"nothing was learned, for {rung[NO_LESSON]}"
            raise RuntimeError(f"stopped at step {step}: {why}\n{fix}")
        if DIVERGENCE in rung and runtime.stop_on_divergence:
            raise RuntimeError(
                f"stopped at step {step}, for {rung[DIVERGENCE]}: lower the learning rate, or set "
                "runtime.stop_on_divergence=false to go on from the last checkpoint"
            )


class StableCheckpoints(TrainerCallback):
    """Marks every finished checkpoint STABLE, then removes all but the newest `KEEP`."""

    def on_save(self, args, state, control, **_) -> None:
        PartialState().wait_for_everyone()  # each has written its part
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        checkpoint = folder / f"checkpoint-{state.global_step}"
        flush(checkpoint)
        (checkpoint / result_files.STABLE).touch()
        stable = (mark.parent for mark in folder.glob(f"*/{result_files.STABLE}"))
        for old in sorted(stable, key=result_files.number_of)[:-KEEP]:
            (old / result_files.STABLE).unlink()
            shutil.rmtree(old)


def flush(folder: Path) -> None:
    """Bring the files of `folder` to disk, so that STABLE survives a power cut only with them."""
    for path in (p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())


LOWEST_SCALE = 1.0  # of the loss in fp16: a gradient that overflows there does so unscaled


class FiniteCheckpoints:
    """A transformers Trainer that writes no checkpoint with a weight that is NaN or infinite."""

    def save_model(self: Any, *args: Any, **kwargs: Any) -> None:
        fix = "lower the learning rate; the stage goes on from the checkpoint before"
        where = f"step {self.state.global_step}, no checkpoint is written ({fix})"
        check_weights(self.model, where, everywhere=True)
        super().save_model(*args, **kwargs)  # type: ignore[misc]


def skipped_by_scaler(trainer: Any) -> bool:
    """Whether the scaler of fp16 leaves an overflown update out, and can still lower its scale."""
    scaler = trainer.accelerator.scaler
    return scaler is not None and scaler.get_scale() > LOWEST_SCALE


def likely_cause(trainer: Any) -> str:
    """Why loss or gradient of `trainer` are probably not finite, with what to do."""
    rate, norm = trainer.args.learning_rate, trainer.args.max_grad_norm
    if broken := broken_weights(trainer.model):
        cause = f"the update before made the weight {broken[0]} NaN or infinite"
        return f"{cause}: lower the learning rate, {rate:g}, or warm up for longer"
    if trainer.args.fp16:
        return "fp16 has nothing above 65,504: set runtime.precision to bf16 or fp32"
    finite = "the weights are finite, but no longer what they compute"
    return f"{finite}: lower the learning rate, {rate:g}, or max_grad_norm, {norm:g}"


CUT_LINE = "window.json"  # in a checkpoint: the sums of a log line that a stop has cut
# Of random numbers: how the state of each is read and set. Without a GPU its state is empty.
GENERATORS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),
)


class Stopped(SystemExit):
    """Training was asked to stop, and its checkpoint is written: no result, exit code STOPPED."""


class StopOnTerm(TrainerCallback):
    """SIGTERM: the process saves where it is and ends; the next start goes on to the same bits.

    Until the first update of a step nothing has changed since it began: that state is saved at
    once, in the middle of a forward pass or while it samples; before the first step is done nothing
    is. (At step 0 transformers restores the random numbers before it makes the iterator of the
    data, which draws one.) Afterwards, and with several processes, which must agree, the step is
    ended first. One step is `updates_per_step` updates (RL: a rollout). First in line, so that what
    it writes is there before a checkpoint is marked whole.
    """

    def __init__(self, trainer: Any, updates_per_step: int) -> None:
        self.trainer, self.each = trainer, updates_per_step
        self.folder = Path(trainer.args.output_dir)
        self.stop_requested = self.unchanged = False
        trainer.callback_handler.callbacks.insert(0, self)

    def train(self, start: Path | None) -> None:
        """Train from the checkpoint `start`. Raises Stopped once a stop is on disk."""
        t, before = self.trainer, signal.signal(signal.SIGTERM, self._on_term)
        try:
            t.train(resume_from_checkpoint=str(start) if start else None)
        except Stopped:  # what was begun after the last step is forgotten
            newest, step = result_files.latest(self.folder), t.state.global_step
            if step and (newest is None or result_files.number_of(newest) != step):
                for (_, write), state in zip(GENERATORS, self.random, strict=True):
                    write(state)
                t._metrics["train"], t._tr_loss = self.metrics, self.loss
                t._save_checkpoint(t.model, None)
                t.callback_handler.on_save(t.args, t.state, t.control)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
        if self.stop_requested:
            raise Stopped(result_files.STOPPED)

    def _on_term(self, *_: Any) -> None:
        self.stop_requested = True
        if self.unchanged:
            self.unchanged = False  # a second signal changes nothing
            raise Stopped(result_files.STOPPED)

    def on_train_begin(self, args, state, control, **_) -> None:
        """Go on with the sums of a log line that the stop has cut."""
        file = self.folder / f"checkpoint-{state.global_step}" / CUT_LINE
        if file.exists():
            window, t = json.loads(file.read_text()), self.trainer
            t._globalstep_last_logged = window["logged"]
            t._tr_loss += window["loss"]
            t._metrics["train"].update(window["metrics"])

    def on_step_begin(self, args, state, control, **_) -> None:
        if state.global_step % self.each == 0:
            t = self.trainer
            self.random, self.loss = [read() for read, _ in GENERATORS], t._tr_loss.clone()
            self.metrics = {name: list(values) for name, values in t._metrics["train"].items()}
            self.unchanged = t.accelerator.num_processes == 1
            if self.unchanged and self.stop_requested:
                self._on_term()

    def on_pre_optimizer_step(self, args, state, control, **_) -> None:
        self.unchanged = False

    def on_step_end(self, args, state, control, **_) -> None:
        if state.global_step % self.each == 0:
            self.stop_requested = any(gather_object([self.stop_requested]))  # one process is enough
            if self.stop_requested:
                control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **_) -> None:
        if state.is_world_process_zero:
            t = self.trainer
            loss, metrics = t._tr_loss.item(), t._metrics["train"]
            window = {"logged": t._globalstep_last_logged, "loss": loss, "metrics": metrics}
            file = self.folder / f"checkpoint-{state.global_step}" / CUT_LINE
            file.write_text(json.dumps(window))
