"""GPPOTrainer on its own: updates, normalisers, and what it refuses."""

import math
from typing import Any

import pytest
import torch

from training import render
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


def cut_every_other(prompts: list[Any], trainer: Any, **more: Any) -> dict[str, Any]:
    """Every second answer has no end token."""
    end = trainer._tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = render.prompt_ids(trainer._tokenizer, [p[-1]["content"] for p in prompts])
    answers = [[80, 81, 82, end if i % 2 == 0 else 83] for i in range(len(prompts))]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None, **more}


def test_overlong_answers_leave_before_the_group_statistics(make_trainer):
    """Rewards 1 and 0 remain: without the filter the mean would be 0.75."""
    kept = []
    trainer = make_trainer(
        lambda completions, **_: [(1.0, 1.0, 0.0, 1.0)[i % 4] for i in range(len(completions))],
        rollout_func=cut_every_other,
        overlong_filter=True,
    )
    trainer.on_rollout = kept.append
    trainer.train()
    assert kept[0].rollout.keep.tolist() == [True, False] * 8
    assert kept[0].rollout.advantage.tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0] * 4)
    assert kept[0].rewards.flatten().tolist() == [1.0, 1.0, 0.0, 1.0] * 4
    assert logged(trainer, "overlong") == [8.0]
    assert logged(trainer, "unscored") == [0.0]


@pytest.mark.parametrize("dead", [0, 2, 3, 4])
def test_oversampling_trains_on_the_first_groups_that_survive(make_trainer, monkeypatch, dead):
    """4 groups generated for 2: the dead ones leave, then whatever is over the batch."""
    forwarded = []
    original = GPPOTrainer._micro_loss

    def spy(self, model, micro, update):
        forwarded.append(len(micro.input_ids))
        return original(self, model, micro, update)

    monkeypatch.setattr(GPPOTrainer, "_micro_loss", spy)
    trainer = make_trainer(
        lambda completions, **_: [
            1.0 if i // 4 < dead else float(i % 4 == 0) for i in range(len(completions))
        ],
        prompts=4,
        mini_batch=2,
        oversampling=2,
    )
    trainer.train()
    trained = min(2, 4 - dead)
    assert sum(forwarded) == 4 * trained
    assert logged(trainer, "updates") == [float(trained)]  # mini-batches of one group
    assert trainer.empty_rollouts == (dead == 4)


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_a_reward_that_is_no_number_is_unscored_never_zero(make_trainer, nothing):
    kept = []
    trainer = make_trainer(
        lambda completions, **_: [(1.0, nothing, 0.0, 0.5)[i % 4] for i in range(len(completions))]
    )
    trainer.on_rollout = kept.append
    trainer.train()
    assert kept[0].rollout.keep.tolist() == [True, False, True, True] * 4
    assert torch.isfinite(kept[0].rollout.advantage).all()
    assert logged(trainer, "unscored") == [4.0]
    assert all(torch.isfinite(w).all() for w in weights_of(trainer).values())


def test_a_reward_that_never_scores_ends_the_run_with_the_reason(make_trainer):
    trainer = make_trainer(lambda completions, **_: [math.nan] * len(completions), steps=5)
    with pytest.raises(RuntimeError, match="no answer of 3 rollouts in a row could be scored"):
        trainer.train()


def test_a_rollout_without_survivors_is_counted_once_each(make_trainer):
    trainer = make_trainer(lambda completions, **_: [1.0] * len(completions), steps=3)
    before = weights_of(trainer)
    trainer.train()
    assert all(torch.equal(before[n], p) for n, p in weights_of(trainer).items())
    assert trainer.empty_rollouts == 3
    assert logged(trainer, "zero_advantage_share") == [1.0] * 3


def with_sampler_logps(shift):
    def roll_out(prompts, trainer):
        return cut_every_other(prompts, trainer) | {
            "logprobs": [[-6.0 + shift] * 4 for _ in prompts]
        }

    return roll_out


def test_the_mismatch_correction_weighs_the_policy_term_token_by_token(make_trainer, gradients):
    """A sampler that was e^2 less sure of every token is capped: the gradient triples."""

    def run(**config):
        return gradients(
            make_trainer(
                lambda completions, **_: [float(i % 4 == 0) for i in range(len(completions))],
                mini_batch=4,
                rollout_func=with_sampler_logps(-20.0),
                lm_weight=0.0,
                max_grad_norm=0.0,
                **config,
            )
        )[0]

    off = run()
    capped = run(vllm_importance_sampling_correction=True, vllm_importance_sampling_clip_max=3.0)
    for name, gradient in off.items():
        torch.testing.assert_close(capped[name], 3 * gradient, rtol=1e-4, atol=1e-6)


def test_answers_with_parts_that_are_not_the_models_are_refused(make_trainer):
    def with_tools(prompts, trainer):
        return cut_every_other(prompts, trainer, env_mask=[[1, 1, 0, 1] for _ in prompts])

    trainer = make_trainer(
        lambda completions, **_: [1.0] * len(completions), rollout_func=with_tools
    )
    with pytest.raises(ValueError, match="without tools or env_mask"):
        trainer.train()
