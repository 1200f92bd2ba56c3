"""A base model of a few thousand parameters and trainers on it, shared by the training tests."""

import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.training import BaseModelSettings
from klear.eval.families import countdown
from klear.eval.records import Example, Problem
from klear.eval.records.tables import write_table

SMALL = BaseModelSettings(
    kind="random", hidden=32, layers=2, heads=2, kv_heads=1, head_dim=16, mlp=64, vocabulary=320
)
ALONE: Any = SimpleNamespace(rank=0, size=1, total=list, each=lambda value: [value], objects=list)
"""In the place of `Processes`: there is one."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def close(a: dict[str, Any], b: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Tensors by the names of their parameters."""
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], rtol=rtol, atol=atol)


def small_problems(count: int) -> list[Problem]:
    return list(countdown.generate(random.Random(1), count, "train", largest=8))


def small_examples(problems: list[Problem], each: int) -> list[Example]:
    """So many answers of the scripted teacher to every problem."""
    teacher, rng = EngineSettings(kind="scripted", max_lines=3), random.Random(2)
    return [
        Example(problem_id=p.id, index=i, domain=p.domain, source=p.source, prompt=p.prompt,
                response=countdown.teach(rng, p.prompt, teacher))
        for p in problems
        for i in range(each)
    ]  # fmt: skip


def small_files(folder: Path, problems: list[Problem], examples: list[Example]) -> dict[str, Path]:
    """examples.parquet, problems.parquet and the checkpoint of a small base model."""
    paths = {"examples": folder / "examples.parquet", "problems": folder / "problems.parquet"}
    write_table(paths["examples"], Example, examples)
    write_table(paths["problems"], Problem, problems)
    return {**paths, "checkpoint": small_base(folder, paths["examples"], SMALL)}


def small_base(folder: Path, examples: Path, settings: BaseModelSettings) -> Path:
    """The checkpoint of a base model."""
    from klear.training.base import create_base
    from klear.training.launch.jobs import BaseJob

    create_base(BaseJob(out=folder, examples=examples, settings=settings))
    return folder / "checkpoint"


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    return small_problems(24)


@pytest.fixture(scope="session")
def examples(problems: list[Problem]) -> list[Example]:
    return small_examples(problems, 2)


@pytest.fixture(scope="session")
def files(tmp_path_factory, problems, examples) -> dict[str, Path]:
    return small_files(tmp_path_factory.mktemp("training"), problems, examples)


@pytest.fixture(scope="session")
def vllm_checkpoint(tmp_path_factory, files) -> Path:
    """vLLM on CPU has no kernel for the heads of the other small model."""
    sizes = {"hidden": 64, "head_dim": 32, "max_positions": 256, "initializer_range": 0.3}
    settings = SMALL.model_copy(update=sizes)
    return small_base(tmp_path_factory.mktemp("vllm"), files["examples"], settings)


def small_trainer(
    checkpoint: str | Path, out: Path, reward: Any, *, prompts: int = 4, rollouts: int = 4,
    mini_batch: int = 2, steps: int = 1, rollout_func: Any = None, train_dataset: Any = None,
    peft_config: Any = None,
    **config: Any,
):  # fmt: skip
    """GPPOTrainer on a small model, with so many prompts a device in a rollout and in an update.

    `rollout_func` replaces sampling; other keywords are GPPOConfig's.
    """
    from klear.training import render
    from klear.training.models import load_model, load_tokenizer
    from klear.training.rl.config import GPPOConfig
    from klear.training.rl.train import roll_out
    from klear.training.rl.trainer import GPPOTrainer

    updates = prompts // mini_batch
    rows = [{"prompt": render.conversation(f"Make {i} from 1, 2, 3.")} for i in range(8)]
    defaults = {
        "output_dir": str(out), "per_device_train_batch_size": mini_batch * rollouts,
        "steps_per_generation": updates, "num_generations": rollouts,
        "max_steps": steps * updates, "logging_steps": updates, "max_completion_length": 12,
        "learning_rate": 1e-3, "lr_scheduler_type": "constant", "micro_batch_tokens": 256,
        "bf16": False, "use_cpu": True, "gradient_checkpointing": False, "report_to": [],
        "disable_tqdm": True, "save_strategy": "no", "shuffle_dataset": False,
    }  # fmt: skip
    return GPPOTrainer(
        model=load_model(checkpoint, dtype="float32"),
        reward_funcs=reward,
        args=GPPOConfig(**(defaults | config)),
        train_dataset=train_dataset or Dataset.from_list(rows),
        processing_class=load_tokenizer(checkpoint),  # type: ignore[arg-type]
        rollout_func=rollout_func or partial(roll_out, batch_size=256),
        peft_config=peft_config,
    )


def by_row(*rewards: Any):
    """A reward function that pays each group the same list, whatever was answered."""

    def pay(completions: list[Any], **_: Any) -> list[Any]:
        return [rewards[i % len(rewards)] for i in range(len(completions))]

    return pay


@pytest.fixture
def on_logp(monkeypatch):
    """`on_logp(look)`: `look(trainer, model, micro, logp, entropy)` after every forward pass."""
    from klear.training.rl.trainer import GPPOTrainer

    original = GPPOTrainer._logp

    def watch(look):
        def looked_at(self, model, micro):
            logp, entropy = original(self, model, micro)
            look(self, model, micro, logp, entropy)
            return logp, entropy

        monkeypatch.setattr(GPPOTrainer, "_logp", looked_at)

    return watch


@pytest.fixture
def make_trainer(files, tmp_path):
    """`make(reward, **changes)`: `small_trainer` on the small model."""
    return partial(small_trainer, files["checkpoint"], tmp_path / "trainer")


def gradients_of(trainer: Any) -> list[dict[str, torch.Tensor]]:
    """Trains, and returns the gradients of every update, by parameter, on the CPU."""
    from transformers import TrainerCallback

    updates: list[dict[str, torch.Tensor]] = []

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **_):
            named = trainer.model.named_parameters()
            updates.append(
                {n: p.grad.detach().cpu().clone() for n, p in named if p.grad is not None}
            )

    trainer.add_callback(Keep())
    trainer.train()
    return updates


@pytest.fixture
def gradients():
    return gradients_of
