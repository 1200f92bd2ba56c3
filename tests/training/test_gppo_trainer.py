"""GPPOTrainer on its own: updates, what leaves a rollout before them, and what it refuses."""

import math
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from trl.trainer.grpo_trainer import GRPOTrainer

from klear.training.models import without_dropout
from klear.training.rl.trainer import GPPOTrainer, LossScale
from tests.gpu.tier0 import arrays, distance
from tests.training.conftest import by_row, close

FIRST_IS_RIGHT = by_row(1.0, 0.0, 0.0, 0.0)


def weights_of(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def logged(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


@pytest.fixture
def forwarded(on_logp):
    seen = []
    on_logp(lambda trainer, model, micro, *_: seen.append(len(micro.input_ids)))
    return seen


@pytest.mark.parametrize(("oversampling", "dead"), [(1, 3), (2, 0), (2, 4)])
def test_groups_of_equal_rewards_are_never_forwarded_and_the_first_that_survive_are_trained_on(
    make_trainer, forwarded, oversampling, dead
):
    """4 groups are generated, for 4 or for 2; an update has one or two of those that are left."""

    def pay(completions, **_):
        return [1.0 if i // 4 < dead else float(i % 4 == 0) for i in range(len(completions))]

    kept = []
    trainer = make_trainer(pay, prompts=4, mini_batch=2, oversampling=oversampling)
    trainer.on_rollout = kept.append
    trainer.train()
    trained = min(4 // oversampling, 4 - dead)
    old = 4 * max(0, trained - 1)  # those of all updates but the first are looked at before
    assert sum(forwarded) == 4 * trained + old
    assert logged(trainer, "updates") == [float(trained)]
    assert logged(trainer, "zero_advantage_share") == [dead / 4]
    assert int(kept[0].rollout.keep.sum()) == 4 * trained


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_a_non_finite_gradient_skips_its_update_and_is_counted(
    make_trainer, monkeypatch, max_grad_norm
):
    original, calls = GPPOTrainer._micro_loss, []

    def broken(self, model, micro, update):
        calls.append(1)
        loss = original(self, model, micro, update)
        return loss * float("nan") if len(calls) == 1 else loss

    monkeypatch.setattr(GPPOTrainer, "_micro_loss", broken)
    trainer = make_trainer(FIRST_IS_RIGHT, prompts=2, mini_batch=1, micro_batch_tokens=10_000,
                           max_grad_norm=max_grad_norm)  # fmt: skip
    trainer.train()
    assert logged(trainer, "skipped_updates") == [1.0]
    assert all(torch.isfinite(w).all() for w in weights_of(trainer).values())


def test_fp16_scales_the_loss_and_leaves_out_an_update_without_gradient(
    make_trainer, gradients, monkeypatch
):
    """One of two groups survives: torch's own scaler would fail at the second update."""

    def pay(completions, **_):
        return [1.0] + [0.0] * (len(completions) - 1)

    same = {"prompts": 2, "mini_batch": 1, "max_grad_norm": 0.0, "rollout_func": cut_every_other}
    exact = gradients(make_trainer(pay, **same))
    trainer = make_trainer(pay, **same)
    accelerator = trainer.accelerator  # which refuses fp16 without a GPU
    monkeypatch.setattr(accelerator.state, "_mixed_precision", "fp16")
    accelerator.scaler, accelerator.native_amp = LossScale("cpu"), True
    updates = gradients(trainer)
    assert [len(update) > 0 for update in updates] == [True, False]
    assert logged(trainer, "skipped_updates") == [0.0]
    assert distance(arrays(**updates[0]), arrays(**exact[0])) < 0.01


@pytest.mark.parametrize("fp32", [True, False])
def test_an_fp32_head_gives_the_log_probabilities_of_bf16_states_in_float32(
    make_trainer, on_logp, fp32
):
    seen = []

    def compare(trainer, model, micro, trainers, _):
        with torch.no_grad(), trainer.accelerator.autocast():
            states = model.model(micro.input_ids).last_hidden_state[:, -micro.answers - 1 : -1]
        logp = (states.float() @ model.lm_head.weight.T).log_softmax(-1)
        exact = logp.gather(-1, micro.input_ids[:, -micro.answers :, None])[..., 0]
        seen.append((trainers.detach() - exact)[micro.mask].abs().max())

    on_logp(compare)
    config = {"bf16": True, "cast_lm_head_to_fp32": fp32, "mini_batch": 4}
    make_trainer(FIRST_IS_RIGHT, rollout_func=cut_every_other, **config).train()
    assert (max(seen) < 1e-5) == fp32


def cut_every_other(prompts: list[Any], trainer: Any, **more: Any) -> dict[str, Any]:
    end = trainer._tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = trainer.chat.prompt_ids([p[-1]["content"] for p in prompts])
    answers = [[80, 81, 82, end if i % 2 == 0 else 83] for i in range(len(prompts))]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None, **more}


def test_overlong_answers_leave_before_the_group_statistics(make_trainer):
    """Rewards 1 and 0 remain: without the filter the mean would be 0.75."""
    pay, kept = by_row(1.0, 1.0, 0.0, 1.0), []
    trainer = make_trainer(pay, rollout_func=cut_every_other, overlong_filter=True)
    trainer.on_rollout = kept.append
    trainer.train()
    assert kept[0].rollout.keep.tolist() == [True, False] * 8
    assert kept[0].rollout.advantage.tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0] * 4)
    assert kept[0].rewards.flatten().tolist() == [1.0, 1.0, 0.0, 1.0] * 4
    assert (logged(trainer, "overlong"), logged(trainer, "unscored")) == ([8.0], [0.0])


def test_a_reward_that_is_no_number_is_unscored_never_zero(make_trainer):
    groups = ((1.0, nothing, 0.0, 0.5) for nothing in (None, math.nan, math.inf, -math.inf))
    trainer, kept = make_trainer(by_row(*chain(*groups))), []
    trainer.on_rollout = kept.append
    trainer.train()
    assert kept[0].rollout.keep.tolist() == [True, False, True, True] * 4
    assert torch.isfinite(kept[0].rollout.advantage).all()
    assert logged(trainer, "unscored") == [4.0]
    assert all(torch.isfinite(w).all() for w in weights_of(trainer).values())


def test_a_reward_that_never_scores_ends_the_run_with_the_reason(make_trainer):
    """Of 16 answers 10 are unscored."""
    trainer = make_trainer(by_row(math.nan, math.nan, 1.0, math.nan, 0.0), steps=5)
    most = "in 3 rollouts in a row most answers could not be scored"
    with pytest.raises(RuntimeError, match=f"{most}.* for 62% of the last"):
        trainer.train()


def test_the_mismatch_correction_weighs_the_policy_term_token_by_token(make_trainer, gradients):
    """A sampler that was far less sure of every token is capped: the gradient triples."""

    def roll_out(prompts, trainer):
        return cut_every_other(prompts, trainer) | {"logprobs": [[-26.0] * 4 for _ in prompts]}

    same = {"mini_batch": 4, "rollout_func": roll_out, "lm_weight": 0.0, "max_grad_norm": 0.0}

    def run(**config):
        return gradients(make_trainer(FIRST_IS_RIGHT, **same, **config))[0]

    off = run()
    cap = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_clip_max": 3.0}
    close(run(**cap), {name: 3 * gradient for name, gradient in off.items()})
    nothing = {name: 0 * gradient for name, gradient in off.items()}
    masks = cap | {"vllm_importance_sampling_mode": "token_mask"}, {"importance_drift": 1.0}
    for mask, share in zip(masks, ("masked", "dropped"), strict=True):
        trainer = make_trainer(FIRST_IS_RIGHT, **same, **mask)
        close(gradients(trainer)[0], nothing)
        assert logged(trainer, f"mismatch/{share}") == [1.0]


def test_answers_with_parts_that_are_not_the_models_are_refused(make_trainer):
    def with_tools(prompts, trainer):
        return cut_every_other(prompts, trainer, env_mask=[[1, 1, 0, 1] for _ in prompts])

    with pytest.raises(ValueError, match=r"without tools and images: \{'tool_mask'\}"):
        make_trainer(by_row(1.0), rollout_func=with_tools).train()


def test_what_vllm_says_after_the_end_of_a_turn_is_no_part_of_an_answer(make_trainer, monkeypatch):
    trainer = make_trainer(len)
    end = trainer.eos_token_ids[-1]
    said_more = [[70, end, 71, 72], [70, 71]], [[-1.0, -2.0, -3.0, -4.0], [-1.0, -2.0]]
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda *_: said_more)
    ids, logprobs = trainer._generate_single_turn()
    assert ids == [[70, end], [70, 71]]
    assert logprobs == [[-1.0, -2.0], [-1.0, -2.0]]


def test_a_policy_has_no_dropout_of_layers_or_of_attention():
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).train()
    ids = torch.arange(8)[None]
    assert not torch.equal(model(ids).logits, model(ids).logits)
    without_dropout(model)
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_a_server_that_was_started_again_ends_the_stage(make_trainer, monkeypatch):
    """Between two rollouts (aab), or during one (ab)."""
    answers = [[70, 71]], None
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda *_: answers)
    trainer, left = make_trainer(len), list("aabab")
    client = SimpleNamespace(
        base_url="http://gpu-9:8000", get_server_info=lambda: {"instance_id": left.pop(0)}
    )
    trainer.vllm_generation = SimpleNamespace(vllm_client=client)
    assert trainer._generate_single_turn() == answers
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"gpu-9:8000 was started again .* run again"):
            trainer._generate_single_turn()
        trainer._server = ""
