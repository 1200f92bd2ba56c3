"""Adapters in SFT and RL: what is trained, what leaves the stage, and how it resumes."""

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from klear.configs.loading import load_profile
from klear.configs.settings.base import key_of
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.training import LoraSettings, RLSettings, SFTSettings, TrainRuntime
from klear.training import models, sft
from klear.training.launch.jobs import RLJob, SFTJob
from klear.training.launch.result_files import CHECKPOINTS, SCRATCH, latest
from klear.training.rl import train as rl
from tests.cluster.fixed_answers import LengthJudge
from tests.training.conftest import by_row, gradients_of
from tests.training.killed_child import RL, SFT

LORA = LoraSettings(rank=4, alpha=8)
SFT_LORA = SFT.model_copy(update={"optimizer": "adamw", "lora": LORA, "epochs": 1})
RL_LORA = RL.model_copy(update={"lora": LORA, "keep_every": 2})


@pytest.fixture(autouse=True)
def rewards_by_length(monkeypatch):
    monkeypatch.setattr(rl, "Judge", LengthJudge)


def job(kind: str, files: dict[str, Any], out: Any, **changes: Any) -> Any:
    if kind == "sft":
        s = SFT_LORA.model_copy(update=changes)
        words = {"base": files["checkpoint"], "examples": files["examples"], "settings": s}
        return SFTJob(out=out, seed=3, **words)
    s = RL_LORA.model_copy(update=changes)
    words = {"checkpoint": files["checkpoint"], "problems": files["problems"], "settings": s}
    return RLJob(out=out, seed=3, **words)


def run(job: Any) -> None:
    sft.run_sft(job) if isinstance(job, SFTJob) else rl.run_rl(job)


def run_paid_by_length(job: Any) -> None:
    """`run` for a process of its own, which has no fixtures."""
    with mock.patch.object(rl, "Judge", LengthJudge):
        run(job)


def weights(folder: Any) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_checkpoint_is_the_base_with_the_adapters_merged_also_after_a_kill(
    files, tmp_path, kind, monkeypatch
):
    """In bf16 arithmetic with checkpointing; by hand, from the adapters of the last training
    checkpoint: W + α/r·BA, rounded once, to bf16. A stage that is killed ends with the same bits.
    """
    model = models.load_model(files["checkpoint"], dtype="bfloat16")
    start = files | {"checkpoint": tmp_path / "bf16"}
    models.save_model(model, models.load_tokenizer(files["checkpoint"]), start["checkpoint"])
    runtime = TrainRuntime(precision="bf16", threads=1, micro_batch_tokens=1024)
    undisturbed, killed = (
        job(kind, start, tmp_path / n, runtime=runtime) for n in ("whole", "killed")
    )
    loaded, _ = models.load_to_train(start["checkpoint"], undisturbed.settings)
    assert loaded.dtype == torch.bfloat16
    run(undisturbed)
    base, merged = weights(start["checkpoint"]), weights(undisturbed.out / "checkpoint")
    last = latest(undisturbed.out / SCRATCH / CHECKPOINTS)
    assert last
    adapter = load_file(last / "adapter_model.safetensors")
    assert {weight.dtype for weight in adapter.values()} == {torch.float32}
    assert base.keys() == merged.keys()
    moved = 0
    for name, weight in base.items():
        own = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        expected = weight.float()
        if f"{own}A.weight" in adapter:
            a, b = adapter.pop(f"{own}A.weight"), adapter.pop(f"{own}B.weight")
            expected = expected + LORA.alpha / LORA.rank * (b @ a)
            moved += bool((merged[name] != weight).any())
        assert torch.equal(merged[name], expected.bfloat16())
    assert moved == 2 * 7  # every linear layer of two blocks
    assert not adapter
    lineage = json.loads((undisturbed.out / "checkpoint/lineage.json").read_text())
    assert lineage[-1]["settings"]["lora.rank"] == "4"
    if kind == "rl":
        assert weights(undisturbed.out / "kept/step-00002").keys() == base.keys()

    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == (5 if kind == "sft" else 10):
                raise KeyboardInterrupt

    module = sft if kind == "sft" else rl
    original = module.build_trainer

    def build(*args: Any) -> Any:
        trainer = original(*args)
        trainer.callback_handler.callbacks.insert(0, Dies())
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(module, "build_trainer", build)
        with pytest.raises(KeyboardInterrupt):
            run(killed)
    assert latest(killed.out / SCRATCH / CHECKPOINTS)
    run(killed)
    resumed = weights(killed.out / "checkpoint")
    assert all(torch.equal(weight, resumed[name]) for name, weight in merged.items())


def test_adapters_alone_are_trained_and_samplers_see_them_merged(make_trainer, files, monkeypatch):
    """vLLM, too, into which TRL merges them in place, and subtracts them again: no rounding stays
    in the weights."""
    model = models.load_model(files["checkpoint"], dtype="float32")
    base = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = make_trainer(by_row(1.0, 0.0, 0.0, 0.0), peft_config=models.adapters(model, LORA))
    updates = gradients_of(trainer)
    assert updates
    assert all(".lora_" in name for update in updates for name in update)
    policy = models.policy_on_each(trainer)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        exact, merged = (m.eval()(input_ids=ids).logits for m in (trainer.model, policy))
        assert not torch.equal(exact, model.eval()(input_ids=ids).logits)
    torch.testing.assert_close(exact, merged, rtol=0, atol=1e-5)
    own = models.base_of(trainer.model).state_dict().items()
    frozen = {name.replace(".base_layer", ""): weight for name, weight in own}
    assert all(torch.equal(frozen[name], weight) for name, weight in base.items())
    before = {n: w.clone() for n, w in trainer.model.state_dict().items()}
    sent: list[dict[str, torch.Tensor]] = []

    def sync() -> None:
        trainer.model.merge_adapter()
        sent.append({n: w.clone() for n, w in trainer.model.state_dict().items()})
        trainer.model.unmerge_adapter()

    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=sync)
    monkeypatch.setattr(GRPOTrainer, "_generate", lambda *_: "answers")
    assert [trainer._generate([]) for _ in range(2)] == ["answers"] * 2
    assert len(sent) == 1  # of one step
    trainer.vllm_generation._llm_weights_sleeping = True
    trainer._generate([])
    assert len(sent) == 2  # what sleeps has forgotten them
    assert any(not torch.equal(sent[0][n], w) for n, w in before.items())
    assert all(torch.equal(trainer.model.state_dict()[n], w) for n, w in before.items())


@pytest.mark.system
def test_vllm_beside_the_trainer_samples_from_the_merged_policy(
    files, vllm_checkpoint, tmp_path, monkeypatch
):
    """The second rollout's probabilities are those of adapters that were trained by the first."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # as jobs have it: not most of the memory
    changes = {"engine": "vllm_colocate", "steps": 2, "learning_rate": 1e-2, "warmup_steps": 0,
               "keep_every": 0}  # fmt: skip
    job_of_rl = job("rl", files | {"checkpoint": vllm_checkpoint}, tmp_path, **changes)
    # vLLM looks into all that is imported, and other tests import what may only be touched in Flask
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(run_paid_by_length, job_of_rl).result()
    lines = map(json.loads, (tmp_path / "logs/metrics.jsonl").read_text().splitlines())
    differences = [line["metrics"]["mismatch/logp_difference"] for line in lines]
    assert len(differences) == 2
    assert max(differences) < 1e-4
    base, trained = weights(vllm_checkpoint), weights(tmp_path / "checkpoint")
    assert any(not torch.equal(trained[name], weight) for name, weight in base.items())


def test_settings_without_adapters_have_the_key_that_they_had():
    for settings in (SFTSettings(), RLSettings()):
        assert json.loads(key_of(settings))["lora"] is None
    (key,) = {json.dumps(json.loads(key_of(SFTSettings(lora=LORA)))["lora"], sort_keys=True)}
    assert key == '{"alpha": 8.0, "dropout": 0.0, "rank": 4, "targets": []}'


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sft.lora.rank=8", "sft.optimizer=muon"], "with lora take adamw"),
        (["rl_math.lora.dropout=0.1"], "it is for SFT"),
        (["sft.lora.targets=[lm_head]"], "lm_head is for no adapter"),
        (["sft.lora.rank=0"], "rank"),
        (["sft.lora.rank=8", "topology.nodes=2"], "sft.lora is for weights that are not sharded"),
    ],
)
def test_what_adapters_cannot_go_with_is_refused_at_once(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_profile("single_gpu", overrides)
    load_profile("single_gpu", ["sft.lora.rank=8", "topology.nodes=2", "topology.sharding=none"])


def test_a_target_that_the_model_lacks_is_refused_with_its_layers(files):
    model = models.load_model(files["checkpoint"])
    with pytest.raises(ValueError, match=r"\['c_attn'\] are none of its layers.*q_proj"):
        models.adapters(model, LoraSettings(targets=("q_proj", "c_attn")))
