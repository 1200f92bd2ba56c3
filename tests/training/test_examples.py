"""The scripts of docs/examples and the snippets and commands of both READMEs, at toy size."""

import asyncio
import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from klear.configs.settings.loss import GPPO, ClipHigher
from klear.training.models import load_model, load_tokenizer
from tests.training.conftest import by_row, close

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
PROBLEM = (EXAMPLES / "problems.jsonl").read_text().splitlines()[0]
RIGHT, WRONG = "<think>2 + 3.</think>\\boxed{5}", "<think>2 + 3.</think>\\boxed{6}"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_gppo_in_a_trl_script_learns(example, tmp_path):
    threads = torch.get_num_threads()
    rewards = example("gppo_in_trl").main(str(tmp_path), steps=24)
    torch.set_num_threads(threads)
    assert len(rewards) == 6
    assert rewards[-1] > rewards[0] + 0.1


def fixed(prompts, trainer):
    """Answers of 3 to 11 tokens in the place of sampled ones."""
    encode = trainer.processing_class.apply_chat_template
    ids = encode(prompts, add_generation_prompt=True, return_dict=False)
    answers = [[70 + (7 * i + j) % 90 for j in range(3 + i % 9)] for i in range(len(prompts))]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}


def test_a_loss_in_the_trainer_of_trl_has_the_gradient_of_ours(
    example, files, make_trainer, gradients, tmp_path
):
    """Two updates of one rollout; the first goes so far that the second is clipped."""
    pay, second = by_row(1.0, 0.0, 0.5, 0.0), []
    same = {"num_iterations": 2, "max_steps": 2, "max_grad_norm": 0.0, "optim": "sgd"}
    same |= {"learning_rate": 3.0, "lr_scheduler_type": "constant", "beta": 0.0}
    theirs = {"per_device_train_batch_size": 16, "num_generations": 4, "steps_per_generation": 1}
    theirs |= {"scale_rewards": False, "max_completion_length": 12, "shuffle_dataset": False}
    cpu = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}
    for loss in (GPPO(), ClipHigher()):
        plain = {"policy_loss": loss.name, "advantage": "none", "lm_weight": 0.0}
        options = {**plain, **same, "logging_steps": 2, "rollout_func": fixed}
        ours = make_trainer(pay, prompts=4, mini_batch=4, **options)
        stock = example("loss_in_grpo_trainer").GPPOLossTrainer(
            model=load_model(files["checkpoint"], dtype="float32"),
            reward_funcs=pay,
            args=GRPOConfig(str(tmp_path / "stock"), **same, **theirs, **cpu),
            train_dataset=ours.train_dataset,
            processing_class=load_tokenizer(files["checkpoint"]),
            rollout_func=fixed,
        )
        stock.policy_loss = loss
        for update, of_stock in zip(gradients(ours), gradients(stock), strict=True):
            close(update, of_stock, rtol=1e-4, atol=1e-6)
        second.append(update)
        assert ours.state.log_history[0]["ratio/log_max"] > 0.3
    largest = max((second[0][n] - second[1][n]).abs().max() for n in second[0])
    assert largest > 1e-3, "no token was clipped"


@pytest.mark.parametrize(
    ("page", "short"),
    [("README.md", " max_completion_length=16,"), ("training/README.md", "")],  # which says so
)
def test_the_snippet_of_the_readme_trains(files, tmp_path, monkeypatch, page, short):
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    small = f'"out", use_cpu=True, bf16=False,{short}'
    for theirs, ours in (("Qwen/Qwen3-0.6B", str(files["checkpoint"])), ('"out",', small)):
        assert theirs in snippet
        snippet = snippet.replace(theirs, ours)
    exec(snippet, {})


def test_the_judge_is_a_reward_function_of_trl(example, files, tmp_path):
    judged = example("judge_in_trl").judged
    texts = [[{"role": "assistant", "content": text}] for text in (RIGHT, WRONG)]
    assert judged(texts, [PROBLEM] * 2) == [1.0, -1.0]
    row = {"prompt": [{"role": "user", "content": "What is 2 + 3?"}], "problem": PROBLEM}
    size = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8}
    cpu = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}
    trainer = GRPOTrainer(
        model=load_model(files["checkpoint"], dtype="float32"),
        reward_funcs=judged,
        args=GRPOConfig(str(tmp_path), max_steps=1, logging_steps=1, **size, **cpu),
        train_dataset=Dataset.from_list([row] * 4),
        processing_class=load_tokenizer(files["checkpoint"]),
    )
    trainer.train()
    assert trainer.state.log_history[0]["reward"] == -1.0  # a model that knows nothing


def test_the_judge_is_a_reward_function_of_verl_and_an_environment_of_prime_rl(
    example, monkeypatch
):
    """Without its library verifiers, which is in no lock: a stand-in keeps what it is given."""
    score = example("judge_in_verl").compute_score
    assert score("mine", RIGHT, PROBLEM, extra_info={}) == 1.0
    assert score(data_source="mine", solution_str=WRONG, ground_truth=PROBLEM) == -1.0
    library = ModuleType("verifiers")
    library.Rubric = library.SingleTurnEnv = SimpleNamespace
    monkeypatch.setitem(sys.modules, "verifiers", library)
    environment = example("judge_in_prime_rl").load_environment(str(EXAMPLES / "problems.jsonl"))
    row, (judged,) = environment.dataset[0], environment.rubric.funcs
    assert row["prompt"][-1]["content"] == json.loads(PROBLEM)["prompt"]
    answered = [{"role": "assistant", "content": RIGHT}]
    assert asyncio.run(judged(completion=answered, answer=row["answer"])) == 1.0


TRAINING = (ROOT / "training/README.md").read_text()
COMMANDS = re.findall(r"^python (tests/bench/bench_rl_step\.py)(.*)$", TRAINING, re.M)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/bench")
    return importlib.import_module("bench_rl_step")


def test_the_rl_step_measures_both_trainers_and_finds_one_gradient(bench, monkeypatch):
    monkeypatch.setattr(bench, "in_a_process", lambda work, *arguments: work(*arguments))
    line = bench.compare(bench.parsed(["--context", "24", "--steps", "1", "--budget", "512"]))
    assert json.loads(json.dumps(line)) == line
    assert line["ours"] > 0
    assert line["ratio"] == pytest.approx(line["ours"] / line["peer"][bench.PEER], rel=0.05)
    assert "answers to 24 tokens, 8 of 20 groups dead, model tiny on cpu" in line["setup"]
    assert float(line["setup"].rpartition(" ")[2]) < 1e-4


@pytest.mark.parametrize("words", [words for _, words in COMMANDS])
def test_the_commands_of_the_readme_are_understood(bench, words):
    options = bench.parsed(shlex.split(words))
    assert options.device == ("cuda" if "--device cuda" in words else "cpu")
