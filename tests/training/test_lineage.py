"""A checkpoint says where it comes from, to programs and to people, and nothing of the machine."""

import json

import yaml

from configs.settings.training import BaseModelSettings, RLSettings, SFTSettings, TrainRuntime
from training.checkpoints.base import lineage_of
from training.checkpoints.lineage import model_card, read_lineage, step_of, write_lineage
from training.checkpoints.saving import load_model, load_tokenizer, save_model
from training.launch.jobs import BaseJob

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


def test_a_checkpoint_holds_what_transformers_and_vllm_need(files):
    names = {p.name for p in files["checkpoint"].iterdir()}
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
            "tokenizer_config.json", "README.md", "lineage.json"} <= names  # fmt: skip
    tokenizer = load_tokenizer(files["checkpoint"])
    assert tokenizer.chat_template
    generation = json.loads((files["checkpoint"] / "generation_config.json").read_text())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert generation["eos_token_id"] == end
    assert generation["pad_token_id"] == tokenizer.pad_token_id != end
