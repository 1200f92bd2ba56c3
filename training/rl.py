"""One GPPO stage (§3.2, §4.1): problems in, a better checkpoint and a table of rollouts out."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from configs.training_stages import RLSettings
from eval.judge import Judge
from eval.kept import kept_model
from eval.ray_cluster import told_of_waiting
from eval.records import Problem
from eval.tables import read_table
from training import render
from training.adapters import lora_config
from training.callbacks import WriteMetrics
from training.checkpoints import (
    StableCheckpoints,
    check_layout,
    flush,
    load_model,
    load_tokenizer,
    save_model,
    save_trained,
)
from training.gppo_config import GPPOConfig
from training.gppo_trainer import GPPOTrainer
from training.jobs import RLJob
from training.judge_reward import JudgeReward
from training.kept_models import KeepModels, copy_of_policy, count_kept
from training.lineage import TrainingStep, read_lineage, step_of
from training.off_policy import OffPolicyJournal
from training.own_vllm import own_server
from training.ports import free_port
from training.progress_files import MetricsFile, ProgressFile
from training.rank import rank, share_of_judge
from training.rollout_audit import RolloutAudit
from training.rollout_pictures import RolloutPictures
from training.room import check_room, positions_of
from training.sampler import sample
from training.schedule import RLSchedule, rl_schedule, world_size
from training.stable import CHECKPOINTS, latest
from training.whole_model import copy_on_each, is_spread


def run_rl(job: RLJob) -> dict[str, float]:
    """Train `job.checkpoint` on `job.problems` into `job.out/checkpoint`; resumes in `job.out`."""
    s, scratch = job.settings, job.out / ".resume"
    tokenizer = load_tokenizer(job.checkpoint)
    render.check_tokenizer(tokenizer)
    model = load_model(
        job.checkpoint,
        attention=s.runtime.attention,
        # trained weights stay fp32: an update of 1e-6 is lost in bf16; frozen ones need it not
        dtype="bfloat16" if s.lora and s.runtime.bf16 else "float32",
    )
    problems, too_long, longest = fitting(
        list(read_table(job.problems, Problem)), tokenizer, s.max_prompt_tokens
    )
    check_room(positions_of(model.config), longest, s.max_tokens)
    units = rl_schedule(s, world_size())
    checkpoints = scratch / CHECKPOINTS
    start = latest(checkpoints)
    done = int(start.name.rpartition("-")[2]) // units.updates_per_rollout if start else 0
    shown = ProgressFile(job.out)
    # of any process: the others wait for the one that waits
    with told_of_waiting(shown.note), Judge(share_of_judge(s.judge)) as judge:
        reward = JudgeReward(judge, problems)
        trainer = build_trainer(job, model, tokenizer, problems, reward, units, checkpoints)
        check_layout(trainer, start)
        audit = None
        if trainer.is_world_process_zero():
            audit = RolloutAudit(job.out, tokenizer, reward, keep=s.audit_rollouts, after_step=done)
            trainer.on_rollout = audit.add
            trainer.on_histograms = RolloutPictures(job.out, s.max_tokens, after_step=done).add
            trainer.on_off_policy = OffPolicyJournal(job.out, after_step=done).add
            trainer.add_callback(
                WriteMetrics(
                    MetricsFile(job.out, after_step=done),
                    shown,
                    updates_per_step=units.updates_per_rollout,
                )
            )
        if s.keep_every:
            keeper = KeepModels(
                partial(keep, job, trainer), s.keep_every, units.updates_per_rollout
            )
            trainer.add_callback(keeper)
        trainer.train(resume_from_checkpoint=str(start) if start else None)
    if audit is not None:
        audit.write(job.out / "rollouts.parquet")
    lineage = lineage_of(job, model, s.steps)
    save_trained(trainer, job.out / "checkpoint", bf16=s.runtime.bf16, lineage=lineage)
    return {
        "rollout_steps": float(s.steps),
        "models_kept": float(count_kept(job.out, s.keep_every, s.steps)),
        "prompts": float(len(problems)),
        "prompts_too_long": float(too_long),
        "non_finite_updates": float(trainer.non_finite_updates),
        "rollouts_without_update": float(trainer.empty_rollouts),
    }


def keep(job: RLJob, trainer: GPPOTrainer, step: int) -> None:
    """Write the policy after rollout step `step` beside the result; all processes must call it."""
    policy = copy_of_policy(trainer)
    if policy is None:
        return
    policy = policy.bfloat16() if job.settings.runtime.bf16 else policy
    folder = kept_model(job.out, step)
    folder.parent.mkdir(exist_ok=True)
    save_model(policy, trainer._tokenizer, folder, lineage_of(job, policy, step))
    flush(folder)  # before the checkpoint that a stage would go on from


def lineage_of(job: RLJob, model: PreTrainedModel, steps: int) -> list[TrainingStep]:
    """The steps behind the policy after `steps` rollout steps."""
    settings = job.settings.model_copy(update={"steps": steps})
    step = step_of(f"rl {settings.domain}", "the step before", job.seed, settings)
    return [*read_lineage(job.checkpoint, getattr(model.config, "_commit_hash", None)), step]


def fitting(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, longest: int
) -> tuple[list[Problem], int, int]:
    """(the problems whose rendered prompt has at most `longest` tokens, how many have more, the
    tokens of the longest kept)."""
    lengths = list(map(len, render.prompt_ids(tokenizer, [p.prompt for p in problems])))
    kept = [p for p, n in zip(problems, lengths, strict=True) if n <= longest]
    if not kept:
        raise ValueError(
            f"none of {len(problems)} prompts has {longest} tokens or fewer; "
            "raise max_prompt_tokens or check the problems file"
        )
    return kept, len(problems) - len(kept), max(n for n in lengths if n <= longest)


def build_trainer(
    job: RLJob,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    reward: Any,
    units: RLSchedule,
    checkpoints: Path,
) -> GPPOTrainer:
    """The trainer of one stage. Rows carry an id; the tests stay with the judge."""
    rows = [{"prompt": render.conversation(p.prompt), "problem_id": p.id} for p in problems]
    return GPPOTrainer(
        model=model,
        reward_funcs=reward,
        args=gppo_config(
            job.settings,
            job.seed,
            units,
            checkpoints,
            positive_reward(job, problems),
            positions_of(model.config),
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,  # type: ignore[arg-type]
        callbacks=[StableCheckpoints(checkpoints)],
        rollout_func=rollout_function(job.settings),
        peft_config=lora_config(job.settings.lora),
    )


def positive_reward(job: RLJob, problems: Sequence[Problem]) -> float:
    """The reward of a correct answer: all tests passed (1.0), or the configured math reward."""
    math = job.settings.judge.reward.math_correct
    domains = {p.domain for p in problems}
    if len(domains) == 2 and math != 1.0:
        raise ValueError(f"math_correct={math} with code problems: use 1.0, or one domain a stage")
    return math if domains == {"math"} else 1.0


def gppo_config(
    s: RLSettings,
    seed: int,
    units: RLSchedule,
    checkpoints: Path,
    positive: float,
    positions: int | None = None,
) -> GPPOConfig:
    """Settings and schedule in TRL's words; `positions` are those of the model."""
    cuda = torch.cuda.is_available()
    return GPPOConfig(
        output_dir=str(checkpoints),
        policy_loss=s.loss,
        epsilon=s.eps_low,
        epsilon_high=s.eps_high,
        beta1=s.beta1,
        beta2=s.beta2,
        dual_clip=s.dual_clip,
        max_log_ratio=s.max_log_ratio,
        lm_weight=s.lm_weight,
        positive_reward=positive,
        advantage_std=s.advantage_std,
        drop_zero_advantage=s.drop_zero_advantage,
        oversampling=s.oversampling,
        overlong_filter=s.overlong_filter,
        micro_batch_tokens=s.runtime.micro_batch_tokens,
        per_device_train_batch_size=units.per_device_train_batch_size,
        gradient_accumulation_steps=1,
        steps_per_generation=units.updates_per_rollout,
        num_generations=units.num_generations,
        max_steps=units.max_steps,
        max_completion_length=s.max_tokens,
        temperature=s.temperature,
        top_p=1.0,
        beta=0.0,
        learning_rate=s.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=units.warmup_steps,
        weight_decay=s.weight_decay,
        adam_beta2=s.adam_beta2,
        max_grad_norm=s.max_grad_norm,
        bf16=s.runtime.bf16,
        use_cpu=not cuda,
        gradient_checkpointing=s.runtime.gradient_checkpointing,
        **vllm_arguments(s, positions),
        dataloader_pin_memory=cuda,
        logging_steps=units.updates_per_rollout,
        save_strategy="steps",
        save_steps=s.checkpoint_steps * units.updates_per_rollout,
        shuffle_dataset=False,  # PromptOrder shuffles
        seed=seed,
        data_seed=seed,
        report_to=[],
        disable_tqdm=True,
    )


def vllm_arguments(s: RLSettings, positions: int | None = None) -> dict[str, Any]:
    """Where vLLM samples: in the training processes (colocate) or on a server."""
    if s.engine == "transformers":
        return {"use_vllm": False}
    arguments: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": s.engine.removeprefix("vllm_"),
        "vllm_importance_sampling_correction": s.importance_cap is not None,
        "vllm_max_model_length": min(s.max_prompt_tokens + s.max_tokens, positions or sys.maxsize),
    }
    if s.importance_cap is not None:
        arguments["vllm_importance_sampling_clip_max"] = s.importance_cap
    if s.engine == "vllm_server":
        arguments |= where_vllm_serves(s)
    if s.engine == "vllm_colocate":
        arguments["vllm_gpu_memory_utilization"] = s.engine_runtime.gpu_memory_utilization
        arguments["vllm_tensor_parallel_size"] = s.engine_runtime.tensor_parallel
        arguments["vllm_enable_sleep_mode"] = torch.cuda.is_available()  # it frees GPU memory
    return arguments


def where_vllm_serves(s: RLSettings) -> dict[str, Any]:
    """The server of RL; only the first process asks it, and only that one is told of the stage's
    own server. Two stages on one machine must not meet at the port for the weights."""
    if rank():
        return {"vllm_server_base_url": s.runtime.vllm_server_url or "http://unused"}
    url = own_server(s.runtime.vllm_server_url)
    port = {} if s.runtime.vllm_server_url else {"vllm_group_port": free_port()}
    return {"vllm_server_base_url": url, **port}


def policy_to_sample(trainer: GPPOTrainer) -> Any:
    """The policy as a plain model: processes that sample do not wait for each other's answers."""
    if is_spread(trainer):
        return copy_on_each(trainer)
    return trainer.accelerator.unwrap_model(trainer.model)


def rollout_function(s: RLSettings) -> Callable[[list[Any], GPPOTrainer], dict[str, Any]] | None:
    """TRL's hook for sampling from the policy with our sampler; None leaves it to vLLM."""
    if s.engine != "transformers":
        return None

    def roll_out(prompts: list[Any], trainer: GPPOTrainer) -> dict[str, Any]:
        tokenizer, units = trainer._tokenizer, trainer.args
        pad_id = tokenizer.pad_token_id
        assert isinstance(pad_id, int)
        ids = render.prompt_ids(tokenizer, [turns[-1]["content"] for turns in prompts])
        answers = sample(
            policy_to_sample(trainer),
            ids,
            max_tokens=units.max_completion_length or 1,
            stop_ids=trainer.eos_token_ids,
            pad_id=pad_id,
            temperature=units.temperature,
            top_p=units.top_p,
            batch_size=s.engine_runtime.batch_size,
        )
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    return roll_out
