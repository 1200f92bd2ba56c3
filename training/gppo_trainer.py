"""GPPO on TRL's GRPOTrainer: gradient-preserving clipping (§3.2.2) with the LM loss (§3.2.3).

    trainer = GPPOTrainer(model=..., args=GPPOConfig(...), reward_funcs=..., train_dataset=...)

What differs from the parent, besides the loss: unscored answers and groups of equal rewards leave
before any forward pass; mini-batches are whole groups, cut into micro-batches of like length
without padding; the normalisers are those of the whole mini-batch over all processes, so the loss
does not depend on micro-batches or devices; a non-finite gradient skips its update; a checkpoint
between two updates of a rollout keeps the rest of it.

TRL has no hook for a policy loss; its way is subclassing. `training.trl_pins` lists the private
methods this file replaces or calls, and a test holds them to the pinned version.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eval.off_policy import OffPolicy
from training.gppo_rollouts import GPPORollouts
from training.losses import mismatch_weight, policy_weight, token_weight, weighted_nll
from training.off_policy import headline, tables_of
from training.rollout import MicroBatch, Update
from training.rollout_buffer import Buffer, buffer_path, load_buffer, save_buffer

COUNTS = ("non_finite_updates", "empty_rollouts", "_unscored_in_a_row")


class GPPOTrainer(GPPORollouts):
    """GRPOTrainer with GPPO's loss, filters and mini-batches; see the module's text."""

    _name = "GPPO"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.is_deepspeed_enabled:
            raise ValueError("GPPOTrainer accumulates gradients itself: use FSDP2 or DDP")
        self.non_finite_updates = 0
        """Updates skipped so far because their gradient was not finite."""
        self.on_histograms: Callable[[dict[str, list[float]]], None] | None = None
        """Called at every log line with the counts of `rollout_metrics.BINS`."""
        self.on_off_policy: Callable[[int, list[OffPolicy]], None] | None = None
        """Called at every log line with the rollout step and a table for each of its updates."""
        self._losses: list[Tensor | float] = []
        self._grad_norms: list[float] = []

    @torch.no_grad()
    def _remember_old_logps(self, updates: list[Update]) -> None:
        for update in updates[1:]:  # the first update is made by the policy that sampled
            for micro in update.micro_batches:
                micro.old_logp, _ = self._logp(self.model, micro)

    @property
    def _slot(self) -> int:
        """Updates of the present rollout that are done."""
        return self._step % (self.args.steps_per_generation or 1)

    # ------------------------------------------------------------------------ one optimizer update

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        model.train()
        started = time.perf_counter()
        update: Update | None = self._prepare_inputs(inputs)
        loss = torch.zeros((), device=self.accelerator.device)
        if update is not None:
            *others, last = update.micro_batches
            with self.accelerator.no_sync(model):
                for micro in others:
                    loss += self._backward(model, micro, update)
            loss += self._backward(model, last, update)
            self._losses.append(loss)
        self._step += 1
        self._metrics["train"]["seconds/step"].append(time.perf_counter() - started)
        return loss

    def _backward(self, model: nn.Module, micro: MicroBatch, update: Update) -> Tensor:
        with self.compute_loss_context_manager():
            loss = self._micro_loss(model, micro, update)
        # DDP and FSDP average gradients over processes; the normalisers are global sums.
        self.accelerator.backward(loss * self.accelerator.num_processes)
        return loss.detach()

    def _micro_loss(self, model: nn.Module, micro: MicroBatch, update: Update) -> Tensor:
        """The share of `micro` in Eq. 14, a scalar that sums to the loss over micro-batches."""
        logp, entropy = self._logp(model, micro)
        old_logp = logp.detach() if micro.old_logp is None else micro.old_logp
        weight = policy_weight(
            self.args.policy_loss, logp, old_logp, micro.advantage, self.args.clip
        )
        self._statistics.add(logp, old_logp, entropy, weight, micro, self.args.clip)
        if micro.sampling_logp is not None:
            weight = self._corrected(weight, old_logp, micro.sampling_logp, micro.mask)
        self._statistics.updates.add(
            self._slot, logp, old_logp, entropy, weight, micro.advantage, micro.mask, self.args.clip
        )
        tokens = token_weight(
            weight,
            micro.advantage,
            micro.positive,
            micro.mask,
            policy_tokens=update.policy_tokens,
            positive_tokens=update.positive_tokens,
            lm_weight=self.args.lm_weight,
        )
        return weighted_nll(logp, tokens)

    def _corrected(
        self, weight: Tensor, old_logp: Tensor, sampling_logp: Tensor, mask: Tensor
    ) -> Tensor:
        """`weight` times the correction for the sampler, if it is on; its mismatch is counted."""
        cap = self.args.importance_cap
        correction = None if cap is None else mismatch_weight(old_logp, sampling_logp, cap)
        self._statistics.add_mismatch(old_logp, sampling_logp, correction, mask)
        return weight if correction is None else weight * correction

    def _logp(self, model: nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [b, answers] of the answer tokens, in one head pass.

        Rows are right-padded, so causal attention never looks at padding and needs no mask; in a
        packed row the positions that start over keep the sequences apart.
        """
        with self.accelerator.autocast():
            output = model(
                input_ids=micro.input_ids,
                position_ids=micro.position_ids,
                labels=micro.labels,
                fused_lm_head=True,
            )
        return output.log_probs[:, -micro.answers :], output.entropy[:, -micro.answers :]

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm: Any = super()._get_grad_norm(model, grad_norm)
        if any(p.grad is not None for p in model.parameters()):
            self._grad_norms.append(float(norm))
        if not math.isfinite(float(norm)):
            self.non_finite_updates += 1
            for parameter in model.parameters():  # an optimizer leaves parameters without gradient
                parameter.grad = None
        return norm

    # ------------------------------------------------------------------------ logs and checkpoints

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["loss"] = self._mean_loss()
            norms, self._grad_norms = self._grad_norms, []
            finite = [n for n in norms if math.isfinite(n)]
            logs["grad_norm"] = sum(finite) / max(1, len(finite))
            logs["skipped_updates"] = float(len(norms) - len(finite))
            logs["updates"] = float(len(norms))
            logs.update(self._statistics.means(self.processes.total, self.processes.largest))
            counts = self._statistics.histograms(self.processes.total)
            if self.on_histograms is not None:
                self.on_histograms(counts)
            logs.update(self._log_off_policy())
        super().log(logs, start_time)

    def _log_off_policy(self) -> dict[str, float]:
        updates = self.args.steps_per_generation or 1
        tables = tables_of(self.processes.total(self._statistics.updates.flat(updates)))
        if self.on_off_policy is not None:
            self.on_off_policy(self.state.global_step // updates, tables)
        return headline(tables)

    def _mean_loss(self) -> float:
        """The mean of Eq. 14 over the updates since the last log line that had a finite one.

        transformers' own figure is the mean over processes of their shares, counts updates that
        were not made, and after a resume forgets those before it.
        """
        losses, self._losses = self._losses, []
        shares = [float(loss) for loss in losses]
        finite = [x for x in self.processes.total(shares) if math.isfinite(x)] if shares else []
        return sum(finite) / max(1, len(finite))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        slot = self._slot
        buffer = Buffer(
            slot=slot,
            updates=self._updates if slot else [],
            metrics={name: list(values) for name, values in self._metrics["train"].items()},
            statistics=self._statistics.state(),
            losses=[float(loss) for loss in self._losses],
            grad_norms=self._grad_norms,
            counts={name: getattr(self, name) for name in COUNTS},
        )
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        save_buffer(buffer_path(folder, self.processes.rank), buffer)
        self.accelerator.wait_for_everyone()  # then the first process marks it as whole

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        slot = self.state.global_step % (self.args.steps_per_generation or 1)
        rank, world = self.processes.rank, self.processes.size
        buffer = load_buffer(Path(checkpoint), rank, world, self.accelerator.device, slot=slot)
        if buffer is not None:
            self._step, self._updates = buffer.slot, buffer.updates
            self._metrics["train"].update(buffer.metrics)
            self._statistics.restore(buffer.statistics)
            self._losses, self._grad_norms = [*buffer.losses], buffer.grad_norms
            for name, count in buffer.counts.items():
                setattr(self, name, count)
