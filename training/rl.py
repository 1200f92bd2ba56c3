"""One GPPO stage (§3.2, §4.1): problems in, a better checkpoint and a table of rollouts out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from configs.training_stages import RLSettings
from eval.judge import Judge
from eval.records import Problem
from eval.tables import read_table
from training import render
from training.callbacks import WriteMetrics
from training.checkpoints import StableCheckpoints, latest, load_model, load_tokenizer, save_trained
from training.gppo_config import GPPOConfig
from training.gppo_trainer import GPPOTrainer
from training.jobs import RLJob
from training.judge_reward import JudgeReward
from training.progress_files import MetricsFile, ProgressFile
from training.rollout_audit import RolloutAudit
from training.sampler import sample
from training.schedule import RLSchedule, rl_schedule, world_size


def run_rl(job: RLJob) -> dict[str, float]:
    """Train `job.checkpoint` on `job.problems` into `job.out/checkpoint`; resumes in `job.out`."""
    s, scratch = job.settings, job.out / ".resume"
    tokenizer = load_tokenizer(job.checkpoint)
    model = load_model(
        job.checkpoint,
        attention=s.runtime.attention,
        dtype="float32",  # the weights stay fp32: an update of 1e-6 is lost in bf16
    )
    problems, too_long = fitting(
        list(read_table(job.problems, Problem)), tokenizer, s.max_prompt_tokens
    )
    units = rl_schedule(s, world_size())
    checkpoints = scratch / "checkpoints"
    start = latest(checkpoints)
    done = int(start.name.rpartition("-")[2]) // units.updates_per_rollout if start else 0
    with Judge(s.judge) as judge:
        reward = JudgeReward(judge, problems)
        trainer = build_trainer(job, model, tokenizer, problems, reward, units, checkpoints)
        audit = None
        if trainer.is_world_process_zero():
            audit = RolloutAudit(job.out, tokenizer, reward, keep=s.audit_rollouts, after_step=done)
            trainer.on_rollout = audit.add
            trainer.add_callback(
                WriteMetrics(
                    MetricsFile(job.out, after_step=done),
                    ProgressFile(job.out),
                    updates_per_step=units.updates_per_rollout,
                )
            )
        trainer.train(resume_from_checkpoint=str(start) if start else None)
    if audit is not None:
        audit.write(job.out / "rollouts.parquet")
    save_trained(trainer, job.out / "checkpoint", bf16=s.runtime.bf16)
    return {
        "rollout_steps": float(s.steps),
        "prompts": float(len(problems)),
        "prompts_too_long": float(too_long),
        "non_finite_updates": float(trainer.non_finite_updates),
    }


def fitting(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, longest: int
) -> tuple[list[Problem], int]:
    """The problems whose rendered prompt has at most `longest` tokens, and how many have more."""
    ids = render.prompt_ids(tokenizer, [p.prompt for p in problems])
    kept = [p for p, i in zip(problems, ids, strict=True) if len(i) <= longest]
    if not kept:
        raise ValueError(
            f"none of {len(problems)} prompts has {longest} tokens or fewer; "
            "raise max_prompt_tokens or check the problems file"
        )
    return kept, len(problems) - len(kept)


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
            job.settings, job.seed, units, checkpoints, positive_reward(job, problems)
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,  # type: ignore[arg-type]
        callbacks=[StableCheckpoints(checkpoints)],
        rollout_func=rollout_function(job.settings),
    )


def positive_reward(job: RLJob, problems: Sequence[Problem]) -> float:
    """The reward of a correct answer: all tests passed (1.0), or the configured math reward."""
    math = job.settings.judge.reward.math_correct
    domains = {p.domain for p in problems}
    if len(domains) == 2 and math != 1.0:
        raise ValueError(f"math_correct={math} with code problems: use 1.0, or one domain a stage")
    return math if domains == {"math"} else 1.0


def gppo_config(
    s: RLSettings, seed: int, units: RLSchedule, checkpoints: Path, positive: float
) -> GPPOConfig:
    """Settings and schedule in TRL's words."""
    cuda = torch.cuda.is_available()
    return GPPOConfig(
        output_dir=str(checkpoints),
        policy_loss=s.loss,
        epsilon=s.eps_low,
        epsilon_high=s.eps_high,
        beta1=s.beta1,
        beta2=s.beta2,
        dual_clip=s.dual_clip,
        lm_weight=s.lm_weight,
        positive_reward=positive,
        advantage_std=s.advantage_std,
        drop_zero_advantage=s.drop_zero_advantage,
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
        **vllm_arguments(s),
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


def vllm_arguments(s: RLSettings) -> dict[str, Any]:
    """Where vLLM samples: in the training processes (colocate) or on a server."""
    if s.engine == "transformers":
        return {"use_vllm": False}
    arguments: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": s.engine.removeprefix("vllm_"),
        "vllm_importance_sampling_correction": False,
        "vllm_max_model_length": s.max_prompt_tokens + s.max_tokens,
    }
    if s.engine == "vllm_colocate":
        arguments["vllm_gpu_memory_utilization"] = s.engine_runtime.gpu_memory_utilization
        arguments["vllm_tensor_parallel_size"] = s.engine_runtime.tensor_parallel
        arguments["vllm_enable_sleep_mode"] = True
    return arguments


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
            trainer.accelerator.unwrap_model(trainer.model),
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
