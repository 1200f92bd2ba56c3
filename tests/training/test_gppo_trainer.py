"""GPPOTrainer on its own: updates, normalisers, and what it refuses."""

import pytest
import torch

from training.rl.config import GPPOConfig
from training.rl.trainer import GPPOTrainer


def by_row(*rewards):
    """A reward function that pays each group the same list, whatever was answered."""

    def pay(completions, **_):
        return [rewards[i % len(rewards)] for i in range(len(completions))]

    return pay


def weights_of(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def logged(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


def test_a_rollout_feeds_its_number_of_updates(make_trainer):
    trainer = make_trainer(by_row(1.0, 0.0, 0.0, 0.0), prompts=4, mini_batch=1, steps=2)
    before = weights_of(trainer)
    trainer.train()
    assert trainer.state.global_step == 8
    assert logged(trainer, "updates") == [4.0, 4.0]
    assert any(not torch.equal(before[n], p) for n, p in weights_of(trainer).items())


def test_groups_of_equal_rewards_are_never_forwarded(make_trainer, monkeypatch):
    def pay(completions, prompts, **_):
        good = prompts[0][-1]["content"]  # only the first group has different rewards
        return [float(i % 2) if p[-1]["content"] == good else 1.0 for i, p in enumerate(prompts)]

    forwarded = []
    original = GPPOTrainer._logp

    def counting(self, model, micro):
        forwarded.append(len(micro.input_ids))
        return original(self, model, micro)

    monkeypatch.setattr(GPPOTrainer, "_logp", counting)
    trainer = make_trainer(pay, prompts=4, rollouts=4, mini_batch=2)
    trainer.train()
    assert sum(forwarded) == 4  # one group, one update, so no pass for old log-probabilities
    assert logged(trainer, "zero_advantage_share") == [0.75]
    assert logged(trainer, "updates") == [1.0]


def test_the_first_update_of_a_rollout_is_on_policy(make_trainer):
    trainer = make_trainer(by_row(1.0, 0.0, 0.0, 0.0), prompts=2, mini_batch=2)
    trainer.train()
    assert logged(trainer, "ratio") == [1.0]
    assert logged(trainer, "clip/high") == [0.0]


def test_later_updates_are_off_policy(make_trainer):
    trainer = make_trainer(by_row(1.0, 0.0, 0.0, 0.0), prompts=4, mini_batch=1)
    trainer.train()
    (low,), (high,) = logged(trainer, "ratio/log_min"), logged(trainer, "ratio/log_max")
    assert low < 0 < high


def test_the_lm_loss_reaches_only_correct_answers(make_trainer):
    """With α large and the policy term tiny, only answers with reward 1 are pushed up."""
    gradients = {}
    for alpha in (0.0, 1.0):
        trainer = make_trainer(by_row(0.5, 0.0, 0.0, 0.0), lm_weight=alpha)  # nobody is correct
        trainer.train()
        gradients[alpha] = weights_of(trainer)
    same = all(torch.equal(w, gradients[1.0][n]) for n, w in gradients[0.0].items())
    assert same
    trainer = make_trainer(by_row(1.0, 0.0, 0.0, 0.0), lm_weight=1.0)
    trainer.train()
    assert any(not torch.equal(w, gradients[0.0][n]) for n, w in weights_of(trainer).items())


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_a_non_finite_gradient_skips_its_update_and_is_counted(
    make_trainer, monkeypatch, max_grad_norm
):
    original = GPPOTrainer._micro_loss
    calls = []

    def broken(self, model, micro, update):
        calls.append(1)
        loss = original(self, model, micro, update)
        return loss * float("nan") if len(calls) == 1 else loss

    monkeypatch.setattr(GPPOTrainer, "_micro_loss", broken)
    trainer = make_trainer(
        by_row(1.0, 0.0, 0.0, 0.0),
        prompts=2,
        mini_batch=1,
        micro_batch_tokens=10_000,
        max_grad_norm=max_grad_norm,
    )
    trainer.train()
    assert trainer.non_finite_updates == 1
    assert logged(trainer, "skipped_updates") == [1.0]
    assert all(torch.isfinite(w).all() for w in weights_of(trainer).values())


def test_each_prompt_is_used_once_before_any_is_used_again(make_trainer):
    trainer = make_trainer(by_row(1.0, 0.0), prompts=4, rollouts=2, mini_batch=2, steps=2)
    seen = []
    trainer.on_rollout = lambda r: seen.extend(row["prompt"][0]["content"] for row in r.inputs[::2])
    trainer.train()
    assert len(seen) == len(set(seen)) == 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "micro_batch_tokens"),
        ({"num_iterations": 2}, "one pass"),
        ({"beta": 0.1}, "no KL"),
        ({"vllm_importance_sampling_mode": "sequence_mask"}, "token_truncate"),
        ({"mask_truncated_completions": True}, "overlong_filter"),
        ({"policy_loss": "ppo"}, "clip_higher"),
        ({"advantage_std": "sample"}, "unbiased"),
        (
            {"per_device_train_batch_size": 4, "steps_per_generation": 2, "num_generations": 8},
            r"4 × 2 sequences .* must be multiples of num_generations = 8",
        ),
        (
            {"per_device_train_batch_size": 8, "num_generations": 8, "oversampling": 2},
            r"8 of a mini-batch / oversampling = 2",
        ),
    ],
)
def test_settings_that_contradict_gppo_are_refused(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        GPPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **wrong)
