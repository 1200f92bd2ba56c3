"""The small base model, its tokenizer, and which checkpoints count."""

import shutil
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from accelerate import PartialState
from huggingface_hub import constants
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import Linear

from klear.configs.settings.training import BaseModelSettings, RLSettings, SFTSettings, TrainRuntime
from klear.training.base import create_base, small_tokenizer
from klear.training.callbacks import StableCheckpoints
from klear.training.launch.jobs import BaseJob
from klear.training.launch.result_files import STABLE, latest
from klear.training.models import (
    check_layout,
    load_model,
    load_tokenizer,
    read_lineage,
    step_of,
    write_lineage,
)
from klear.training.render import ChatFormat
from tests.training.conftest import SMALL

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_same_seed_makes_the_same_qwen3_of_the_size_that_was_set(files, tmp_path):
    """`files` has the same base, made before."""
    job = BaseJob(out=tmp_path, examples=files["examples"], settings=SMALL)
    result, folder = create_base(job), tmp_path / "checkpoint"
    one, other = (
        {p.name: p.read_bytes() for p in f.iterdir()} for f in (folder, files["checkpoint"])
    )
    assert one == other
    assert {"model.safetensors", "tokenizer.json", "generation_config.json"} <= one.keys()
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert model.config.model_type == "qwen3"
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (32, 2)
    assert result["vocabulary"] == len(tokenizer) <= 320 <= model.config.vocab_size
    assert tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id) == "<|im_end|>"


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=40))
@example("<think>\n12+34=46\n</think>")
def test_no_text_is_unknown_to_the_tokenizer_and_numbers_of_two_digits_are_one_token(text):
    chat = small_chat()
    assert len(chat.tokenizer("12", add_special_tokens=False)["input_ids"]) == 1
    text = text.replace("<|", "< |")  # the names of special tokens are not text
    assert chat.text(chat.response_ids([text])[0]) == text


@cache
def small_chat() -> ChatFormat:
    texts = [f"{i}+{j}={i + j}" for i in range(100) for j in range(0, 100, 7)]
    return ChatFormat.from_template(small_tokenizer(texts, 400))


def test_a_common_line_is_one_token_and_a_word_takes_its_line_break_along():
    read = "a,b=map(int,input().split())\n"
    texts = [f"user\nTry {i}.\nassistant\n{read}total = {i}\nprint(total)\n" for i in range(10)]
    words, lines = (small_tokenizer(texts, 380, tokens) for tokens in ("words", "lines"))
    pieces = lines.convert_ids_to_tokens(lines(texts[3])["input_ids"])
    assert pieces[0] == "user\n"
    assert read in pieces
    assert len(pieces) < len(words(texts[3])["input_ids"]) / 2
    for text in [*texts, "a line\nthat no chat has = 12\n", "superuser\n"]:
        assert lines.decode(lines(text)["input_ids"]) == text


def test_training_starts_from_any_local_checkpoint(files, tmp_path):
    """RL, say, from a released SFT model: the same weights, prepared for chat, with its history,
    which names no folder."""
    settings = BaseModelSettings(model=str(files["checkpoint"]), stands_for="sft")
    create_base(BaseJob(out=tmp_path, settings=settings))
    before, after = load_model(files["checkpoint"]), load_model(tmp_path / "checkpoint")
    for name, weight in before.state_dict().items():
        assert torch.equal(weight, after.state_dict()[name])
    assert load_tokenizer(tmp_path / "checkpoint").chat_template
    steps = read_lineage(tmp_path / "checkpoint")
    assert [s.stage for s in steps] == ["base", "base"]
    assert steps[1].start == steps[1].settings["model"] == "checkpoint"


def test_the_lineage_names_the_commit_that_main_was(files, tmp_path, monkeypatch):
    """The model lies in the cache of the hub as a download leaves it."""
    cached = tmp_path / "hub/models--org--tiny"
    shutil.copytree(files["checkpoint"], cached / "snapshots" / COMMIT)
    (cached / "snapshots" / COMMIT / "lineage.json").unlink()
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    settings = BaseModelSettings(model="org/tiny", positions=1_024)
    create_base(BaseJob(out=tmp_path / "out", settings=settings))
    (step,) = read_lineage(tmp_path / "out/checkpoint")
    assert (step.start, step.settings["revision"]) == (f"org/tiny@{COMMIT}", "main")
    card = (tmp_path / "out/checkpoint/README.md").read_text()
    assert "base_model: org/tiny\n" in card
    assert load_model(tmp_path / "out/checkpoint").config.max_position_embeddings == 1_024


def saved(folder, step, *, stable=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x")
    if stable:
        (path / STABLE).touch()
    return path


def test_a_saved_checkpoint_is_marked_and_of_the_marked_ones_the_last_two_are_kept(
    tmp_path, monkeypatch
):
    """Once every process has written its part."""
    saved(tmp_path, 0)  # an older version wrote it
    assert latest(tmp_path) is None
    for step in (1, 2):
        saved(tmp_path, step)
    for step in (3, 9):  # a kill came before 9 was whole
        saved(tmp_path, step, stable=False)
    third: Any = SimpleNamespace(is_world_process_zero=True, global_step=3)
    arguments: Any = SimpleNamespace(output_dir=tmp_path)
    waits: list[bool] = []
    wait = lambda _: waits.append((tmp_path / "checkpoint-3" / STABLE).exists())  # noqa: E731
    monkeypatch.setattr(PartialState, "wait_for_everyone", wait)
    StableCheckpoints().on_save(arguments, third, arguments)
    assert waits == [False]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"checkpoint-{n}" for n in (2, 3, 9)]
    assert latest(tmp_path) == tmp_path / "checkpoint-3"


@pytest.mark.parametrize("shards", [False, True])
def test_a_checkpoint_of_another_layout_is_refused_with_the_fix(tmp_path, shards):
    folder = tmp_path / "checkpoint-4"
    (folder / ("pytorch_model_fsdp_0" if shards else "model.safetensors")).mkdir(parents=True)
    same, other = (
        SimpleNamespace(is_fsdp_enabled=f, model=Linear(1, 1)) for f in (shards, not shards)
    )
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
    assert read_lineage(tmp_path) == [own]


def test_lineage_holds_all_settings_but_runtime(tmp_path):
    write_lineage(tmp_path, STEPS)
    *_, last = read_lineage(tmp_path)
    assert last.settings["mini_batch_prompts"] == "16"
    assert last.settings["judge.reward.code"] == "soft"
    other = RLSettings(loss="cispo", runtime=TrainRuntime(threads=3))
    assert step_of("rl math", "the step before", 2, other) == last
