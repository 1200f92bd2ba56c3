"""GPPOTrainer in the place of TRL's GRPOTrainer: what it takes, what it refuses when built, and the
private methods of TRL that it was written against."""

import asyncio
import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForSequenceClassification,
    training_args,
)
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from docs import hooks
from klear.training.models import load_model, load_tokenizer
from klear.training.rl.config import OPTIONS, GPPOConfig
from klear.training.rl.trainer import GPPOTrainer
from tests.training.conftest import by_row
from tests.training.test_gppo_trainer import logged

CHAT = [{"prompt": [{"role": "user", "content": f"Make {i} from 1, 2, 3."}]} for i in range(4)]
TEXTS = [{"prompt": f"Make {i} from 1, 2, 3."} for i in range(4)]
CPU = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True}


@pytest.fixture
def build(files, tmp_path):
    """`build(reward, rows, **changes)`: called by position, as GRPOTrainer may be."""

    def make(reward: Any, rows: Any = CHAT, *, config: dict[str, Any] | None = None, **more: Any):
        defaults = {
            "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
            "num_generations": 4, "steps_per_generation": 1, "max_completion_length": 6,
            "max_steps": 2, "logging_steps": 1, "save_strategy": "no", "learning_rate": 1e-3,
        }  # fmt: skip
        return GPPOTrainer(
            load_model(files["checkpoint"], dtype="float32"),
            reward,
            GPPOConfig(str(tmp_path / "out"), **CPU, **(defaults | (config or {}))),
            Dataset.from_list(rows) if isinstance(rows, list) else rows,
            more.pop("eval_dataset", None),
            load_tokenizer(files["checkpoint"]),
            **more,
        )

    return make


def length_of(text: Any) -> float:
    return float(len(text if isinstance(text, str) else text[-1]["content"]))


def long_is_good(completions: list[Any], **_: Any) -> list[float]:
    return [length_of(text) for text in completions]


async def slowly(completions: list[Any], **_: Any) -> list[float]:
    await asyncio.sleep(0)
    return long_is_good(completions)


@pytest.fixture
def reward_model(files, tmp_path) -> str:
    folder = tmp_path / "reward"
    tokenizer = load_tokenizer(files["checkpoint"])
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512, hidden_size=16, intermediate_size=16, num_hidden_layers=1, head_dim=8,
        num_attention_heads=2, num_key_value_heads=1, num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("rows", [CHAT, TEXTS], ids=["chat", "text"])
def test_rewards_of_every_kind_that_trl_takes_train(build, reward_model, rows):
    """Two functions that cancel, and one model as a folder and loaded."""
    model = Qwen3ForSequenceClassification.from_pretrained(reward_model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(reward_model)
    trainer, records = (
        build(
            [long_is_good, slowly, reward_model, model], rows,
            reward_processing_classes=[None, None, None, tokenizer],
            config={"reward_weights": [1.0, -1.0, 1.0, 1.0]},
        ),
        [],
    )  # fmt: skip
    trainer.on_rollout = records.append
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    assert any((p != before[n]).any() for n, p in trainer.model.named_parameters())
    (name,) = set(trainer.reward_func_names) - {"long_is_good", "slowly"}
    means = [record.rewards.mean().item() for record in records]
    assert means == pytest.approx([2 * m for m in logged(trainer, f"rewards/{name}/mean")])


def test_without_args_it_has_the_defaults_of_gppo_and_refuses_the_configuration_of_trl(
    files, monkeypatch, tmp_path
):
    """One of them, bf16, is refused where there is no GPU, as by TRL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_args, "is_torch_bf16_gpu_available", lambda: True)
    trainer = GPPOTrainer(str(files["checkpoint"]), long_is_good, None, Dataset.from_list(CHAT))
    assert (trainer.args.epsilon_high, trainer.args.policy_loss) == (0.28, "gppo")
    assert trainer.args.output_dir == "checkpoint-GPPO"
    assert trainer.args.max_steps == 3 * len(CHAT)  # epochs, of one group an update
    config = GRPOConfig(str(tmp_path), **CPU)
    with pytest.raises(TypeError, match="GRPOConfig: take GPPOConfig"):
        GPPOTrainer(str(files["checkpoint"]), long_is_good, config, Dataset.from_list(CHAT))


def test_an_evaluation_samples_scores_and_leaves_training_as_it_was(build):
    seen: list[int] = []

    def reward(completions, **_):
        seen.append(len(completions))
        return long_is_good(completions)

    config = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, "steps_per_generation": 2,
              "logging_steps": 2, "num_generations_eval": 2}  # fmt: skip
    trainer = build(reward, TEXTS, config=config, eval_dataset=Dataset.from_list(TEXTS[:2]))
    trainer.train()
    assert seen == [8, 4, 8, 4]  # rollouts of two updates, and two prompts twice after each
    assert len(logged(trainer, "eval_reward")) == 2
    assert not logged(trainer, "eval_loss")
    assert logged(trainer, "updates") == [2.0, 2.0]
    metrics = trainer.evaluate()
    assert metrics["eval_rewards/reward/mean"] == metrics["eval_reward"] > 0


def test_two_passes_over_a_rollout_are_twice_the_updates_on_the_same_answers(make_trainer, on_logp):
    """In the second the ratio to the policy that sampled is not 1, nor in its first update."""
    forwarded: list[tuple[tuple[int, ...], bool]] = []

    def look(trainer, model, micro, logp, _):
        if torch.is_grad_enabled():
            same = micro.old_logp is None or torch.equal(logp.detach(), micro.old_logp)
            forwarded.append((tuple(micro.input_ids.flatten().tolist()), same))

    on_logp(look)
    first = by_row(1.0, 0.0, 0.0, 0.0)
    trainer = make_trainer(first, num_iterations=2, max_steps=4, logging_steps=4,
                           micro_batch_tokens=10_000)  # fmt: skip
    trainer.train()
    ids = [row for row, _ in forwarded]
    assert len(ids) == 4
    assert ids[:2] == ids[2:]
    assert [same for _, same in forwarded] == [True, False, False, False]
    assert logged(trainer, "updates") == [4.0]


@pytest.mark.parametrize("shuffle", [True, False])
def test_prompts_come_in_their_order_unless_they_are_shuffled(build, shuffle):
    seen: list[str] = []

    def reward(prompts, completions, **_):
        seen.append(prompts[0])
        return long_is_good(completions)

    build(reward, TEXTS, config={"shuffle_dataset": shuffle, "max_steps": 4}).train()
    rows = [row["prompt"] for row in TEXTS]
    assert sorted(seen) == sorted(rows)
    assert (seen == rows) is not shuffle


def test_the_table_of_options_has_every_one_of_the_pinned_trl():
    options = set(GRPOConfig.__dataclass_fields__)
    shown = {line.split("`")[1] for line in hooks.trl_options().splitlines() if line[:3] == "| `"}
    assert shown == options
    own = set(GPPOConfig.__dataclass_fields__) - options
    assert set(OPTIONS["refused"]) | set(OPTIONS["mapped"]) <= options | own
    assert not set(OPTIONS["refused"]) & set(OPTIONS["mapped"])


OTHER = {
    "gradient_accumulation_steps": 2, "beta": 0.1, "ref_model_mixup_alpha": 0.5,
    "ref_model_sync_steps": 8, "vllm_importance_sampling_mode": "sequence_mask",
    "importance_sampling_level": "sequence", "loss_type": "grpo", "delta": 4.0,
    "scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum",
    "off_policy_mask_threshold": 0.5, "top_entropy_quantile": 0.2, "entropy_coef_min": 0.1,
    "entropy_coef_max": 0.5, "entropy_coef_delta": 0.1, "entropy_target": 0.5,
    "router_aux_loss_coef": 0.001, "max_tool_calling_iterations": 3, "label_smoothing_factor": 0.1,
    "torch_empty_cache_steps": 4, "train_sampling_strategy": "group_by_length",
    "eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch",
    "advantage": "std", "advantage_std": "biased",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(OPTIONS["refused"]) - {"deepspeed"}))
def test_an_option_that_the_table_refuses_is_refused_with_what_to_use(tmp_path, name):
    """Before deepspeed is, transformers looks for the package."""
    values, *instead = OPTIONS["refused"][name]
    other = not values[0] if isinstance(values[0], bool) else OTHER.get(name, {})
    with pytest.raises(ValueError, match=f"{name}=") as refusal:
        GPPOConfig(str(tmp_path), **CPU, **{name: other})
    assert all(text in str(refusal.value) for text in instead)


def stream() -> IterableDataset:
    return Dataset.from_list(CHAT).to_iterable_dataset()


def searches(query: str) -> str:
    """Search.

    Args:
        query: what for.
    """
    return query


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": stream()}, r"IterableDataset.*Dataset\.from_list"),
        ({"rows": None}, "NoneType: rollouts are planned"),
        ({"rows": [{"question": "2 + 2"}]}, "no column prompt"),
        ({"rows": [{**row, "image": "a.png"} for row in CHAT]}, "column image"),
        ({"eval_dataset": {"a": Dataset.from_list([{"text": "x"}])}}, "a has no column prompt"),
        ({"tools": [searches]}, "without tools"),
        ({"environment_factory": object}, "without environment_factory"),
        ({"config": {"max_steps": 3, "steps_per_generation": 2}}, "max_steps=3 must be a multiple"),
        ({"config": {"policy_loss": "ppo"}}, "clip_higher"),
        ({"config": {"use_vllm": True, "top_p": 0.95}}, "top_p=0.95: GPPOTrainer takes one of"),
        (
            {"config": {"steps_per_generation": 2, "num_generations": 8}},
            r"4 × 2 sequences .* must be multiples of num_generations = 8",
        ),
        ({"config": {"oversampling": 2}}, r"4 of a mini-batch / oversampling = 2"),
        (
            {"config": {"eval_strategy": "steps", "save_strategy": "best", "eval_steps": 3,
                        "steps_per_generation": 2}},
            "eval_steps=3 must be a multiple",
        ),
        ({"config": {"metric_for_best_model": "loss"}}, "eval_reward"),
    ],
)  # fmt: skip
def test_what_no_update_could_use_is_refused_when_it_is_built(build, wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build(long_is_good, **wrong)


SIGNATURES = tomllib.loads(Path(__file__).with_name("trl_signatures.toml").read_text())


def signature_of(method: Callable[..., Any]) -> str:
    parameters = inspect.signature(method).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_private_methods_of_trl_are_those_of_the_pinned_version(name):
    assert signature_of(getattr(GRPOTrainer, name)) == SIGNATURES[name], (
        f"GRPOTrainer.{name} changed with this version of trl or transformers. GPPOTrainer "
        "replaces or calls it: read the method, adapt training/rl/trainer.py, then "
        "update trl_signatures.toml."
    )


def test_every_private_method_that_is_replaced_is_pinned():
    own = {n for c in GPPOTrainer.__mro__[:1] for n in vars(c)}
    replaced = {n for n in own if callable(getattr(GRPOTrainer, n, None)) and n != "__init__"}
    assert {n for n in replaced if not n.startswith("__")} <= set(SIGNATURES)
