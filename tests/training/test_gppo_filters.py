"""What leaves a rollout before training, and what happens when nothing is left."""

import math
from typing import Any

import pytest
import torch

from training import render
from training.rl.trainer import GPPOTrainer

END = "<|im_end|>"


def logged(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


def weights_of(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def unchanged(trainer, before):
    return all(torch.equal(before[n], p) for n, p in weights_of(trainer).items())


def cut_every_other(prompts: list[Any], trainer: Any, **more: Any) -> dict[str, Any]:
    """Every second answer has no end token."""
    end = trainer._tokenizer.convert_tokens_to_ids(END)
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


def test_overlong_answers_stay_by_default(make_trainer):
    kept = []
    trainer = make_trainer(
        lambda completions, **_: [float(i % 4 == 0) for i in range(len(completions))],
        rollout_func=cut_every_other,
    )
    trainer.on_rollout = kept.append
    trainer.train()
    assert all(kept[0].rollout.keep)
    assert logged(trainer, "overlong") == [0.0]


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


def test_an_all_unscored_rollout_is_counted_and_changes_nothing(make_trainer):
    trainer = make_trainer(lambda completions, **_: [None] * len(completions), steps=2)
    before = weights_of(trainer)
    trainer.train()
    assert unchanged(trainer, before)
    assert trainer.empty_rollouts == 2
    assert logged(trainer, "unscored") == [16.0, 16.0]
    assert logged(trainer, "updates") == [0.0, 0.0]


def test_a_reward_that_never_scores_ends_the_run_with_the_reason(make_trainer):
    trainer = make_trainer(lambda completions, **_: [math.nan] * len(completions), steps=5)
    with pytest.raises(RuntimeError, match="no answer of 3 rollouts in a row could be scored"):
        trainer.train()


def test_a_rollout_without_survivors_is_counted_once_each(make_trainer):
    trainer = make_trainer(lambda completions, **_: [1.0] * len(completions), steps=3)
    before = weights_of(trainer)
    trainer.train()
    assert unchanged(trainer, before)
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


def test_the_mismatch_correction_is_off_by_default_and_leaves_the_lm_term_alone(
    make_trainer, gradients
):
    def run(**config):
        return gradients(
            make_trainer(
                lambda completions, **_: [float(i % 4 == 0) for i in range(len(completions))],
                mini_batch=4,
                rollout_func=with_sampler_logps(20.0),
                max_grad_norm=0.0,
                policy_loss="clip_higher",
                **config,
            )
        )[0]

    lm_only = run(lm_weight=0.5, vllm_importance_sampling_correction=True)  # weight e^-20 = 0
    both, policy = run(lm_weight=0.5), run(lm_weight=0.0)
    for name, gradient in lm_only.items():
        torch.testing.assert_close(gradient, both[name] - policy[name], rtol=1e-3, atol=1e-5)


def test_answers_with_parts_that_are_not_the_models_are_refused(make_trainer):
    def with_tools(prompts, trainer):
        return cut_every_other(prompts, trainer, env_mask=[[1, 1, 0, 1] for _ in prompts])

    trainer = make_trainer(
        lambda completions, **_: [1.0] * len(completions), rollout_func=with_tools
    )
    with pytest.raises(ValueError, match="without tools or env_mask"):
        trainer.train()
