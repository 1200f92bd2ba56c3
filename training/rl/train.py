"""One GPPO stage (§3.2, §4.1): problems in, a better checkpoint and a table of rollouts out."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerState

from configs.settings.training import RLSettings
from eval.judge.judge import Judge
from eval.ray_cluster import on_cluster_wait
from eval.records import Problem, Score
from eval.tables import read_table
from training import layout, render
from training.callbacks import StableCheckpoints, WriteMetrics, flush
from training.checkpoints import saving
from training.checkpoints.lineage import TrainingStep, lineage_after
from training.engines.local_model import check_room, positions_of
from training.engines.transformers_engine import sample
from training.launch.jobs import RLJob
from training.launch.rank import share_of_judge, world_size
from training.packing import RLSchedule, rl_schedule
from training.rl.config import gppo_config
from training.rl.journals import RolloutJournal
from training.rl.off_policy_counts import OffPolicyJournal
from training.rl.trainer import GPPOTrainer


def run_rl(job: RLJob) -> dict[str, float]:
    """Train `job.checkpoint` on `job.problems` into `job.out/checkpoint`; resumes in `job.out`."""
    s = job.settings
    model, tokenizer = saving.load_to_train(job.checkpoint, s)
    problems, too_long, longest = fitting(
        list(read_table(job.problems, Problem)), tokenizer, s.max_prompt_tokens
    )
    check_room(positions_of(model.config), longest, s.max_tokens)
    units = rl_schedule(s, world_size())
    updates = units.steps_per_generation
    checkpoints = job.out / layout.SCRATCH / layout.CHECKPOINTS
    start = layout.latest(checkpoints)
    done = layout.step_of_checkpoint(start) // updates if start else 0
    progress = layout.ProgressFile(job.out)
    with on_cluster_wait(progress.note), Judge(share_of_judge(s.judge)) as judge:
        reward = JudgeReward(judge, problems)
        trainer = build_trainer(job, model, tokenizer, problems, reward, units, checkpoints)
        saving.check_layout(trainer, start)
        journal = None
        if trainer.is_world_process_zero():
            kept = {"keep": s.audit_rollouts, "longest": s.max_tokens, "after_step": done}
            journal = RolloutJournal(job.out, tokenizer, lambda: reward.scores, **kept)
            trainer.on_rollout = journal.add
            trainer.on_off_policy = OffPolicyJournal(job.out, after_step=done).add
            metrics = layout.MetricsFile(job.out, after_step=done)
            trainer.add_callback(WriteMetrics(metrics, progress, updates_per_step=updates))
        if s.keep_every:
            trainer.add_callback(KeepModels(job, trainer, updates))
        trainer.train(resume_from_checkpoint=str(start) if start else None)
    if journal is not None:
        journal.write(job.out / layout.ROLLOUTS)
    lineage = lineage_of(job, model, s.steps)
    saving.save_trained(trainer, job.out / layout.CHECKPOINT, bf16=s.runtime.bf16, lineage=lineage)
    return {
        "rollout_steps": float(s.steps),
        "models_kept": float(len(layout.kept_models(job.out))),
        "prompts": float(len(problems)),
        "prompts_too_long": float(too_long),
        "non_finite_updates": float(trainer.non_finite_updates),
        "rollouts_without_update": float(trainer.empty_rollouts),
    }


class KeepModels(TrainerCallback):
    """Writes the policy after every `keep_every`th rollout step but the last, whose model is the
    result, to score accuracy over training (Figures 2 and 5)."""

    def __init__(self, job: RLJob, trainer: GPPOTrainer, updates: int) -> None:
        self.job, self.trainer, self.updates = job, trainer, updates

    def on_step_end(self, args, state, control, **_) -> None:
        """On all processes: weights may be spread over them."""
        step, s = state.global_step // self.updates, self.job.settings
        if state.global_step % (s.keep_every * self.updates) or step == s.steps:
            return
        policy = saving.policy_on_rank0(self.trainer, copied=True)
        if policy is not None:
            policy = policy.bfloat16() if s.runtime.bf16 else policy
            folder = layout.kept_model(self.job.out, step)
            folder.parent.mkdir(exist_ok=True)
            lineage = lineage_of(self.job, policy, step)
            saving.save_model(policy, self.trainer._tokenizer, folder, lineage)
            flush(folder)  # before the checkpoint that a stage would go on from


def lineage_of(job: RLJob, model: PreTrainedModel, steps: int) -> list[TrainingStep]:
    """The steps behind the policy after `steps` rollout steps."""
    settings = job.settings.model_copy(update={"steps": steps})
    commit = getattr(model.config, "_commit_hash", None)
    return lineage_after(job.checkpoint, commit, f"rl {settings.domain}", job.seed, settings)


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


class JudgeReward:
    """A TRL reward function. None is unscored: the answer leaves its group, it is never a 0.

    Where a problem is judged on a part of its tests, all answers of a step share that part, and
    the next step draws another.
    """

    __name__ = "judge"

    def __init__(self, judge: Judge, problems: Sequence[Problem]) -> None:
        self.judge = judge
        self.problems = {p.id: p for p in problems}
        self.scores: list[Score] = []
        """Of the latest rollout, in the order of its answers."""

    def __call__(
        self,
        *,
        completions: list[Any],
        problem_id: list[str],
        trainer_state: TrainerState,
        log_metric: Any = None,
        **_: Any,
    ) -> list[float | None]:
        seen: Counter[str] = Counter()
        items = []
        for id_, turns in zip(problem_id, completions, strict=True):
            text = turns if isinstance(turns, str) else turns[-1]["content"]
            items.append((self.problems[id_], text, seen[id_]))
            seen[id_] += 1
        self.scores = list(self.judge.judge_many(items, draw=trainer_state.global_step))
        if log_metric is not None:
            for name, value in components(self.scores).items():
                log_metric(name, value)
        return [s.reward for s in self.scores]


def components(scores: Sequence[Score]) -> dict[str, float]:
    """Shares of the rollout behind its mean reward; unscored answers count in `unscored` only.

    Of this process: the trainer logs their mean over processes. That is no way to join standard
    deviations, so `reward/std` comes from `training.rl.statistics`, which sees all rewards.
    """
    scored = [s for s in scores if not s.unscored]
    shares = {"reward/unscored": 1 - len(scored) / max(1, len(scores))}
    if scored:
        shares["reward/mean"] = sum(s.reward or 0.0 for s in scored) / len(scored)
        shares["reward/correct"] = sum(bool(s.correct) for s in scored) / len(scored)
        shares["reward/pass_rate"] = sum(s.pass_rate or 0.0 for s in scored) / len(scored)
        for verdict, count in sorted(Counter(s.verdict for s in scored).items()):
            shares[f"verdict/{verdict}"] = count / len(scored)
    return shares


def build_trainer(
    job: RLJob,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    reward: JudgeReward,
    units: RLSchedule,
    checkpoints: Path,
) -> GPPOTrainer:
    """The trainer of one stage. Rows carry an id; the tests stay with the judge."""
    s, positions = job.settings, positions_of(model.config)
    rows = [{"prompt": render.conversation(p.prompt), "problem_id": p.id} for p in problems]
    correct = positive_reward(s, problems)
    return GPPOTrainer(
        model=model,
        reward_funcs=reward,
        args=gppo_config(s, job.seed, units, checkpoints, correct, positions),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,  # type: ignore[arg-type]
        callbacks=[StableCheckpoints(checkpoints)],
        rollout_func=rollout_function(s),
        peft_config=saving.lora_config(s.lora),
    )


def positive_reward(s: RLSettings, problems: Sequence[Problem]) -> float:
    """The reward of a correct answer: all tests passed (1.0), or the configured math reward."""
    math = s.judge.reward.math_correct
    domains = {p.domain for p in problems}
    if len(domains) == 2 and math != 1.0:
        raise ValueError(f"math_correct={math} with code problems: use 1.0, or one domain a stage")
    return math if domains == {"math"} else 1.0


def rollout_function(s: RLSettings) -> Callable[[list[Any], GPPOTrainer], dict[str, Any]] | None:
    """TRL's hook for sampling from the policy with our sampler; None leaves it to vLLM."""
    if s.engine != "transformers":
        return None

    def roll_out(prompts: list[Any], trainer: GPPOTrainer) -> dict[str, Any]:
        tokenizer, units = trainer._tokenizer, trainer.args
        ids = render.prompt_ids(tokenizer, [turns[-1]["content"] for turns in prompts])
        answers = sample(
            saving.policy_on_each(trainer),
            ids,
            max_tokens=units.max_completion_length or 1,
            stop_ids=trainer.eos_token_ids,
            pad_id=trainer._pad_id,
            temperature=units.temperature,
            top_p=units.top_p,
            batch_size=s.engine_runtime.batch_size,
        )
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    return roll_out
