"""GPPO on TRL's GRPOTrainer: gradient-preserving clipping (§3.2.2) with the LM loss (§3.2.3).

    trainer = GPPOTrainer(model=..., args=GPPOConfig(...), reward_funcs=..., train_dataset=...)

What differs from the parent, besides the loss: unscored answers and groups of equal rewards leave
before any forward pass; mini-batches are whole groups, cut into micro-batches of similar-length
sequences, packed or padded; the normalisers are those of the whole mini-batch over all processes; a
non-finite gradient skips its update; checkpoints lie between rollouts. TRL's way is subclassing:
`tests/training/test_drop_in.py` holds the private methods used here to the pinned version.
"""

import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from accelerate.utils import is_peft_model
from datasets import Dataset
from torch import Tensor, nn
from transformers import ProcessorMixin
from trl.data_utils import is_conversational
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import get_config_model_id

from .. import losses
from ..callbacks import FiniteCheckpoints, likely_cause, skipped_by_scaler
from ..models import exact_sums_and_outputs, packing_mistake, unchanged_weights, without_dropout
from ..packing import prompt_order
from ..render import ChatFormat, prefill_of
from .config import GPPOConfig
from .off_policy_counts import Table, headline
from .rollout import MicroBatch, Processes, Rollout, Update, drop_surplus, plan_updates
from .statistics import RolloutRecord, TokenStatistics

TEXT_ALONE = "GPPOTrainer trains on text alone"
MAX_UNSCORED_ROLLOUTS = 3  # in a row, by over half: then the reward is broken, not the policy
MAX_SKIPPED_UPDATES = 3  # in a row: then no later one will be finite


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise where arguments of GRPOTrainer, by name, are none that an update of GPPO could use."""
    args, dataset = arguments["args"], arguments.get("train_dataset")
    if not isinstance(args, GPPOConfig):
        raise TypeError(
            f"args is a {type(args).__name__}: take GPPOConfig, which has the same options; where "
            "its defaults or its choice differ, its message and docs/trl_options.md say so"
        )
    if refused := [n for n in ("tools", "environment_factory") if arguments.get(n)]:
        raise ValueError(f"{TEXT_ALONE}, without {' and '.join(refused)}: TRL's GRPOTrainer has it")
    if isinstance(arguments.get("processing_class"), ProcessorMixin):
        raise ValueError(f"{TEXT_ALONE}: pass the processor's tokenizer as processing_class")
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"train_dataset is a {type(dataset).__name__}: rollouts are planned over all prompts, "
            "so pass a datasets.Dataset (of a stream: Dataset.from_list(list(stream.take(N))))"
        )
    held_out = arguments.get("eval_dataset") or {}
    named = held_out if isinstance(held_out, Mapping) else {"eval_dataset": held_out}
    for name, rows in {"train_dataset": dataset, **named}.items():
        columns = set(rows.column_names or ())
        if isinstance(rows, Dataset) and "prompt" not in columns:
            raise ValueError(f"{name} has no column prompt (a text, or turns), but {columns}")
        if wrong := columns & {"image", "images"}:
            raise ValueError(f"{TEXT_ALONE}, and {name} has the column {', '.join(wrong)}")


class LossScale(torch.amp.GradScaler):
    """Scales the loss in fp16; an update without any gradient is left out, where torch's fails."""

    _left_out = False

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        groups = optimizer.param_groups
        self._left_out = all(p.grad is None for group in groups for p in group["params"])
        if not self._left_out:
            super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        return None if self._left_out else super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        if not self._left_out:
            super().update(new_scale)


class GPPOTrainer(FiniteCheckpoints, GRPOTrainer):
    """GRPOTrainer with GPPO's loss, filters and mini-batches; see the module's text."""

    _name = "GPPO"
    args: GPPOConfig
    model: nn.Module
    num_generations: int
    chat: ChatFormat  # of conversational prompts

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: GPPOConfig | None = None,
        train_dataset: Any = None, *more: Any, **kwargs: Any,
    ) -> None:  # fmt: skip
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = GPPOConfig(f"{name.split('/')[-1]}-GPPO")
        arguments = model, reward_funcs, args, train_dataset, *more
        refuse_arguments(signature(GRPOTrainer).bind(*arguments, **kwargs).arguments)
        args = args.with_max_steps(len(train_dataset))
        super().__init__(model, reward_funcs, args, train_dataset, *more, **kwargs)
        if self._is_vlm:
            raise ValueError(f"{TEXT_ALONE}: pass the model's tokenizer as processing_class")
        if self.is_deepspeed_enabled:
            raise ValueError("DeepSpeed's engine steps inside `backward`: shard weights by fsdp")
        if self.aux_loss_enabled:
            fix = "is in no update of GPPO: set router_aux_loss_coef=0"
            raise ValueError(f"the loss that balances experts {fix}")
        if self.accelerator.scaler is not None:  # fp16
            if self.is_fsdp_enabled:
                raise ValueError("fp16 is for whole weights: topology.sharding=none, or bf16")
            self.accelerator.scaler = LossScale(self.accelerator.device.type)
        exact_sums_and_outputs(self)
        without_dropout(self.model)
        self.vllm_importance_sampling_correction = False  # ours is applied in the loss
        self.draw_rows: Callable[[], list[dict[str, Any]]] | None = None
        """The rows of each rollout, in the place of those that the dataloader gives."""
        self.on_rollout: Callable[[RolloutRecord], None] | None = None
        """Called with every rollout once its advantages are known."""
        self.on_off_policy: Callable[[int, list[Table]], None] | None = None
        """Called at every log line with the rollout step and a table for each of its updates."""
        if is_conversational(next(iter(self.train_dataset))):  # type: ignore[arg-type]
            options: Any = self.args.chat_template_kwargs
            self.chat = ChatFormat.from_template(self._tokenizer, options, self.eos_token_ids)
            self.eos_token_ids = [*self.eos_token_ids, *(self.chat.stops - {*self.eos_token_ids})]
        self.processes = Processes(self.accelerator)
        self._loss = args.loss
        self._statistics = TokenStatistics()
        self._updates: list[Update] = []
        self._losses: list[Tensor | float] = []
        self._grad_norms: list[float] = []
        self._rewards = torch.empty(0)
        self._packed = self._packs(self.accelerator.unwrap_model(self.model))
        self._unscored_in_a_row = self._skipped_in_a_row = 0
        self._server = ""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        args, prompts = self.args, self.train_dataset if dataset is None else dataset
        return prompt_order(
            len(prompts),  # type: ignore[arg-type]
            prompts_per_step=(args.generation_batch_size or 1) // self.num_generations,
            rollouts=self.num_generations,
            updates=args.updates,
            steps=-(-args.max_steps // args.updates),
            seed=args.seed,
            shuffle=bool(args.shuffle_dataset),
        )

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """The next planned update, or None when the rollout has no more; a new rollout first."""
        if self._slot == 0:
            self._updates = self._rollout(generation_batch)
        return self._updates[self._slot] if self._slot < len(self._updates) else None

    @property
    def _slot(self) -> int:
        """Updates of the present rollout that are done."""
        return self._step % self.args.updates

    def _rollout(self, inputs: Any) -> list[Update]:
        """Generate, score, drop what has nothing to teach, and plan the updates."""
        started = time.perf_counter()
        inputs = inputs if self.draw_rows is None else self.draw_rows()
        batch = self._generate_and_score_completions(inputs)
        if wrong := {"tool_mask", "num_images"} & set(batch):
            raise ValueError(f"{TEXT_ALONE}, without tools and images: {wrong}")
        spent = time.perf_counter() - started
        args, local = self.args, self.processes.local
        rewards = self._rewards.view(-1, self.num_generations)
        overlong = self._truncated(batch).view_as(rewards) & args.overlong_filter
        scores = rewards.masked_fill(overlong, torch.nan)
        lengths = self.processes.gathered(batch["completion_mask"].sum(1)).view_as(rewards)
        if args.overlong_buffer:
            longest = args.max_completion_length or 0
            penalty = losses.overlong_penalty(lengths, longest, args.overlong_buffer)
            scores = scores + penalty
            self._metrics["train"]["reward/overlong_penalty"].append(penalty.mean().item())
        if args.advantage == "maxrl":  # its rewards are 0 and 1
            correct = (scores >= args.positive_reward).to(scores)
            scores = torch.where(scores.isfinite(), correct, scores)
        advantages = losses.group_advantages(scores, args.advantage_std, args.advantage)  # type: ignore[arg-type]
        rollout = Rollout.of_padded(
            batch,
            advantage=local(advantages.advantage),
            positive=local(rewards >= args.positive_reward),
            keep=local(advantages.mixed if args.drop_zero_advantage else advantages.scored),
        )
        drop_surplus(rollout, self.processes, args)
        step = self.state.global_step // args.updates
        record = RolloutRecord(step, inputs, rollout, rewards, overlong, lengths, advantages, spent)
        if self.on_rollout is not None:
            self.on_rollout(record)
        self._give_up_without_scores(rewards)
        rng = random.Random(f"{args.seed}:{self.state.global_step}")
        updates = plan_updates(rollout, rng, self.processes, args, self._packed)
        self._remember_old_logps(updates)
        for name, value in record.metrics().items():
            self._metrics["train"][name].append(value)
        self._metrics["train"]["seconds/rollout"].append(time.perf_counter() - started)
        return updates

    def _generate(self, prompts: list) -> Any:
        if self.use_vllm and is_peft_model(self.model):
            self.load_policy()
        return super()._generate(prompts)

    def load_policy(self) -> None:
        """Write the policy's weights into TRL's vLLM, once a rollout and after each sleep."""
        step, adapted = self.state.global_step, is_peft_model(self.model)
        asleep = getattr(self.vllm_generation, "_llm_weights_sleeping", False)
        if asleep or self._last_loaded_step != step:
            with unchanged_weights(self.model) if adapted else nullcontext():  # TRL merges in place
                self.vllm_generation.sync_weights()
            self._last_loaded_step = step

    def _generate_single_turn(self, *args, **kwargs):
        client = getattr(getattr(self, "vllm_generation", None), "vllm_client", None)
        if client is None:
            return self._to_their_end(*super()._generate_single_turn(*args, **kwargs))
        start = self._server or client.get_server_info()["instance_id"]  # anew at every start
        answers = self._to_their_end(*super()._generate_single_turn(*args, **kwargs))
        self._server = client.get_server_info()["instance_id"]
        if start != self._server:
            lost = f"the vLLM server at {client.base_url} was started again and has lost the policy"
            raise RuntimeError(f"{lost}; run again: training goes on from its last checkpoint")
        return answers

    def _to_their_end(self, ids: list[list[int]], logprobs: Any) -> tuple[list[list[int]], Any]:
        """Answers up to the first token that ends one: vLLM knows the model's own alone, and what
        follows an end of turn is not judged."""
        ends = {*self.eos_token_ids}
        lengths = [next((n for n, i in enumerate(a, 1) if i in ends), len(a)) for a in ids]
        cut = [answer[:n] for answer, n in zip(ids, lengths, strict=True)]
        return cut, logprobs and [p[:n] for p, n in zip(logprobs, lengths, strict=True)]

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> Tensor:
        """The rewards see all of an answer: what the prompt wrote of it, too."""
        if is_conversational({"prompt": prompts[0]}):
            texts = map(self.chat.text, completion_ids_list)
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        else:
            completions = [prefill_of(p) + c for p, c in zip(prompts, completions, strict=True)]
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        unscored = ~rewards.isfinite().any(1)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        self._rewards = total.masked_fill(unscored, torch.nan)  # of all processes
        return rewards

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        return None, None, None  # they wait until dead groups are gone and the rows are sorted

    def _truncated(self, batch: dict[str, Any]) -> Tensor:
        """[B] bool over all processes: answers without an end token."""
        ends = [*self.eos_token_ids, self._tokenizer.pad_token_id]
        ids, mask = batch["completion_ids"], batch["completion_mask"].bool()
        last = ids.gather(1, (mask.sum(1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return self.processes.gathered(~torch.isin(last, torch.tensor(ends, device=last.device)))

    def _give_up_without_scores(self, rewards: Tensor) -> None:
        """A reward that fails does so where it has work to do: the other answers, such as those
        without a program, are no fair sample to train on."""
        scored = float(rewards.isfinite().double().mean())
        self._unscored_in_a_row = self._unscored_in_a_row + 1 if scored < 0.5 else 0
        if self._unscored_in_a_row == MAX_UNSCORED_ROLLOUTS:
            lost = f"in {MAX_UNSCORED_ROLLOUTS} rollouts in a row most answers could not be scored"
            why = f"the reward returned None or NaN for {1 - scored:.0%} of the last ones"
            raise RuntimeError(f"{lost}: {why}; training goes on from the last checkpoint")

    @torch.no_grad()
    def _remember_old_logps(self, updates: list[Update]) -> None:
        passes = self.args.num_iterations
        first = 1 if passes == 1 else 0  # the first update is made by π_old itself
        for update in updates[first : len(updates) // passes]:
            for micro in update.micro_batches:
                micro.old_logp, entropy = self._logp(self.model, micro)
                micro.old_entropy = entropy if self.args.erc else None

    def _packs(self, model: Any) -> bool:
        """Whether a micro-batch is one row. Raises ValueError where that is asked and cannot be."""
        requested = self.args.packed
        attention = str(model.config._attn_implementation)
        takes_rows = "flash" in attention or attention == "flex_attention"
        if requested is False or (requested is None and not takes_rows):
            return False
        if not (why := packing_mistake(model)):
            return True
        if requested:
            raise ValueError(f"packed=True would mix the sequences of a row: {why}; leave it out")
        print(f"micro-batches are padded, not packed: {why}", flush=True)
        return False

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """An evaluation samples and scores; how far one update would go says nothing of it."""
        self._generate_and_score_completions(inputs)
        return None, None, None

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
        return loss.nan_to_num(0.0, 0.0, 0.0)  # of transformers' own sum, which is not logged

    def _backward(self, model: nn.Module, micro: MicroBatch, update: Update) -> Tensor:
        with self.compute_loss_context_manager():
            loss = self._micro_loss(model, micro, update)
        # DDP and FSDP average gradients over processes; the normalisers are global sums.
        self.accelerator.backward(loss * self.accelerator.num_processes)
        return loss.detach()

    def _micro_loss(self, model: nn.Module, micro: MicroBatch, update: Update) -> Tensor:
        """The share of `micro` in Eq. 14, a scalar that sums to the loss over micro-batches."""
        args = self.args
        logp, entropy = self._logp(model, micro)
        old_logp = logp.detach() if micro.old_logp is None else micro.old_logp
        mean_length = update.policy_tokens / max(update.answers, 1.0)
        answers = losses.Answers(micro.answer, micro.mask, mean_length)
        weight = losses.policy_weight(self._loss, logp, old_logp, micro.advantage, answers)
        correction, bounds = None, args.importance_bounds
        if bounds and micro.sampling_logp is not None:
            correction = losses.importance_correction(
                old_logp, micro.sampling_logp, micro.answer, micro.mask, bounds
            )
        erc = None
        if args.erc and micro.old_entropy is not None:
            erc = losses.entropy_ratio(entropy, micro.old_entropy, *args.erc)
            weight = weight.masked_fill(erc.below | erc.above, 0.0)
        self._statistics.add(
            self._slot, micro, logp, old_logp, entropy, weight, correction, self._loss, erc
        )
        weight = weight if correction is None else weight * correction.weight
        sums = {"policy_tokens": update.policy_tokens, "positive_tokens": update.positive_tokens}
        tokens = losses.token_weight(
            weight, micro.advantage, micro.positive, micro.mask, **sums, lm_weight=args.lm_weight
        )
        loss = losses.weighted_nll(logp, tokens)
        if args.entropy_coef:
            loss = loss - losses.entropy_bonus(
                entropy, micro.mask, policy_tokens=update.policy_tokens, weight=args.entropy_coef
            )
        return loss

    def _logp(self, model: nn.Module, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [b, answers] of the answer tokens, in one head pass. Rows
        are right-padded and need no mask; in a packed row positions keep the sequences apart."""
        with self.accelerator.autocast():
            places = {"input_ids": micro.input_ids, "position_ids": micro.position_ids}
            output = model(**places, labels=micro.labels, fused_lm_head=True)
        return output.log_probs[:, -micro.answers :], output.entropy[:, -micro.answers :]

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm: Any = super()._get_grad_norm(model, grad_norm)
        if any(p.grad is not None for p in model.parameters()):
            self._grad_norms.append(float(norm))
            skipped = not math.isfinite(float(norm)) and not skipped_by_scaler(self)
            self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if not math.isfinite(float(norm)) and self.accelerator.scaler is None:  # it skips them too
            for parameter in model.parameters():  # an optimizer leaves parameters without gradient
                parameter.grad = None
        if self._skipped_in_a_row == MAX_SKIPPED_UPDATES:
            step = self.state.global_step // self.args.updates + 1
            why = f"{MAX_SKIPPED_UPDATES} updates in a row had a gradient that is NaN or infinite"
            raise FloatingPointError(f"rollout {step}: {why}; {likely_cause(self)}")
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            updates = self.args.updates
            logs["loss"] = self._mean_loss()
            norms, self._grad_norms = self._grad_norms, []
            finite = [n for n in norms if math.isfinite(n)]
            logs["grad_norm"] = sum(finite) / max(1, len(finite))
            logs["skipped_updates"] = float(len(norms) - len(finite))
            logs["updates"] = float(len(norms))
            if self.accelerator.scaler is not None:
                logs["loss_scale"] = self.accelerator.scaler.get_scale()
            logs.update(self._statistics.means(self.processes))
            tables = self._statistics.off_policy_tables(updates, self.processes)
            if self.on_off_policy is not None:
                self.on_off_policy(self.state.global_step // updates, tables)
            logs.update(headline(tables))
        super().log(logs, start_time)

    def _mean_loss(self) -> float:
        """The mean of Eq. 14 over the updates since the last log line, where finite. transformers'
        own is of shares, counts updates that were not made, and forgets after a resume."""
        shares, self._losses = [float(loss) for loss in self._losses], []
        finite = [x for x in self.processes.total(shares) if math.isfinite(x)] if shares else []
        return sum(finite) / max(1, len(finite))
