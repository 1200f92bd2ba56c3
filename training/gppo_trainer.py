"""GPPO on TRL's GRPOTrainer: gradient-preserving clipping (§3.2.2) with the LM loss (§3.2.3).

    trainer = GPPOTrainer(model=..., args=GPPOConfig(...), reward_funcs=..., train_dataset=...)

What differs from the parent, besides the loss: unscored answers and groups of equal rewards leave
before any forward pass; mini-batches are whole groups, cut into micro-batches of like length
without padding; the normalisers are those of the whole mini-batch over all processes, so the loss
does not depend on micro-batches or devices; a non-finite gradient skips its update.

TRL has no hook for a policy loss; its way is subclassing. `TRL_SIGNATURES` lists the private
methods this file replaces or calls, and a test holds them to the pinned version.
"""

import math
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from trl.trainer.grpo_trainer import GRPOTrainer

from training.advantages import group_advantages
from training.batching import PromptOrder
from training.gppo_config import GPPOConfig
from training.losses import policy_weight, token_weight, weighted_nll
from training.rollout import MicroBatch, Rollout, Update, plan_updates
from training.rollout_metrics import RolloutRecord, TokenStatistics

TRL_SIGNATURES = {  # name: parameters, trl 1.16
    "training_step": "(self, model, inputs, num_items_in_batch)",
    "_prepare_inputs": "(self, generation_batch)",
    "_get_train_sampler": "(self, dataset=None)",
    "_calculate_rewards": "(self, inputs, prompts, completions, completion_ids_list)",
    "_generate_and_score_completions": "(self, inputs)",
    "_get_per_token_logps_and_entropies": (
        "(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, "
        "compute_entropy=False, compute_aux_loss=False, pixel_values=None, image_grid_thw=None, "
        "num_images=None, pixel_attention_mask=None, spatial_shapes=None, num_tiles=None, "
        "image_sizes=None, token_type_ids=None, mm_token_type_ids=None, image_position_ids=None)"
    ),
}


class GPPOTrainer(GRPOTrainer):
    """GRPOTrainer with GPPO's loss, filters and mini-batches; see the module's text."""

    args: GPPOConfig
    model: nn.Module
    num_generations: int
    _name = "GPPO"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.is_deepspeed_enabled:
            raise ValueError("GPPOTrainer accumulates gradients itself: use FSDP2 or DDP")
        self.non_finite_updates = 0
        """Updates skipped so far because their gradient was not finite."""
        self.on_rollout: Callable[[RolloutRecord], None] | None = None
        """Called with every rollout once its advantages are known."""
        self._statistics = TokenStatistics()
        self._defer_old_logps = False
        self._updates: list[Update] = []
        self._rewards = torch.empty(0)
        self._grad_norms: list[float] = []

    # ---------------------------------------------------------------- which prompts, in what order

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        units = self.args
        updates = units.steps_per_generation
        assert updates is not None
        assert units.generation_batch_size is not None
        prompts = self.train_dataset if dataset is None else dataset
        return PromptOrder(
            len(prompts),  # type: ignore[arg-type]
            prompts_per_step=units.generation_batch_size // self.num_generations,
            rollouts=self.num_generations,
            updates=updates,
            steps=-(-units.max_steps // updates),
            seed=units.seed,
        )

    # ------------------------------------------------------------------------------- one rollout

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        unscored = rewards.isnan().all(1)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = total.masked_fill(unscored, torch.nan)  # of all processes
        return rewards

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        if self._defer_old_logps:  # they wait until dead groups are gone and the rows are sorted
            return None, None, None
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        slot = self._step % (self.args.steps_per_generation or 1)
        if slot == 0:
            self._updates = self._rollout(generation_batch)
        return self._updates[slot] if slot < len(self._updates) else None

    def _rollout(self, inputs: Any) -> list[Update]:
        """Generate, score, drop what has nothing to teach, and plan the updates."""
        started = time.perf_counter()
        self._defer_old_logps = True
        try:
            batch = self._generate_and_score_completions(inputs)
        finally:
            self._defer_old_logps = False
        generated = time.perf_counter()
        rewards = self._rewards.view(-1, self.num_generations)
        found = group_advantages(rewards, self.args.advantage_std)  # type: ignore[arg-type]
        keep = found.live if self.args.drop_zero_advantage else found.scored
        rollout = Rollout.of_padded(
            batch["prompt_ids"],
            batch["prompt_mask"],
            batch["completion_ids"],
            batch["completion_mask"],
            self._local(found.advantage),
            self._local(rewards >= self.args.positive_reward),
            self._local(keep),
        )
        record = RolloutRecord(
            step=self.state.global_step // (self.args.steps_per_generation or 1),
            inputs=inputs,
            tokens=rollout,
            reward=self._local(rewards),
        )
        if self.on_rollout is not None:
            self.on_rollout(record)
        self._log_rollout(rewards, found, rollout, generated - started)
        updates = self._plan(rollout)
        for update in updates[1:]:  # the first update is made by the policy that sampled
            self._remember_old_logps(update)
        self._metrics["train"]["seconds/rollout"].append(time.perf_counter() - started)
        return updates

    def _plan(self, rollout: Rollout) -> list[Update]:
        units = self.args
        rng = random.Random(f"{units.seed}:{self.state.global_step}")
        per_update = units.per_device_train_batch_size * self.accelerator.num_processes
        pad_id = self._tokenizer.pad_token_id
        assert isinstance(pad_id, int)
        return plan_updates(
            rollout,
            group_size=self.num_generations,
            mini_batch_groups=per_update / self.num_generations,
            most_updates=units.steps_per_generation or 1,
            budget=units.micro_batch_tokens,
            pad_id=pad_id,
            rng=rng,
            total=self._total,
            largest=self._largest,
        )

    @torch.no_grad()
    def _remember_old_logps(self, update: Update) -> None:
        for micro in update.micro_batches:
            micro.old_logp, _ = self._logp(self.model, micro, entropy=False)

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
        logp, entropy = self._logp(model, micro, entropy=True)
        old_logp = logp.detach() if micro.old_logp is None else micro.old_logp
        weight = policy_weight(
            self.args.policy_loss, logp, old_logp, micro.advantage, self.args.clip
        )
        self._statistics.add(
            logp=logp,
            old_logp=old_logp,
            entropy=entropy,
            weight=weight,
            advantage=micro.advantage,
            mask=micro.mask,
            clip=self.args.clip,
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

    def _logp(
        self, model: nn.Module, micro: MicroBatch, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (and entropies) [b, answers] of the last columns of a micro-batch.

        The rows are right-padded, so causal attention never looks at padding and needs no mask.
        """
        logp, entropies, _ = super()._get_per_token_logps_and_entropies(
            model,
            micro.input_ids,
            torch.ones_like(micro.input_ids),
            micro.answers,
            compute_entropy=entropy,
        )
        return logp, entropies

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm: Any = super()._clip_grad_norm(model)
        if any(p.grad is not None for p in model.parameters()):
            self._grad_norms.append(float(norm))
        if not math.isfinite(float(norm)):
            self.non_finite_updates += 1
            for parameter in model.parameters():  # an optimizer leaves parameters without gradient
                parameter.grad = None
        return norm

    # --------------------------------------------------------------------------------- log and sums

    def _log_rollout(self, rewards: Tensor, found: Any, rollout: Rollout, seconds: float) -> None:
        lengths = [rollout.answer_length(i) for i in range(len(rollout.tokens))]
        live_groups = found.live.any(1).float().mean().item()
        (tokens,) = self._total([float(sum(lengths))])
        self._metrics["train"]["zero_advantage_share"].append(1 - live_groups)
        self._metrics["train"]["unscored"].append(float(rewards.isnan().sum()))
        self._metrics["train"]["positive_share"].append(
            (rewards >= self.args.positive_reward).float().mean().item()
        )
        self._metrics["train"]["seconds/generate_and_score"].append(seconds)
        self._metrics["train"]["tokens_per_second"].append(tokens / max(seconds, 1e-9))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            norms, self._grad_norms = self._grad_norms, []
            finite = [n for n in norms if math.isfinite(n)]
            logs["grad_norm"] = sum(finite) / max(1, len(finite))
            logs["skipped_updates"] = float(len(norms) - len(finite))
            logs["updates"] = float(len(norms))
            logs.update(self._statistics.means(self._total, self._largest))
        super().log(logs, start_time)

    def _total(self, values: list[float]) -> list[float]:
        """Element-wise sum over processes."""
        tensor = torch.tensor(values, device=self.accelerator.device)
        return self.accelerator.reduce(tensor, reduction="sum").tolist()  # type: ignore[union-attr]

    def _largest(self, value: float) -> float:
        """The largest value over processes."""
        tensor = torch.tensor([value], device=self.accelerator.device)
        return self.accelerator.gather(tensor).max().item()  # type: ignore[union-attr]

    def _local(self, grouped: Tensor) -> Tensor:
        """This process's part of a tensor [N, G] over all processes, as [B]."""
        flat = grouped.reshape(-1)
        size = flat.numel() // self.accelerator.num_processes
        start = self.accelerator.process_index * size
        return flat[start : start + size]
