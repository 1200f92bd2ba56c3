"""Checkpoints: only whole ones count."""

from types import SimpleNamespace

import torch

from training.checkpoints import (
    STABLE,
    StableCheckpoints,
    latest,
    load_model,
    load_tokenizer,
    save_model,
)


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
