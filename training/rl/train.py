"""One GPPO stage (§3.2, §4.1): problems in, a better checkpoint and a table of rollouts out."""

import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, get_args

from datasets import Dataset
from pydantic import Field
from transformers import PreTrainedModel, TrainerCallback, TrainerState, set_seed

from ...configs.files import replace_text
from ...configs.settings.judging import JudgeSettings
from ...configs.settings.training import RLSettings
from ...eval.answers import has_closed_think
from ...eval.judge.judge import Item, Judge, split_withheld_tests
from ...eval.progress import listening
from ...eval.records import Problem, Record, Score, Verdict
from ...eval.records.tables import read_table, write_table
from .. import models
from ..callbacks import StableCheckpoints, flush, resume_step, train
from ..engines.sampler import check_sampling, sample
from ..launch import result_files
from ..launch.jobs import RLJob
from ..launch.ranks import processes_here, rank, world_size
from ..packing import rl_schedule
from ..render import ChatFormat, conversation
from .config import gppo_config
from .off_policy_counts import write_off_policy
from .partial import PartialRollouts, colocated
from .rollout import Rollout
from .statistics import RolloutRecord
from .trainer import GPPOTrainer

UNCLOSED = "not begun with one closed think block"
AUDITED = 8  # answers of a rollout step that are kept to read
EXAMPLE = 400  # characters of either end of an answer that explains
TABLES = 40  # rollout steps of which all answers are shown, evenly spread
TABLE_ANSWERS, TABLE_TEXT = 256, 2_000  # of each; and characters of either end of a text
FAILURES = tuple(v for v in get_args(Verdict) if v not in ("AC", "IE"))  # of programs


def run_rl(job: RLJob) -> dict[str, float]:
    """Train `job.checkpoint` on `job.problems` into `job.out/checkpoint`; resumes in `job.out`."""
    s = job.settings
    start = models.checkpoint_for_vllm(job.checkpoint, job.out / result_files.SCRATCH / "start", s)
    model, chat = models.load_to_train(start, s)
    problems_of_domain = [p for p in read_table(job.problems, Problem) if p.domain == s.domain]
    problems = fitting(problems_of_domain, chat, s, models.positions_of(model.config))
    progress, journal = result_files.ProgressFile(job.out), None
    early = s.engine == "transformers"  # answers are judged from their end on, in any order
    rollout = s.prompts_per_step * s.rollouts_per_prompt if early else 0
    waiting = listening(lambda done, total, note: progress.report(0, 0, note))  # for a cluster
    with waiting, Judge(share_of_judge(s.judge), remember=rollout) as judge:
        reward = JudgeReward(
            judge, problems, s.judge.withheld_tests, random_share=s.random_reward, seed=job.seed
        )
        trainer = build_trainer(job, model, chat, reward)
        updates = trainer.args.updates
        if trainer.is_world_process_zero():
            done = resume_step(trainer, updates)
            journal = RolloutJournal(job.out, trainer.chat, reward, AUDITED, s.steps, done)
            trainer.on_rollout = journal.add
            trainer.on_off_policy = partial(write_off_policy, journal.off_policy)
        if s.keep_every:
            trainer.add_callback(KeepModels(job, trainer, model))
        train(trainer, job, progress, updates, reward.explain)
    if journal is not None:
        journal.write(job.out / result_files.ROLLOUTS)
    lineage, target = lineage_of(job, model, s.steps), job.out / result_files.CHECKPOINT
    models.save_trained(trainer, target, s.runtime.precision, lineage, chat.kwargs)
    steps = [line for line in trainer.state.log_history if "updates" in line]
    return {
        "rollout_steps": float(s.steps),
        "models_kept": float(len(result_files.kept_models(job.out))),
        "prompts": float(len(problems)),
        "prompts_too_long": float(len(problems_of_domain) - len(problems)),
        "non_finite_updates": sum(line["skipped_updates"] for line in steps),
        "rollouts_without_update": float(sum(line["updates"] == 0 for line in steps)),
    }


def share_of_judge(s: JudgeSettings) -> JudgeSettings:
    """`s` for one of the processes of a machine: together they have the workers of one judge."""
    if processes_here() == 1:
        return s
    workers = max(1, (s.runtime.workers or len(os.sched_getaffinity(0))) // processes_here())
    return s.model_copy(update={"runtime": s.runtime.model_copy(update={"workers": workers})})


class KeepModels(TrainerCallback):
    """Writes the policy after every `keep_every`th rollout step but the last (Figures 2 and 5)."""

    def __init__(self, job: RLJob, trainer: GPPOTrainer, start: PreTrainedModel) -> None:
        self.job, self.trainer, self.start = job, trainer, start

    def on_step_end(self, args, state, control, **_) -> None:
        """On all processes: weights may be spread over them."""
        s, updates = self.job.settings, self.trainer.args.updates
        step, rest = divmod(state.global_step, updates)
        if rest or step % s.keep_every or step == s.steps:
            return
        folder = result_files.kept_model(self.job.out, step)
        lineage = lineage_of(self.job, self.start, step)
        how_saved = s.runtime.precision, lineage, self.trainer.chat.kwargs
        models.save_trained(self.trainer, folder, *how_saved)
        if state.is_world_process_zero:
            flush(folder)  # before the checkpoint that a stage would go on from


def lineage_of(job: RLJob, model: PreTrainedModel, steps: int) -> list[models.TrainingStep]:
    """The steps behind the policy after `steps` rollout steps."""
    s = job.settings.model_copy(update={"steps": steps})
    return models.lineage_after(job.checkpoint, model, f"rl {s.domain}", job.seed, s)


def fitting(
    problems: Sequence[Problem], chat: ChatFormat, s: RLSettings, positions: int | None = None
) -> list[Problem]:
    """The problems whose rendered prompt has at most `max_prompt_tokens`. Raises ValueError where
    the longest leaves less than `max_tokens` of `positions`: cut answers would be paid as too long.
    """
    lengths = list(map(len, chat.prompt_ids([p.prompt for p in problems])))
    longest = max((n for n in lengths if n <= s.max_prompt_tokens), default=0)
    if positions is not None and longest + s.max_tokens > positions:
        raise ValueError(
            f"the longest prompt and its answer need {longest:,} + {s.max_tokens:,} positions and "
            f"the model has {positions:,}: lower max_tokens to {max(0, positions - longest):,} or "
            "max_prompt_tokens, or start from a model with more (base.positions)"
        )
    return [p for p, n in zip(problems, lengths, strict=True) if n <= longest]


class JudgeReward:
    """A TRL reward function. None is unscored: the answer leaves its group, it is never a 0. Where
    a problem is judged on a part of its tests, all answers of a step share it. With `random_share`
    r a scored answer is paid 1 with probability r and else 0, by seed, step, problem and place in
    its group (arXiv 2506.10947).

    Of `withheld` tests nothing is paid. They are run on the programs that pass all rewarded ones,
    and the gap is 1 - P(passes withheld | passes rewarded): what counts is whether it grows.
    """

    __name__ = "judge"

    def __init__(
        self, judge: Judge, problems: Sequence[Problem], withheld: int = 0, *,
        random_share: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.judge, self.random_share, self.seed = judge, random_share, seed
        self.problems = {p.id: p for p in problems}
        self.withheld: dict[str, Problem] = {}  # each with its withheld tests alone
        for p in problems if withheld else ():
            if p.tests and len(p.tests.cases) > 1:
                both = split_withheld_tests(p, p.tests, withheld)
                self.problems[p.id], self.withheld[p.id] = both
        self.programs = {p.prompt: p for p in self.problems.values() if p.domain == "code"}
        self.failures = FAILURES if self.programs else ()
        self.scores: list[Score] = []  # of the latest rollout, in the order of its answers
        self.texts: list[str] = []

    def begin(self, prompt: str, text: str, step: int) -> None:
        """Begin to judge an answer while others are sampled; the judge remembers its result."""
        if problem := self.programs.get(prompt):
            self.judge.submit(problem, text, 0, step)

    def __call__(
        self, *, completions: list[Any], problem_id: list[str], trainer_state: TrainerState,
        log_metric: Any = None, **_: Any,
    ) -> list[float | None]:  # fmt: skip
        places = defaultdict[str, Iterator[int]](count)
        items = [
            (self.problems[id_], turns[-1]["content"], next(places[id_]))
            for id_, turns in zip(problem_id, completions, strict=True)
        ]
        step, self.texts = trainer_state.global_step, [text for _, text, _ in items]
        self.scores = list(self.judge.judge_many(items, draw=step))
        if log_metric is not None:
            for name, value in components(self.scores, self.failures).items():
                log_metric(name, value)
            for name, value in self._of_each(items, step):
                log_metric(name, float(value))
        if (share := self.random_share) is None:
            if log_metric is not None:
                faults = [fault for _, _, fault in self._faults()]
                most = max(Counter(filter(None, faults)).values(), default=0)
                log_metric("reward/one_fault", most / max(1, len(faults)))
            return [s.reward for s in self.scores]
        coins = [f"{self.seed}/{step}/{s.problem_id}/{s.index}" for s in self.scores]
        paid = [float(random.Random(coin).random() < share) for coin in coins]
        return [None if s.unscored else r for s, r in zip(self.scores, paid, strict=True)]

    def _faults(self) -> list[tuple[Score, str, str]]:
        """(score, text, what in its form cost it the reward, or nothing) of the scored answers."""

        def fault(score: Score, text: str) -> str:
            formed = score.answer is not None and has_closed_think(text)
            return "" if formed or (score.reward or 0.0) > 0 else score.reason or UNCLOSED

        both = zip(self.scores, self.texts, strict=True)
        return [(s, text, fault(s, text)) for s, text in both if not s.unscored]

    def explain(self) -> str:
        """How the latest answers were paid: the commonest reasons, what may help, one answer."""
        if not (scored := self._faults()):
            return "No answer of the latest rollout was scored."
        whys = ((s.reward, fault or s.reason or s.verdict) for s, _, fault in scored)
        reasons = Counter(f"{reward:g}: {why}" for reward, why in whys)
        paid = "; ".join(f"{n} times {why}" for why, n in reasons.most_common(3))
        faults = sum(bool(fault) for _, _, fault in scored)
        if faults > len(scored) / 2:
            form = "answers are paid for one closed <think> block and what follows it: see that"
            fix = f"{form} chat template and max_tokens allow that, or teach it by SFT first"
        elif all(s.correct for s, _, _ in scored):
            fix = "the problems are too easy for this model: take harder ones"
        else:
            fix = "the problems are too hard, or their answers match nothing: see filter_rl"
        score, text, _ = scored[0]
        return (
            f"Rewards of the latest {len(scored)} answers, with the reasons: {paid}. Most likely "
            f"{fix}. An answer to the problem {score.problem_id}:\n"
            f"{result_files.both_ends(text, EXAMPLE)}"
        )

    def _of_each(self, items: Sequence[Item], step: int) -> Iterator[tuple[str, bool]]:
        """Metrics with a value for each answer; withheld tests are run here."""
        passed = list[Item]()
        for (problem, text, index), score in zip(items, self.scores, strict=True):
            yield "reward/format", score.answer is not None and has_closed_think(text)
            if problem.id not in self.withheld or score.unscored:
                continue
            yield "withheld/pass_rewarded", bool(score.correct)
            if score.correct:
                passed.append((self.withheld[problem.id], text, index))
            else:
                yield "withheld/pass_all", False
        for score in self.judge.judge_many(passed, draw=step):
            if not score.unscored:
                yield "withheld/pass_all", bool(score.correct)
                yield "withheld/gap", not score.correct


def components(scores: Sequence[Score], failures: Sequence[str] = ()) -> dict[str, float]:
    """Shares of the scored answers behind the mean reward of a rollout, of this process; none where
    none was scored. `reward/std` comes from `training.rl.statistics`, which sees all rewards."""
    scored = [s for s in scores if not s.unscored]
    sums = {
        "reward/mean": sum(s.reward or 0.0 for s in scored),
        "reward/correct": sum(bool(s.correct) for s in scored),
        "reward/pass_rate": sum(s.pass_rate or 0.0 for s in scored),
        **{f"verdict/{v}": sum(s.verdict == v for s in scored) for v in failures},
    }
    return {name: value / len(scored) for name, value in sums.items()} if scored else {}


class RolloutRow(Record):
    step: Annotated[int, Field(ge=1)]
    problem_id: str
    index: int
    text: str
    reward: float | None
    correct: bool | None
    pass_rate: float | None
    verdict: Verdict
    reason: str
    advantage: float
    tokens: int
    trained: bool  # False: the answer was unscored, or its group had equal rewards


TABLE_COLUMNS = ["prompt", "completion", "reward", "verdict", "reason", "advantage", "tokens",
                 "trained", "problem_id", "index"]  # fmt: skip


class RolloutJournal:
    """Keeps `keep` answers of every rollout of rank 0, which `reward` has scored, always those at
    the same places, and shows all answers of some of the `steps` as tables; `after_step` is where a
    resumed run begins."""

    def __init__(
        self, out: Path, chat: ChatFormat, reward: JudgeReward, keep: int, steps: int,
        after_step: int = 0,
    ) -> None:  # fmt: skip
        self.chat, self.reward, self.keep = chat, reward, keep
        self.shown_steps = {*range(1, steps + 1, -(-steps // TABLES)), steps}
        self.shown = out / result_files.SHOWN / "rollouts"
        lines = partial(result_files.StepLines, after_step=after_step)
        self.rows = lines(out / result_files.ROLLOUT_JOURNAL)
        self.off_policy = lines(out / result_files.OFF_POLICY)

    def add(self, record: RolloutRecord) -> None:
        """One rollout."""
        step, size = record.step + 1, len(record.inputs)
        draw = random.Random(f"audit:{record.step}")
        for i in sorted(draw.sample(range(size), min(self.keep, size))):
            self.rows.write(self._row(step, record.rollout, i).model_dump())
        if step in self.shown_steps:
            rows = [self._row(step, record.rollout, i) for i in range(min(size, TABLE_ANSWERS))]
            table = {"columns": TABLE_COLUMNS, "data": [*map(self._shown, rows)]}
            replace_text(self.shown / f"step_{step:05d}.json", json.dumps(table))

    def _row(self, step: int, rollout: Rollout, i: int) -> RolloutRow:
        """The answer at place `i`."""
        answer = rollout.tokens[i][rollout.prompt_length[i] :].tolist()
        return RolloutRow(
            step=step,
            text=self.chat.text(answer),
            advantage=float(rollout.advantage[i]),
            tokens=rollout.answer_length(i),
            trained=bool(rollout.keep[i]),
            **self.reward.scores[i].model_dump(exclude={"answer", "seconds"}),
        )

    def _shown(self, row: RolloutRow) -> list[Any]:
        prompt = self.reward.problems[row.problem_id].prompt
        cells = {**row.model_dump(), "prompt": prompt, "completion": row.text}
        texts = {n: result_files.both_ends(cells[n], TABLE_TEXT) for n in TABLE_COLUMNS[:2]}
        return [(cells | texts)[name] for name in TABLE_COLUMNS]

    def write(self, path: Path) -> int:
        with self.rows.path.open() as file:
            return write_table(path, RolloutRow, map(RolloutRow.model_validate_json, file))


def build_trainer(
    job: RLJob, model: PreTrainedModel, chat: ChatFormat, reward: JudgeReward
) -> GPPOTrainer:
    """The trainer of one stage. Rows carry an id; the tests stay with the judge."""
    s, folder = job.settings, job.out / result_files.SCRATCH / result_files.CHECKPOINTS
    problems, units = reward.problems.values(), rl_schedule(s, world_size())
    if s.engine == "transformers" and model.device.type != "meta":  # sharded: rank 0 has weights
        check_sampling(model)
    ours = partial(roll_out, batch_size=s.engine_runtime.batch_size, begin=reward.begin)
    rows = [{"prompt": conversation(p.prompt), "problem_id": p.id} for p in problems]
    trainer = GPPOTrainer(
        model=model,
        reward_funcs=reward,
        args=gppo_config(
            s, job.seed, units, folder, models.positions_of(model.config), chat.kwargs
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=chat.tokenizer,  # type: ignore[arg-type]
        callbacks=[StableCheckpoints()],
        peft_config=models.adapters(model, s.lora),
        rollout_func=ours if s.engine == "transformers" else None,
    )
    awake = colocated
    if s.engine == "vllm_colocate" and not trainer.use_vllm:
        from .vllm_on_cpu import VLLMOnCPU

        trainer.rollout_func = sampler = VLLMOnCPU(model, trainer.args)
        awake = sampler.awake
    if s.engine == "vllm_colocate":  # its start gave all processes one generator
        set_seed(job.seed + rank() // s.engine_runtime.tensor_parallel)
    if s.partial_rollouts:
        PartialRollouts(trainer, awake)
    return trainer


def roll_out(
    prompts: list[Any], trainer: GPPOTrainer, *, batch_size: int,
    begin: Callable[[str, str, int], None] = lambda *_: None,
) -> dict[str, Any]:  # fmt: skip
    """TRL's hook: the policy sampled by `sampler.sample`; `begin` gets each answer as it ends."""
    args, step = trainer.args, trainer.state.global_step
    texts = [turns[-1]["content"] for turns in prompts]

    def ended(place: int, answer: list[int]) -> None:
        begin(texts[place], trainer.chat.text(answer), step)

    ids = trainer.chat.prompt_ids(texts)
    answers = sample(
        models.policy_on_each(trainer),
        ids,
        max_tokens=args.max_completion_length or 1,
        stop_ids=trainer.eos_token_ids,
        temperature=args.temperature,
        batch_size=batch_size,
        on_end=ended,
    )
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}
