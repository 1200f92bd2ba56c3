"""LoRA: few weights are trained, whole weights are saved, and a kill loses nothing."""

import pytest
import torch

from configs.settings.training import LoRASettings, SFTSettings, TrainRuntime
from training import checkpoints, sft
from training.checkpoints import load_model, lora_config
from training.launch.jobs import SFTJob

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
        patch.setattr(checkpoints, "save_trained", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sft.run_sft(sft_job(files, tmp_path / "cut"))
    sft.run_sft(sft_job(files, tmp_path / "cut"))
    whole, cut = weights(tmp_path / "whole/checkpoint"), weights(tmp_path / "cut/checkpoint")
    assert all(torch.equal(w, cut[n]) for n, w in whole.items())


def test_spread_weights_refuse_it(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="not FSDP"):
        lora_config(LORA)
