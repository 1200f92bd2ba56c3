"""Nothing that is NaN or infinite passes: a stage ends at the first such step, and writes none."""

import math
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from klear.configs.settings.training import SFTSettings
from klear.training import sft
from klear.training.alarms import DIVERGENCE, alarms
from klear.training.base import create_base
from klear.training.launch import result_files
from klear.training.launch.jobs import BaseJob, RLJob, SFTJob
from klear.training.models import load_model, load_tokenizer, save_model
from klear.training.rl import train as rl
from klear.training.rl.trainer import GPPOTrainer
from tests.cluster.fixed_answers import LengthJudge
from tests.training.conftest import SMALL, by_row
from tests.training.killed_child import RL, RUNTIME, SFT

EVERY_STEP = {"checkpoint_steps": 1, "epochs": 2}


def run_sft(checkpoint: Path, files: dict[str, Path], out: Path, **changes: Any) -> Any:
    settings = SFTSettings(**{**SFT.model_dump(), **EVERY_STEP, "optimizer": "adamw", **changes})
    job = SFTJob(out=out, base=checkpoint, examples=files["examples"], settings=settings, seed=4)
    return sft.run_sft(job)


def run_rl(checkpoint: Path, files: dict[str, Path], out: Path, **changes: Any) -> Any:
    settings = RL.model_copy(update={"checkpoint_steps": 1, "warmup_steps": 0, **changes})
    with mock.patch.object(rl, "Judge", LengthJudge):
        return rl.run_rl(RLJob(out=out, checkpoint=checkpoint, problems=files["problems"],
                               settings=settings, seed=3))  # fmt: skip


def written(out: Path) -> list[Path]:
    """Files of weights in `out`, each looked at: all values are finite."""
    files = list(out.rglob("*.safetensors"))
    for file in files:
        broken = [name for name, weight in load_file(file).items() if not weight.isfinite().all()]
        assert not broken, f"{file} holds {broken}"
    return files


@pytest.fixture
def changed(files, tmp_path):

    def make(change: Any) -> Path:
        folder = shutil.copytree(files["checkpoint"], tmp_path / "changed")
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def test_a_checkpoint_that_lacks_a_weight_is_refused_and_no_random_one_takes_its_place(changed):
    name = "model.layers.1.mlp.up_proj.weight"
    torn = changed(lambda weights: weights.pop(name))
    with pytest.raises(ValueError, match=rf"has no {name}, which would be random"):
        load_model(torn)


def test_one_weight_that_is_not_finite_is_named_before_anything_is_trained(
    files, changed, tmp_path
):
    name = "model.layers.1.mlp.up_proj.weight"
    checkpoint = changed(lambda weights: weights[name].view(-1)[7:8].fill_(math.nan))
    pretrained = SMALL.model_copy(update={"kind": "pretrained", "model": str(checkpoint)})
    stages = {
        "base": lambda out: create_base(BaseJob(out=out, settings=pretrained)),
        "sft": lambda out: run_sft(checkpoint, files, out),
        "rl": lambda out: run_rl(checkpoint, files, out),
    }
    for stage, run in stages.items():
        with pytest.raises(FloatingPointError, match=rf"{name} is NaN or infinite"):
            run(tmp_path / stage)
        assert not written(tmp_path / stage)


def test_sft_at_a_learning_rate_of_10000_ends_at_the_first_loss_or_gradient_that_is_not_finite(
    files, tmp_path
):
    """Muon moves the matrices, AdamW the rest."""
    wild = {"learning_rate": 1e4, "min_learning_rate": 1e4, "muon_learning_rate": 1e4}
    with pytest.raises(FloatingPointError) as ended:
        run_sft(files["checkpoint"], files, tmp_path, optimizer="muon", **wild)
    message = str(ended.value)
    assert "lower the learning rate, 10000" in message
    lines = result_files.read_lines(tmp_path / result_files.METRICS)
    assert f"step {lines[-1]['step'] + 1}: the " in message
    assert " in the batch of examples " in message
    assert all(line["metrics"]["loss"] > 0 for line in lines)  # none that stands for another
    assert written(tmp_path)


def test_a_step_is_refused_with_the_examples_of_the_micro_batch_whose_loss_is_not_finite(
    files, tmp_path, monkeypatch
):
    """The 8th micro-batch; it is the last thing that is computed."""
    losses, original = [], sft.SFTTrainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        losses.append(len(losses))
        return original(self, *args, **kwargs) * (math.inf if len(losses) == 8 else 1.0)

    monkeypatch.setattr(sft.SFTTrainer, "compute_loss", compute_loss)
    plans = []
    build = sft.build_trainer
    monkeypatch.setattr(sft, "build_trainer", lambda *a: plans.append(build(*a)) or plans[0])
    small = RUNTIME.model_copy(update={"micro_batch_tokens": 128})
    with pytest.raises(FloatingPointError) as ended:
        run_sft(files["checkpoint"], files, tmp_path, runtime=small)
    trainer, message = plans[0], str(ended.value)
    accumulation = trainer.args.gradient_accumulation_steps
    assert accumulation > 1
    assert len(losses) == 8
    assert message.startswith(f"step {7 // accumulation + 1}: the loss is inf")
    assert f"examples {', '.join(map(str, trainer.plan[7]))} (" in message
    assert len(list(tmp_path.rglob("checkpoint-*"))) == min(7 // accumulation, 2)


def fp16(trainer: Any, scale: float) -> None:
    accelerator = trainer.accelerator
    accelerator.state._mixed_precision = "fp16"
    accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", scale), True
    trainer.args.fp16 = True


@pytest.mark.parametrize(
    ("factor", "scale", "message"),
    [
        (1e6, 1.0, "step 1: the loss is"),  # the forward pass overflows
        (1.0, 2.0, "step 2: the gradient norm is"),  # the backward pass, at any scale
    ],
)
def test_an_overflow_of_fp16_that_no_scale_mends_is_named(
    files, changed, tmp_path, monkeypatch, factor, scale, message
):
    build = sft.build_trainer

    def build_fp16(*args):
        trainer = build(*args)
        fp16(trainer, scale)
        if factor == 1.0:
            trainer.model.model.norm.weight.register_hook(lambda grad: grad * 1e38 * 1e38)
        return trainer

    monkeypatch.setattr(sft, "build_trainer", build_fp16)
    checkpoint = changed(lambda weights: weights["model.embed_tokens.weight"].mul_(factor))
    with pytest.raises(FloatingPointError, match=rf"{message} .* fp16 has nothing above 65,504"):
        run_sft(checkpoint, files, tmp_path)
    assert not written(tmp_path / "checkpoint")
    written(tmp_path)


def test_a_weight_that_is_too_large_for_the_precision_it_is_written_in_is_not_written(
    files, changed, tmp_path
):
    checkpoint = changed(lambda weights: weights["model.norm.weight"][3:4].fill_(1e5))
    model, tokenizer = load_model(checkpoint, dtype="float32"), load_tokenizer(checkpoint)
    save_model(model, tokenizer, tmp_path / "fp32")
    with pytest.raises(FloatingPointError, match=r"float16: the weight model\.norm\.weight"):
        save_model(model.half(), tokenizer, tmp_path / "fp16")
    assert not list(tmp_path.glob("fp16*"))


def test_three_updates_in_a_row_without_a_finite_gradient_end_rl(files, tmp_path, monkeypatch):
    """Two in a row, or three apart, do not."""
    original, calls = GPPOTrainer._micro_loss, list[int]()

    def broken(self, model, micro, update):
        calls.append(len(calls))
        wrong = (calls[-1] % 4 > 1) if calls[-1] < 8 else True
        return original(self, model, micro, update) * (math.nan if wrong else 1.0)

    monkeypatch.setattr(GPPOTrainer, "_micro_loss", broken)
    pay = by_row(1.0, 0.0, 0.0, 0.0)
    monkeypatch.setattr(rl.JudgeReward, "__call__", lambda self, **k: pay(**k))
    monkeypatch.setattr(rl.RolloutJournal, "add", lambda *_: None)
    with pytest.raises(FloatingPointError, match=r"rollout 3: 3 updates in a row .* learning rate"):
        run_rl(files["checkpoint"], files, tmp_path, steps=6)
    lines = result_files.read_lines(tmp_path / result_files.METRICS)
    assert [line["metrics"]["skipped_updates"] for line in lines] == [2.0, 2.0]
    assert all(DIVERGENCE in line["metrics"] for line in lines)
    assert written(tmp_path)


def test_rl_at_a_learning_rate_of_10000_ends_or_diverges_with_finite_checkpoints(files, tmp_path):
    with pytest.raises(FloatingPointError, match="lower the learning rate, 10000"):
        run_rl(files["checkpoint"], files, tmp_path, steps=8, learning_rate=1e4)
    assert written(tmp_path)


def test_a_stop_of_a_model_that_is_broken_writes_nothing_and_names_the_weight(
    make_trainer, tmp_path
):
    trainer = make_trainer(by_row(1.0, 0.0))
    trainer.model.model.norm.weight.data[0] = math.nan
    with pytest.raises(FloatingPointError, match=r"model\.norm\.weight is NaN"):
        trainer._save_checkpoint(trainer.model, None)
    assert not list(tmp_path.rglob("checkpoint-*"))


@pytest.mark.parametrize(
    ("now", "rings"),
    [
        ({"loss": math.nan}, True),
        ({"grad_norm": math.inf}, True),
        ({"loss": 1.0, "eval/loss": math.nan}, True),
        ({"skipped_updates": 1.0, "updates": 8.0}, True),
        ({"skipped_updates": 1.0, "updates": 8.0, "loss_scale": 32768.0}, False),
        ({"loss": 1.0, "skipped_updates": 0.0, "updates": 8.0}, False),
    ],
)
def test_what_is_not_finite_is_a_divergence_also_on_the_first_line(now, rings):
    assert (DIVERGENCE in alarms([], now)) == rings


def test_a_metric_that_is_not_finite_is_left_out_counted_and_named_once(tmp_path, capsys):
    metrics = result_files.MetricsFile(tmp_path)
    for step in (1, 2):
        metrics.append(step, {"loss": 0.5, "ratio": math.nan, "entropy": math.inf})
    metrics.append(3, {"loss": 0.5})
    lines = [line["metrics"] for line in result_files.read_lines(tmp_path / result_files.METRICS)]
    assert lines == [{"loss": 0.5, "non_finite_metrics": 2.0}] * 2 + [{"loss": 0.5}]
    assert capsys.readouterr().out == "step 1: not finite, so on no curve: ratio, entropy\n"
