"""GPPOTrainer from its checkpoints, which lie between rollouts."""

import pytest
import torch
from transformers import TrainerCallback


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


def means(trainer):
    skip = ("seconds/", "tokens_per", "train_", "step_time", "num_tokens", "total_flos")
    return [
        {n: v for n, v in line.items() if not n.startswith(skip)}
        for line in trainer.state.log_history
        if "updates" in line
    ]


def test_a_checkpoint_after_a_rollout_continues_to_the_same_bits(make_trainer, tmp_path):
    """Two rollouts of four updates."""
    saving = {"save_strategy": "steps", "save_steps": 4}
    whole = make_trainer(pay, prompts=4, mini_batch=1, steps=2, output_dir=str(tmp_path / "whole"))
    whole.train()
    config = {"prompts": 4, "mini_batch": 1, "steps": 2, "output_dir": str(tmp_path / "cut")}
    first = make_trainer(pay, **config, **saving)
    first.add_callback(StopAt(4))
    with pytest.raises(Stop):
        first.train()
    second = make_trainer(pay, **config, **saving)
    second.train(resume_from_checkpoint=str(tmp_path / "cut/checkpoint-4"))
    reached = weights_of(second)
    assert all(torch.equal(w, reached[n]) for n, w in weights_of(whole).items())
    assert means(second) == means(whole)
    assert any(line["updates"] > 1 for line in means(whole))
    assert all(line["loss"] != 0 for line in means(whole) if line["updates"])


def test_a_checkpoint_between_two_updates_of_a_rollout_is_refused(make_trainer):
    with pytest.raises(ValueError, match=r"save_steps=6 must be a multiple .* = 4: a checkpoint"):
        make_trainer(pay, prompts=4, mini_batch=1, save_strategy="steps", save_steps=6)


def test_epochs_become_a_number_of_steps_and_never_none(make_trainer):
    trainer = make_trainer(pay, prompts=4, mini_batch=2, dataset=10, max_steps=-1,
                           num_train_epochs=2)  # fmt: skip
    seen = []
    trainer.on_rollout = lambda record: seen.append(len(record.inputs))
    trainer.train()
    assert trainer.state.global_step == 5 * 2  # 20 prompts in rollouts of 4, two updates each
    assert len(seen) == 5
