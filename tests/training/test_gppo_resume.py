"""GPPOTrainer from a checkpoint between two updates of one rollout."""

from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from training.callbacks import StableCheckpoints
from training.layout import STABLE
from training.rl.rollout import rank_state_path
from training.rl.trainer import GPPOTrainer


class Stop(Exception):
    pass


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **_):
        if state.global_step == self.step:
            raise Stop


def pay(completions, **_):
    return [float(len(c[-1]["content"]) % 2) for c in completions]


def weights_of(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def means(trainer: Any) -> list[dict[str, float]]:
    skip = ("seconds/", "tokens_per", "train_", "step_time", "num_tokens", "total_flos")
    return [
        {n: v for n, v in line.items() if not n.startswith(skip)}
        for line in trainer.state.log_history
        if "updates" in line
    ]


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_checkpoint_after_any_update_continues_to_the_same_bits(make_trainer, tmp_path, at):
    """Two rollouts of four updates; a checkpoint of 4 is on the boundary, the others are not."""
    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    whole = make_trainer(pay, prompts=4, mini_batch=1, steps=2, output_dir=str(tmp_path / "whole"))
    whole.train()
    config = {"prompts": 4, "mini_batch": 1, "steps": 2, "output_dir": str(tmp_path / "cut")}
    first = make_trainer(pay, **config, **saving)
    first.add_callback(StopAt(at))
    with pytest.raises(Stop):
        first.train()
    second = make_trainer(pay, **config, **saving)
    second.train(resume_from_checkpoint=str(tmp_path / f"cut/checkpoint-{at}"))
    reached = weights_of(second)
    assert all(torch.equal(w, reached[n]) for n, w in weights_of(whole).items())
    assert means(second) == means(whole)
    assert any(line["updates"] > 1 for line in means(whole))
    assert all(line["loss"] != 0 for line in means(whole) if line["updates"])


def test_what_was_skipped_before_a_checkpoint_is_still_counted_after_it(
    make_trainer, monkeypatch, tmp_path
):
    """The first rollout has nothing to teach, the second a loss that is not finite."""
    config = {"prompts": 2, "mini_batch": 1, "steps": 3, "output_dir": str(tmp_path)}
    saving = {"save_strategy": "steps", "save_steps": 1}
    rollouts: list[int] = []

    def equal_at_first(completions, **_):
        rollouts.append(1)
        return [float(i % 2 and len(rollouts) > 1) for i in range(len(completions))]

    original = GPPOTrainer._micro_loss
    with monkeypatch.context() as patch:
        patch.setattr(GPPOTrainer, "_micro_loss", lambda *a: original(*a) * float("nan"))
        first = make_trainer(equal_at_first, **config, **saving)
        first.add_callback(StopAt(3))
        with pytest.raises(Stop):
            first.train()
    counted = first.empty_rollouts, first.non_finite_updates
    assert counted == (1, 1)
    second = make_trainer(lambda **_: [1.0] * 8, **config)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (second.empty_rollouts, second.non_finite_updates) == (2, 1)


def test_epochs_become_a_number_of_steps_and_never_none(make_trainer):
    trainer = make_trainer(pay, prompts=4, mini_batch=2, dataset=10, max_steps=-1,
                           num_train_epochs=2)  # fmt: skip
    seen = []
    trainer.on_rollout = lambda record: seen.append(len(record.inputs))
    trainer.train()
    assert trainer.state.global_step == 5 * 2  # 20 prompts in rollouts of 4, two updates each
    assert len(seen) == 5


def cut_at(make_trainer, tmp_path, step):
    """(settings of two rollouts of two updates, the checkpoint after `step` updates)."""
    config = {"prompts": 2, "mini_batch": 1, "steps": 2, "output_dir": str(tmp_path)}
    first = make_trainer(pay, **config, save_strategy="steps", save_steps=1)
    first.add_callback(StopAt(step))
    with pytest.raises(Stop):
        first.train()
    return config, tmp_path / f"checkpoint-{step}"


def test_the_rest_of_a_rollout_is_never_dropped_in_silence(make_trainer, tmp_path):
    config, inside = cut_at(make_trainer, tmp_path, 3)
    own, second = rank_state_path(inside, 0), rank_state_path(inside, 1)
    second.write_bytes(own.read_bytes())  # as if two processes had saved it
    for gone in ((), (own, second)):
        for file in gone:
            file.unlink()
        with pytest.raises(ValueError, match=r"after 1 updates .* cannot be continued on 1 proc"):
            make_trainer(pay, **config).train(resume_from_checkpoint=str(inside))


def test_a_checkpoint_is_marked_only_when_every_process_has_written_its_part(
    make_trainer, monkeypatch, tmp_path
):
    trainer = make_trainer(pay, steps=1, output_dir=str(tmp_path), mini_batch=4,
                           save_strategy="steps", save_steps=1)  # fmt: skip
    trainer.add_callback(StableCheckpoints(tmp_path))
    mark, part = tmp_path / "checkpoint-1" / STABLE, rank_state_path(tmp_path / "checkpoint-1", 0)
    waits = []
    monkeypatch.setattr(
        trainer.accelerator, "wait_for_everyone", lambda: waits.append((part, mark.exists()))
        if part.exists() else None
    )  # fmt: skip
    trainer.train()
    assert mark.exists()
    assert (part, False) in waits
