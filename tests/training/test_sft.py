"""SFT on the real trainer: what is learned from, and exact resumption."""

import json

import pytest
import torch
from transformers import TrainerCallback

from configs.settings.training import SFTSettings, TrainRuntime
from eval.tables import count_rows
from training import sft
from training.checkpoints.saving import load_model, load_tokenizer
from training.launch.jobs import SFTJob
from training.layout import STABLE
from training.render import prompt_ids
from training.sft import IGNORED, tokenized

RUNTIME = TrainRuntime(bf16=False, gradient_checkpointing=False, threads=1)


def settings(**changes) -> SFTSettings:
    few = {
        "epochs": 2,
        "learning_rate": 3e-3,
        "min_learning_rate": 3e-4,
        "batch_tokens": 256,
        "max_length": 256,
        "checkpoint_steps": 4,
        "runtime": RUNTIME,
    }
    return SFTSettings(**(few | changes))


def metrics(out):
    return [json.loads(line) for line in (out / "logs/metrics.jsonl").read_text().splitlines()]


def numbers(out):
    """Steps and metrics without the wall clock."""
    return [(line["step"], line["metrics"]) for line in metrics(out)]


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise Killed


def test_the_loss_is_on_the_answer_only(files, tmp_path):
    tokenizer = load_tokenizer(files["checkpoint"])
    data = tokenized(files["examples"], tokenizer, 256, tmp_path)
    example = data[0]
    prompt = prompt_ids(tokenizer, [tokenizer.decode(example["input_ids"])])
    assert prompt  # the template renders
    answer = [t for t in example["labels"] if t != IGNORED]
    assert example["labels"] == [IGNORED] * (len(example["labels"]) - len(answer)) + answer
    assert example["input_ids"][-len(answer) :] == answer
    assert tokenizer.decode(answer).startswith("<think>")
    assert answer[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_lowers_the_loss_and_leaves_a_loadable_model(files, tmp_path, optimizer):
    result = sft.run_sft(
        SFTJob(
            out=tmp_path,
            base=files["checkpoint"],
            examples=files["examples"],
            settings=settings(epochs=4, optimizer=optimizer, checkpoint_steps=5),
        )
    )
    losses = [m["loss"] for _, m in numbers(tmp_path)]
    assert losses[-1] < 0.8 * losses[0]
    assert result["truncated_examples"] == 0
    model = load_model(tmp_path / "checkpoint", dtype="float32")
    before = load_model(files["checkpoint"], dtype="float32")
    assert not torch.equal(
        model.get_input_embeddings().weight, before.get_input_embeddings().weight
    )
    assert load_tokenizer(tmp_path / "checkpoint").chat_template
    progress = json.loads((tmp_path / ".resume/progress.json").read_text())
    assert progress["done"] == progress["total"] == result["steps"]


def test_the_parent_sees_progress_before_the_first_step(files, tmp_path, monkeypatch):
    """At paper size the rows are tokenised for longer than a watchdog waits."""

    class Tokenised(Exception):
        pass

    def stop(*_):
        raise Tokenised

    monkeypatch.setattr(sft, "build_trainer", stop)
    examples = files["examples"]
    with pytest.raises(Tokenised):
        sft.run_sft(
            SFTJob(out=tmp_path, base=files["checkpoint"], examples=examples, settings=settings())
        )
    said = json.loads((tmp_path / ".resume/progress.json").read_text())
    count = count_rows(examples)
    assert said == {"done": 0, "total": count, "note": f"tokenised 0 of {count:,} examples"}


def test_a_checkpoint_is_marked_only_when_every_process_has_written_its_part(
    files, tmp_path, monkeypatch
):
    last = tmp_path / ".resume/checkpoints/checkpoint-1"
    waits, original = [], sft.build_trainer

    def watched(*args):
        trainer = original(*args)

        def wait():
            waits.append([(last / n).exists() for n in ("rng_state.pth", STABLE)])

        monkeypatch.setattr(trainer.accelerator, "wait_for_everyone", wait)
        return trainer

    monkeypatch.setattr(sft, "build_trainer", watched)
    few = settings(epochs=1, batch_tokens=100_000)  # everything in one step
    base, examples = files["checkpoint"], files["examples"]
    sft.run_sft(SFTJob(out=tmp_path, base=base, examples=examples, settings=few))
    assert (last / STABLE).exists()
    assert [True, False] in waits


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_continues_to_the_same_bits(files, tmp_path, monkeypatch, optimizer):
    def job(out):
        return SFTJob(
            out=tmp_path / out,
            base=files["checkpoint"],
            examples=files["examples"],
            settings=settings(optimizer=optimizer),
            seed=3,
        )

    sft.run_sft(job("whole"))
    original = sft.build_trainer

    def mortal(*args):
        trainer = original(*args)
        trainer.add_callback(KillAt(6))  # after the checkpoint of step 4, and two steps more
        return trainer

    monkeypatch.setattr(sft, "build_trainer", mortal)
    with pytest.raises(Killed):
        sft.run_sft(job("killed"))
    monkeypatch.setattr(sft, "build_trainer", original)
    sft.run_sft(job("killed"))

    assert len(numbers(tmp_path / "whole")) >= 3
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    whole = (tmp_path / "whole/checkpoint/model.safetensors").read_bytes()
    assert (tmp_path / "killed/checkpoint/model.safetensors").read_bytes() == whole
