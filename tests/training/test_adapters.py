"""LoRA: few weights are trained, whole weights are saved, and a kill loses nothing."""

import pytest
import torch

from configs.settings.training import LoRASettings, RLSettings, SFTSettings, TrainRuntime
from training import sft
from training.checkpoints import saving
from training.checkpoints.saving import load_model, load_tokenizer, lora_config
from training.launch.jobs import RLJob, SFTJob
from training.packing import rl_schedule
from training.rl import train as rl

RUNTIME = TrainRuntime(bf16=False, gradient_checkpointing=False, threads=1, micro_batch_tokens=1024)
LORA = LoRASettings(rank=4, alpha=8)


def weights(folder):
    return dict(load_model(folder, dtype="float32").named_parameters())


def sft_job(files, out, **changes):
    few = {"epochs": 2, "learning_rate": 1e-2, "min_learning_rate": 1e-3, "batch_tokens": 512,
           "max_length": 256, "checkpoint_steps": 3, "lora": LORA, "runtime": RUNTIME}  # fmt: skip
    return SFTJob(out=out, base=files["checkpoint"], examples=files["examples"],
                  settings=SFTSettings(**(few | changes)))  # fmt: skip


def test_adapters_are_merged_into_a_checkpoint_like_any_other(files, tmp_path):
    sft.run_sft(sft_job(files, tmp_path))
    before, after = weights(files["checkpoint"]), weights(tmp_path / "checkpoint")
    assert before.keys() == after.keys()
    changed = {n for n, w in after.items() if not torch.equal(w, before[n])}
    assert changed == {n for n in before if "_proj" in n}  # every linear layer but the head
    for name in changed:
        rank = torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3)
        assert 1 <= rank <= LORA.rank
    assert not list((tmp_path / "checkpoint").glob("adapter*"))


def test_a_killed_lora_run_continues_to_the_same_bits(files, tmp_path, monkeypatch):
    sft.run_sft(sft_job(files, tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(saving, "save_trained", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sft.run_sft(sft_job(files, tmp_path / "cut"))
    sft.run_sft(sft_job(files, tmp_path / "cut"))
    whole, cut = weights(tmp_path / "whole/checkpoint"), weights(tmp_path / "cut/checkpoint")
    assert all(torch.equal(w, cut[n]) for n, w in whole.items())


def test_rl_trains_adapters_only(files, tmp_path, problems):
    s = RLSettings(steps=1, prompts_per_step=4, rollouts_per_prompt=4, mini_batch_prompts=4,
                   warmup_steps=0, learning_rate=1e-2, max_tokens=16, engine="transformers",
                   lora=LORA, runtime=RUNTIME)  # fmt: skip
    job = RLJob(
        out=tmp_path, checkpoint=files["checkpoint"], problems=files["problems"], settings=s
    )
    trainer = rl.build_trainer(
        job,
        load_model(files["checkpoint"], dtype="float32"),
        load_tokenizer(files["checkpoint"]),
        problems,
        lambda completions, **_: [float(i % 2) for i in range(len(completions))],
        rl_schedule(s, 1),
        tmp_path / "c",
    )
    trained = [n for n, p in trainer.model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in n for n in trained)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert moved <= set(trained)


def test_no_lora_is_the_default_and_muon_refuses_it(files, tmp_path):
    assert lora_config(None) is None
    assert SFTSettings().lora is None
    assert RLSettings().lora is None
    with pytest.raises(ValueError, match="use adamw with lora"):
        sft.run_sft(sft_job(files, tmp_path, optimizer="muon"))


def test_spread_weights_refuse_it(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="not FSDP"):
        lora_config(LORA)
