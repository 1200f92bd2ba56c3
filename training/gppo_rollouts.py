"""The first half of GPPOTrainer: prompts in, planned optimizer updates out.

Unscored answers and groups of equal rewards leave here, before any forward pass of the trainer.
"""

import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from trl.trainer.grpo_trainer import GRPOTrainer

from training import vllm_on_cpu
from training.advantages import Advantages, group_advantages
from training.batching import PromptOrder
from training.gppo_config import GPPOConfig, whole_run
from training.packing import check_packing
from training.processes import Processes
from training.rollout import Rollout, Update
from training.rollout_metrics import RolloutRecord, TokenStatistics, rollout_metrics
from training.same_server import SameServer, client_of
from training.server_client import in_trl
from training.update_plan import plan_updates

NOT_TRAINED = {"tool_mask": "tools or env_mask", "num_images": "images"}
PATIENCE = 3  # rollouts in a row that nobody could score: the reward is broken, not the policy


class GPPORollouts(GRPOTrainer):
    """Generates, scores, drops what has nothing to teach, and plans the updates of a rollout."""

    args: GPPOConfig
    model: nn.Module
    num_generations: int

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GPPOConfig | None = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        args = whole_run(args or GPPOConfig("GPPO"), train_dataset)
        ours = vllm_on_cpu.is_needed(args)
        told = vllm_on_cpu.without_vllm(args) if ours else args
        with in_trl():
            super().__init__(model, reward_funcs, told, train_dataset, **kwargs)
        if ours:
            vllm_on_cpu.give_sampler(self, args)
        self.vllm_importance_sampling_correction = False  # ours is applied in the loss
        if self._packed:
            check_packing(self.model)
        self.empty_rollouts = 0
        """Rollouts so far that had nothing to teach, and therefore no update."""
        self.on_rollout: Callable[[RolloutRecord], None] | None = None
        """Called with every rollout once its advantages are known."""
        self.processes = Processes(self.accelerator)
        self._server = SameServer()
        self._statistics = TokenStatistics(args.max_completion_length or 1)
        self._updates: list[Update] = []
        self._defer_old_logps = False
        self._rewards = torch.empty(0)
        self._unscored_in_a_row = 0

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
        unscored = ~rewards.isfinite().any(1)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = total.masked_fill(unscored, torch.nan)  # of all processes
        return rewards

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        if self._defer_old_logps:  # they wait until dead groups are gone and the rows are sorted
            return None, None, None
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)

    def _generate_single_turn(self, *args, **kwargs):
        client = client_of(self)
        with self._server.during(client) if client is not None else nullcontext():
            return super()._generate_single_turn(*args, **kwargs)

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
        batch = self._generated(inputs)
        generated = time.perf_counter()
        rewards = self._rewards.view(-1, self.num_generations)
        truncated = self._truncated(batch).view_as(rewards)
        counted = (
            rewards.masked_fill(truncated, torch.nan) if self.args.overlong_filter else rewards
        )
        found = group_advantages(counted, self.args.advantage_std)  # type: ignore[arg-type]
        rollout = self._local_rollout(batch, rewards, found)
        record = RolloutRecord(
            step=self.state.global_step // (self.args.steps_per_generation or 1),
            inputs=inputs,
            tokens=rollout,
            reward=self.processes.local(rewards),
        )
        if self.on_rollout is not None:
            self.on_rollout(record)
        self._give_up_without_scores(rewards)
        updates = self._plan(rollout)
        self.empty_rollouts += not updates
        self._remember_old_logps(updates)
        self._statistics.add_rollout(rollout, self.processes.local(rewards))
        numbers = rollout_metrics(
            rewards,
            found,
            rollout,
            overlong=truncated & self.args.overlong_filter,
            positive_reward=self.args.positive_reward,
            seconds=generated - started,
            total=self.processes.total,
        )
        for name, value in numbers.items():
            self._metrics["train"][name].append(value)
        self._metrics["train"]["seconds/rollout"].append(time.perf_counter() - started)
        return updates

    def _generated(self, inputs: Any) -> dict[str, Any]:
        """TRL's padded tensors of one rollout, without the forward passes it would add."""
        self._defer_old_logps = True
        try:
            batch = self._generate_and_score_completions(inputs)
        finally:
            self._defer_old_logps = False
        found = [what for key, what in NOT_TRAINED.items() if key in batch]
        if found:
            raise ValueError(f"GPPOTrainer trains on plain text answers, without {found[0]}")
        return batch

    def _truncated(self, batch: dict[str, Any]) -> Tensor:
        """[B] bool over all processes: answers without an end token."""
        ends = torch.tensor([*self.eos_token_ids, self._pad_id], device=self._rewards.device)
        ids, mask = batch["completion_ids"], batch["completion_mask"].bool()
        last = ids.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return self.processes.gathered(~torch.isin(last, ends.to(last.device)))

    def _local_rollout(self, batch: dict[str, Any], rewards: Tensor, found: Advantages) -> Rollout:
        keep = found.live if self.args.drop_zero_advantage else found.scored
        local = self.processes.local
        return Rollout.of_padded(
            batch["prompt_ids"],
            batch["prompt_mask"],
            batch["completion_ids"],
            batch["completion_mask"],
            local(found.advantage),
            local(rewards >= self.args.positive_reward),
            local(keep),
            batch.get("sampling_per_token_logps"),
        )

    def _give_up_without_scores(self, rewards: Tensor) -> None:
        lost = not bool(rewards.isfinite().any())
        self._unscored_in_a_row = self._unscored_in_a_row + 1 if lost else 0
        if self._unscored_in_a_row == PATIENCE:
            raise RuntimeError(
                f"no answer of {PATIENCE} rollouts in a row could be scored: the reward function "
                "returned None or NaN for all of them; training would change nothing"
            )

    def _plan(self, rollout: Rollout) -> list[Update]:
        rng = random.Random(f"{self.args.seed}:{self.state.global_step}")
        units = self.args.plan_units(self._pad_id, packed=self._packed)
        return plan_updates(rollout, units, rng, self.processes)

    @property
    def _pad_id(self) -> int:
        pad_id = self._tokenizer.pad_token_id
        assert isinstance(pad_id, int)  # TRL gives a tokenizer without one its EOS token
        return pad_id

    @property
    def _packed(self) -> bool:
        if self.args.packed is not None:
            return self.args.packed
        config = self.accelerator.unwrap_model(self.model).config
        return "flash" in str(config._attn_implementation)

    def _remember_old_logps(self, updates: list[Update]) -> None:
        """Give every update the log-probabilities of the policy as it is now.

        The second half, GPPOTrainer, does: it owns the forward pass.
        """
        raise NotImplementedError
