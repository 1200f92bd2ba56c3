"""One RL stage with the real judge on a small model: files, resumption, and prompts too long."""

import json

import pytest
import torch
from transformers import TrainerState

from klear.configs.ablation import ablations, load_ablation
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.configs.settings.loss import GPPO
from klear.configs.settings.training import RLSettings, TrainRuntime
from klear.eval.records import Problem, Score
from klear.eval.records.tables import read_table
from klear.training.engines import sampler
from klear.training.engines.interface import EngineError
from klear.training.launch.jobs import RLJob
from klear.training.launch.result_files import kept_model, kept_models
from klear.training.models import load_model, load_tokenizer, read_lineage
from klear.training.packing import rl_schedule
from klear.training.render import ChatFormat
from klear.training.rl import train as rl
from klear.training.rl.config import gppo_config, vllm_arguments
from klear.training.rl.train import JudgeReward, RolloutRow, components, share_of_judge
from tests.cluster.fixed_answers import LengthJudge
from tests.training.killed_child import RL


def settings(**changes) -> RLSettings:
    """Of a small stage that trains on equal rewards too: an untrained model is never right."""
    few = {"mini_batch_prompts": 2, "checkpoint_steps": 1, "drop_zero_advantage": False}
    return RL.model_copy(update=few | changes)


def turn(text):
    return [{"role": "assistant", "content": text}]


def job_for(files, out, **changes):
    return RLJob(out=out, checkpoint=files["checkpoint"], problems=files["problems"],
                 settings=settings(**changes), seed=5)  # fmt: skip


def test_a_stage_leaves_a_model_metrics_progress_and_rollouts(files, tmp_path):
    job = job_for(files, tmp_path, steps=2)
    result = rl.run_rl(job)
    assert result["rollout_steps"] == 2
    assert load_model(tmp_path / "checkpoint").config.model_type == "qwen3"
    assert load_tokenizer(tmp_path / "checkpoint").chat_template
    rows = list(read_table(tmp_path / "rollouts.parquet", RolloutRow))
    assert {r.step for r in rows} == {1, 2}
    assert {r.verdict for r in rows} == {"WA"}
    assert all(r.reward == -1.0 and r.advantage == 0.0 for r in rows)
    lines = (tmp_path / "logs/metrics.jsonl").read_text().splitlines()
    logged = {line["step"]: line["metrics"].keys() for line in map(json.loads, lines)}
    assert list(logged) == [1, 2]
    assert result["rollouts_without_update"] == 0
    table = json.loads((tmp_path / "logs/shown/rollouts/step_00001.json").read_text())
    assert len(table["data"]) == job.settings.prompts_per_step * job.settings.rollouts_per_prompt
    shown = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    prompts = {p.id: p.prompt for p in read_table(files["problems"], Problem)}
    assert all(row["prompt"] == prompts[row["problem_id"]] for row in shown)
    texts = {(r.problem_id, r.index): r.text for r in rows if r.step == 1}
    assert texts.items() <= {(r["problem_id"], r["index"]): r["completion"] for r in shown}.items()
    expected = {"reward/mean", "reward/correct", "reward/format", "unscored", "clip/high",
                "clip/low", "policy_weight", "entropy", "ratio/log_min", "ratio/log_max",
                "grad_norm", "completions/mean_length", "completions/clipped_ratio",
                "zero_advantage_share", "skipped_updates", "loss", "learning_rate"}  # fmt: skip
    assert expected <= logged[1]
    drawn = {c for s in map(load_ablation, ablations()) if s.scored != "sft" for c in s.curves}
    # logged only where an answer has an advantage, or with entropy-ratio clipping
    measured = {name for name in drawn if name.startswith(("off_policy/", "erc/"))}
    assert drawn - measured <= logged[1]  # else an experiment's page lacks its figure
    assert len(measured) == 6
    progress = json.loads((tmp_path / ".resume/progress.json").read_text())
    assert (progress["done"], progress["total"]) == (2, 2)


def test_prompts_that_are_too_long_are_counted_not_trained_on(files, problems):
    chat = ChatFormat.from_template(load_tokenizer(files["checkpoint"]))
    long = Problem(domain="math", prompt="Make 5 from " + "9, " * 200, answer="5")
    assert rl.fitting([*problems, long], chat, settings(max_prompt_tokens=64)) == problems


def test_a_model_that_would_end_answers_early_or_is_not_sampled_right_is_refused_at_once(
    files, tmp_path, monkeypatch
):
    """The small model has 512 positions."""
    with pytest.raises(ValueError, match=r"the model has 512: lower max_tokens to"):
        rl.run_rl(job_for(files, tmp_path, max_tokens=512))
    monkeypatch.setattr(sampler, "draw", lambda logits, **_: logits.argmin(-1))
    with pytest.raises(EngineError, match="answers otherwise with a cache than without"):
        rl.run_rl(job_for(files, tmp_path))


def test_the_reward_judges_all_answers_at_once_with_their_place_in_the_group(problems):
    seen = []

    class Judge(LengthJudge):
        def judge_many(self, items, draw=0):
            items = list(items)
            seen.append((draw, [(p.id, i) for p, _, i in items]))
            return super().judge_many(items)

    a, b = problems[0].id, problems[1].id
    reward = JudgeReward(Judge(), problems)
    state = TrainerState(global_step=12)
    paid = reward(
        completions=[turn("ab"), turn("abc"), turn("ab")], problem_id=[a, a, b], trainer_state=state
    )
    assert paid == [1.0, 0.0, 1.0]
    assert seen == [(12, [(a, 0), (a, 1), (b, 0)])]  # the step draws the tests of all siblings


@pytest.mark.parametrize("random_share", [None, 0.5])
def test_an_unscored_answer_is_none_and_not_zero(problems, random_share):
    class Broken(LengthJudge):
        def judge_many(self, items, draw=0):
            return (Score(problem_id=p.id, index=i, verdict="IE") for p, _, i in items)

    reward = JudgeReward(Broken(), problems, random_share=random_share)
    arguments = {"completions": [turn("x")], "problem_id": [problems[0].id]}
    assert reward(**arguments, trainer_state=TrainerState()) == [None]
    assert components(reward.scores) == {}


def test_the_papers_figures_reach_vllm_and_the_trainer(tmp_path, monkeypatch):
    named = TrainRuntime(vllm_server_url="http://gpu-9:8000")
    s = RLSettings(engine="vllm_server", runtime=named)
    with pytest.raises(ValueError, match="needs CUDA"):
        vllm_arguments(s)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        arguments = vllm_arguments(s)
        capped = vllm_arguments(s.model_copy(update={"importance_cap": 2.0}), positions=8_192)
    assert arguments["use_vllm"]
    assert arguments["vllm_server_base_url"] == "http://gpu-9:8000"
    with pytest.raises(ValueError, match=r"needs runtime\.vllm_server_url"):
        RLSettings(engine="vllm_server")
    assert arguments["vllm_mode"] == "server"
    assert arguments["vllm_max_model_length"] == 4_096 + 32_768
    assert arguments["vllm_importance_sampling_correction"] is False
    assert capped["vllm_importance_sampling_clip_max"] == 2.0
    assert capped["vllm_max_model_length"] == 8_192
    alone = s.model_copy(update={"engine": "transformers", "runtime": RL.runtime})
    config = gppo_config(alone, 0, rl_schedule(s, 8), tmp_path)
    assert (config.max_steps, config.warmup_steps, config.save_steps) == (800, 80, 40)
    assert (config.epsilon, config.epsilon_high, config.beta) == (0.2, 0.28, 0.0)


def test_the_options_of_the_authors_code_reach_the_trainer(tmp_path):
    loss, kind = GPPO(dual_clip=10.0), "unbiased"
    s = settings(oversampling=2, overlong_filter=True, loss=loss, advantage_std=kind)
    config = gppo_config(s, 0, rl_schedule(s, 1), tmp_path)
    assert (config.oversampling, config.overlong_filter) == (2, True)
    assert (config.loss, config.advantage_std) == (loss, kind)
    assert config.generation_batch_size == 2 * s.prompts_per_step * s.rollouts_per_prompt
    assert config.mini_batch_groups * config.updates == s.prompts_per_step


@pytest.mark.parametrize(("workers", "here", "each"), [(8, 4, 2), (3, 4, 1), (8, 1, 8)])
def test_the_processes_of_a_machine_share_the_workers_of_one_judge(
    monkeypatch, workers, here, each
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    judge_settings = JudgeSettings(runtime=JudgeRuntime(workers=workers))
    assert share_of_judge(judge_settings).runtime.workers == each


def test_a_kept_model_is_what_a_shorter_stage_ends_with(files, tmp_path, monkeypatch):
    """Also after another was kept: keeping changes no bit."""
    monkeypatch.setattr(rl, "Judge", LengthJudge)
    more = {"drop_zero_advantage": True}
    result = rl.run_rl(job_for(files, tmp_path / "kept", steps=3, keep_every=1, **more))
    rl.run_rl(job_for(files, tmp_path / "short", steps=2, **more))
    first, second = kept_models(tmp_path / "kept")  # of three steps; the third is the result
    assert (first[0], second) == (1, (2, kept_model(tmp_path / "kept", 2)))
    assert result["models_kept"] == 2
    folders = second[1], tmp_path / "short/checkpoint", first[1], tmp_path / "kept/checkpoint"
    kept, short, *others = ((f / "model.safetensors").read_bytes() for f in folders)
    assert kept == short
    assert kept not in others
    assert load_tokenizer(second[1]).chat_template
    assert read_lineage(second[1])[-1].settings["steps"] == "2"


class Judge(LengthJudge):
    """Pays all alike: with `reward`, for `reason`."""

    reward, reason = 1.0, ""

    def judge_many(self, items, draw=0):
        for problem, _, index in items:
            right = self.reward > 0
            yield Score(problem_id=problem.id, index=index, reward=self.reward, correct=right,
                        pass_rate=float(right), verdict="AC" if right else "WA",
                        answer="5" if right else None, reason=self.reason)  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "reason", "why", "changes"),
    [
        (1.0, "", "had the same reward", {}),
        (-1.0, "no box", "had the same reward", {"drop_zero_advantage": False}),
        (-1.0, "", "had the same reward", {"overlong_filter": True}),  # all are cut, none is left
    ],
)
def test_rl_that_learns_nothing_ends_after_three_rollouts_with_reasons_and_an_answer(
    files, tmp_path, monkeypatch, capsys, reward, reason, why, changes
):
    fixed = type("Fixed", (Judge,), {"reward": reward, "reason": reason})
    monkeypatch.setattr(rl, "Judge", fixed)
    same = {"drop_zero_advantage": True, "mini_batch_prompts": 4, "steps": 5} | changes
    with pytest.raises(RuntimeError, match=rf"stopped at step 3: nothing was learned.*{why}"):
        rl.run_rl(job_for(files, tmp_path / "ends", **same))
    lesson = (tmp_path / "ends/logs/no_lesson.txt").read_text()
    rows = (tmp_path / "ends/.resume/rollouts.jsonl").read_text()
    expected = "AC" if reward > 0 else reason or rl.UNCLOSED
    assert f": 16 times {reward:g}: {expected}. Most likely " in lesson
    assert any(json.loads(row)["text"] in lesson for row in rows.splitlines())
    assert "no lesson alarm at step 3: in 3 rollouts in a row" in capsys.readouterr().out


def test_rl_that_learns_nothing_goes_on_and_rings_where_the_settings_say_so(
    files, tmp_path, monkeypatch
):
    monkeypatch.setattr(rl, "Judge", Judge)
    calm = RL.runtime.model_copy(update={"stop_without_lesson": False})
    same = {"drop_zero_advantage": True, "mini_batch_prompts": 4, "steps": 5, "runtime": calm}
    assert rl.run_rl(job_for(files, tmp_path, **same))["rollout_steps"] == 5
    lines = (tmp_path / "logs/metrics.jsonl").read_text().splitlines()
    rang = ["alarm/no_lesson" in json.loads(line)["metrics"] for line in lines]
    assert rang == [False, False, True, True, True]


def test_one_fault_in_all_answers_ends_rl_whatever_they_are_paid_and_random_rewards_do_not(
    files, tmp_path, monkeypatch
):
    class ByLength(LengthJudge):
        """As a penalty for length does."""

        def judge_many(self, items, draw=0):
            for problem, text, index in items:
                same = {"correct": False, "pass_rate": 0.0, "verdict": "WA", "reason": "no box"}
                reward = -1.0 - len(text) % 2
                yield Score(problem_id=problem.id, index=index, reward=reward, **same)

    monkeypatch.setattr(rl, "Judge", ByLength)
    same = {"mini_batch_prompts": 4, "steps": 5}
    with pytest.raises(RuntimeError, match=r"step 3: .* had the same fault of form\. .*: no box"):
        rl.run_rl(job_for(files, tmp_path / "ends", **same))
    assert rl.run_rl(job_for(files, tmp_path / "random", **same, random_reward=0.5))
