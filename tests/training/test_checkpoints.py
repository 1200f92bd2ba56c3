"""Checkpoints: only whole ones count, and each says where it comes from."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from klear.configs.settings.training import BaseModelSettings, RLSettings, SFTSettings, TrainRuntime
from klear.training.callbacks import StableCheckpoints
from klear.training.checkpoints import check_layout, read_lineage, step_of, write_lineage
from klear.training.layout import STABLE, latest


def checkpoint(folder, step, *, stable=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x")
    if stable:
        (path / STABLE).touch()
    return path


def state(step):
    return SimpleNamespace(is_world_process_zero=True, global_step=step)


def test_a_saved_checkpoint_is_marked_and_of_the_marked_ones_the_last_two_are_kept(tmp_path):
    for step in (1, 2):
        checkpoint(tmp_path, step)
    for step in (3, 9):  # a kill came before 9 was whole
        checkpoint(tmp_path, step, stable=False)
    StableCheckpoints().on_save(SimpleNamespace(output_dir=tmp_path), state(3), None)  # type: ignore[arg-type]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"checkpoint-{n}" for n in (2, 3, 9)]
    assert latest(tmp_path) == tmp_path / "checkpoint-3"


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


def test_the_card_lists_every_step_and_names_the_base_model_of_the_hub(tmp_path):
    own = step_of("base", "random weights, seed 0", 0, BaseModelSettings(kind="random"))
    for steps, model in ((STEPS, "Qwen/Qwen3-8B-Base"), ([own], None)):
        write_lineage(tmp_path, steps)
        card = (tmp_path / "README.md").read_text()
        assert yaml.safe_load(card.split("---")[1]).get("base_model") == model
        for n, step in enumerate(steps, 1):
            assert f"| {n} | {step.stage} |" in card


def test_lineage_survives_its_file_and_holds_all_settings_but_runtime(tmp_path):
    write_lineage(tmp_path, STEPS)
    assert read_lineage(tmp_path) == STEPS
    flat = json.loads((tmp_path / "lineage.json").read_text())[2]["settings"]
    assert flat["mini_batch_prompts"] == "16"
    assert flat["judge.reward.code"] == "soft"
    assert not any("runtime" in name for name in flat)
    other = RLSettings(loss="cispo", runtime=TrainRuntime(threads=3))
    assert step_of("rl math", "the step before", 2, other) == STEPS[2]
