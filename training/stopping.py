"""SIGTERM: a training process saves where it is and ends; the next start goes on to the same bits.

Until the first update of a step (RL: of a rollout) nothing has changed since the step began: the
process saves that state at once, in the middle of a forward pass or while it samples. Afterwards
it first ends the step. Several processes always do, for all of them must agree.
"""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback

from klear.training.layout import STOPPED, latest, number_of

WINDOW = "window.json"
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
    """See the module's text; one step is `updates_per_step` optimizer updates. First in line, so
    that what it writes is there before a checkpoint is marked whole."""

    def __init__(self, trainer: Any, updates_per_step: int) -> None:
        self.trainer, self.each = trainer, updates_per_step
        self.folder = Path(trainer.args.output_dir)
        self.asked = self.unchanged = False
        trainer.callback_handler.callbacks.insert(0, self)

    def train(self, start: Path | None) -> None:
        """Train from the checkpoint `start`. Raises Stopped once a stop is on disk."""
        t, before = self.trainer, signal.signal(signal.SIGTERM, self._on_term)
        try:
            t.train(resume_from_checkpoint=str(start) if start else None)
        except Stopped:  # what was begun after the last step is forgotten
            newest = latest(self.folder)
            if newest is None or number_of(newest) != t.state.global_step:
                for (_, write), state in zip(GENERATORS, self.random, strict=True):
                    write(state)
                t._metrics["train"], t._tr_loss = self.metrics, self.loss
                t._save_checkpoint(t.model, None)
                t.callback_handler.on_save(t.args, t.state, t.control)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
        if self.asked:
            raise Stopped(STOPPED)

    def _on_term(self, *_: Any) -> None:
        self.asked = True
        if self.unchanged:
            self.unchanged = False  # a second signal changes nothing
            raise Stopped(STOPPED)

    def on_train_begin(self, args, state, control, **_) -> None:
        """Go on with the sums of a log line that the stop has cut."""
        file = self.folder / f"checkpoint-{state.global_step}" / WINDOW
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
            if self.unchanged and self.asked:
                self._on_term()

    def on_pre_optimizer_step(self, args, state, control, **_) -> None:
        self.unchanged = False

    def on_step_end(self, args, state, control, **_) -> None:
        if state.global_step % self.each == 0:
            self.asked = any(gather_object([self.asked]))  # one process is enough
            if self.asked:
                control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **_) -> None:
        if state.is_world_process_zero:
            t = self.trainer
            loss, metrics = t._tr_loss.item(), t._metrics["train"]
            window = {"logged": t._globalstep_last_logged, "loss": loss, "metrics": metrics}
            file = self.folder / f"checkpoint-{state.global_step}" / WINDOW
            file.write_text(json.dumps(window))
