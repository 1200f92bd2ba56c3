"""Checkpoints: only whole ones count, and each says where it comes from."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from configs.settings.training import BaseModelSettings, RLSettings, SFTSettings, TrainRuntime
from training.callbacks import StableCheckpoints
from training.checkpoints import saving
from training.checkpoints.base import lineage_of
from training.checkpoints.lineage import model_card, read_lineage, step_of, write_lineage
from training.checkpoints.saving import (
    check_layout,
    load_model,
    load_tokenizer,
    save_model,
    save_trained,
)
from training.launch.jobs import BaseJob
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


@pytest.mark.parametrize("written", ["pytorch_model_fsdp_0", "model.safetensors"])
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


STEPS = [
    step_of("base", "Qwen/Qwen3-8B-Base@main", 0, BaseModelSettings()),
    step_of("sft", "the step before", 1, SFTSettings()),
    step_of("rl math", "the step before", 2, RLSettings(loss="cispo")),
]


def header(card):
    return yaml.safe_load(card.split("---")[1])


def test_the_card_lists_every_step_and_names_the_base_model():
    card = model_card(STEPS)
    assert header(card)["base_model"] == "Qwen/Qwen3-8B-Base"
    assert header(card)["library_name"] == "transformers"
    for n, words in enumerate(["base", "sft", "rl math"], 1):
        assert f"| {n} | {words} |" in card
    assert "loss cispo" in card


def test_a_random_base_model_is_no_hub_id():
    settings = BaseModelSettings(kind="random")
    step = step_of("base", "random weights, seed 0", 0, settings)
    assert "base_model" not in header(model_card([step]))


def test_lineage_survives_its_file_and_holds_all_settings_but_runtime(tmp_path):
    write_lineage(tmp_path, STEPS)
    assert read_lineage(tmp_path) == STEPS
    flat = json.loads((tmp_path / "lineage.json").read_text())[2]["settings"]
    assert flat["mini_batch_prompts"] == "16"
    assert flat["judge.reward.code"] == "soft"
    assert not any("runtime" in name for name in flat)
    other = RLSettings(loss="cispo", runtime=TrainRuntime(threads=3))
    assert step_of("rl math", "the step before", 2, other) == STEPS[2]


def test_a_checkpoint_of_another_origin_is_named_without_its_folder(tmp_path):
    (step,) = read_lineage(tmp_path)
    assert step.start == tmp_path.name
    (step,) = read_lineage("Kwai-Klear/Klear-Reasoner-8B-SFT")
    assert step.start == "Kwai-Klear/Klear-Reasoner-8B-SFT"


def test_a_local_model_taken_up_again_keeps_its_history(files, tmp_path):
    model, tokenizer = load_model(files["checkpoint"]), load_tokenizer(files["checkpoint"])
    save_model(model, tokenizer, tmp_path / "released", STEPS[:2])
    job = BaseJob(
        out=tmp_path, settings=BaseModelSettings(model=str(tmp_path / "released"), stands_for="sft")
    )
    steps = lineage_of(job)
    assert [s.stage for s in steps] == ["base", "sft", "base"]
    assert steps[2].settings["model"] == "released"
    assert str(tmp_path) not in model_card(steps)
