"""Checkpoints: only whole ones count."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.callbacks import StableCheckpoints
from training.checkpoints import saving
from training.checkpoints.saving import (
    check_layout,
    load_model,
    load_tokenizer,
    save_model,
    save_trained,
)
from training.layout import STABLE, latest


def checkpoint(folder, step, *, stable=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x")
    if stable:
        (path / STABLE).touch()
    return path


def state(step):
    return SimpleNamespace(is_world_process_zero=True, global_step=step)


def test_the_latest_checkpoint_is_the_newest_by_number_not_by_name(tmp_path):
    checkpoint(tmp_path, 90)
    newest = checkpoint(tmp_path, 100)
    assert latest(tmp_path) == newest


def test_a_half_written_checkpoint_is_never_used(tmp_path):
    whole = checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 20, stable=False)
    assert latest(tmp_path) == whole
    assert latest(tmp_path / "nowhere") is None


def test_half_written_checkpoints_are_removed_when_training_begins(tmp_path):
    whole, half = checkpoint(tmp_path, 10), checkpoint(tmp_path, 20, stable=False)
    StableCheckpoints(tmp_path).on_train_begin(None, state(0), None)  # type: ignore[arg-type]
    assert whole.exists()
    assert not half.exists()


def test_a_saved_checkpoint_becomes_stable_and_the_last_two_are_kept(tmp_path):
    for step in (1, 2):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 3, stable=False)
    StableCheckpoints(tmp_path).on_save(None, state(3), None)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3"]
    assert latest(tmp_path) == tmp_path / "checkpoint-3"


def test_a_saved_model_comes_back_whole_and_replaces_the_old_one(files, tmp_path):
    model, tokenizer = load_model(files["checkpoint"]), load_tokenizer(files["checkpoint"])
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "old").touch()
    save_model(model, tokenizer, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / "old").exists()
    assert not (tmp_path / "checkpoint.partial").exists()
    again = load_model(tmp_path / "checkpoint")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


@pytest.mark.parametrize("bf16", [True, False])
def test_weights_gathered_from_shards_are_saved_in_the_type_that_was_asked_for(
    files, tmp_path, monkeypatch, bf16
):
    model = load_model(files["checkpoint"], dtype="float32")
    gathered = {n: w + 1 for n, w in model.state_dict().items()}  # not what this process holds
    monkeypatch.setattr(saving, "gathered", lambda _: gathered.items())
    trainer: Any = SimpleNamespace(
        model=model,
        processing_class=load_tokenizer(files["checkpoint"]),
        is_fsdp_enabled=True,
        is_world_process_zero=lambda: True,
        args=SimpleNamespace(world_size=2),
        accelerator=SimpleNamespace(
            unwrap_model=lambda m: m,
            wait_for_everyone=lambda: None,
        ),
    )
    save_trained(trainer, tmp_path / "checkpoint", bf16=bf16)
    again = load_model(tmp_path / "checkpoint")  # the type that the folder names
    wanted = torch.bfloat16 if bf16 else torch.float32
    for name, weight in again.state_dict().items():
        assert weight.dtype == wanted
        assert torch.equal(weight, gathered[name].to(wanted))
    assert {w.dtype for w in model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("written", ["pytorch_model_fsdp_0", "global_step4", "model.safetensors"])
def test_a_checkpoint_of_another_layout_is_refused_with_the_fix(tmp_path, written):
    folder = tmp_path / "checkpoint-4"
    (folder / written).mkdir(parents=True)
    apart, spread = (SimpleNamespace(is_fsdp_enabled=fsdp) for fsdp in (False, True))
    whole = written == "model.safetensors"
    same: Any = apart if whole else spread
    other: Any = spread if whole else apart
    check_layout(same, folder)
    check_layout(other, None)
    with pytest.raises(ValueError, match=r"set topology\.sharding .* remove .* begin this stage"):
        check_layout(other, folder)
