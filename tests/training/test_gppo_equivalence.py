"""The gradient of an update is that of the plain formula, however it is computed."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from transformers import modeling_flash_attention_utils as flash

from klear.training.models import load_model
from tests.training.conftest import by_row, close

LENGTHS = [12, 3, 7, 1, 9, 5, 12, 2]
GROUP = [1.0, 0.0, 0.5, 0.0]
pay = by_row(*GROUP)


def fixed(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    ids = trainer.chat.prompt_ids([p[-1]["content"] for p in prompts])
    answers = [
        [70 + (7 * i + 3 * j) % 90 for j in range(LENGTHS[i % len(LENGTHS)])]
        for i in range(len(prompts))
    ]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}


def one_update(make_trainer, gradients, attention="sdpa", **config):
    trainer = make_trainer(
        pay, prompts=4, mini_batch=4, rollout_func=fixed, max_grad_norm=0.0, **config
    )
    trainer.model.config._attn_implementation = attention
    trainer._packed = trainer._packs(trainer.model)
    (gradient,) = gradients(trainer)
    return gradient


def test_padded_and_packed_layouts_give_one_gradient(make_trainer, gradients):
    update = partial(one_update, make_trainer, gradients, entropy_coef=0.1)
    padded = update(micro_batch_tokens=10_000, packed=False)
    for budget in (64, 1):  # single sequences
        close(update(micro_batch_tokens=budget, packed=True), padded)


def test_packed_off_policy_updates_reach_the_weights_of_padded_ones(make_trainer):
    """By a loss that reads all tokens of an answer."""
    reached = []
    for packed in (False, True):
        trainer = make_trainer(
            pay, prompts=4, mini_batch=1, steps=2, rollout_func=fixed, packed=packed,
            policy_loss="gspo",
        )  # fmt: skip
        trainer.train()
        reached.append(dict(trainer.model.named_parameters()))
        assert trainer.state.log_history[0]["ratio/log_max"] > 0
    close(*reached, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "alpha", "bonus"),
    [
        ({"lm_weight": 0.5, "entropy_coef": 0.3}, 0.5, 0.3),
        ({"lm_weight": 0.0, "policy_loss": "gspo"}, 0.0, 0.0),
    ],
)
def test_the_gradient_is_the_formula_in_float64_without_padding_or_fused_head(
    make_trainer, gradients, files, config, alpha, bonus
):
    """Eq. 12 and 13 and the entropy over single sequences of a float64 model, summed by hand; for
    gspo, whose first update has s = 1, the mean over answers of the mean over tokens."""
    ours = one_update(make_trainer, gradients, micro_batch_tokens=64, **config)
    model = load_model(files["checkpoint"], dtype="float32").double()
    trainer = make_trainer(pay, prompts=4, mini_batch=4, rollout_func=fixed)
    order = list(trainer._get_train_sampler())[:16]
    rows = [trainer.train_dataset[i]["prompt"] for i in order]
    rollout = fixed(rows, trainer)
    mean, sigma = 0.375, torch.tensor(GROUP, dtype=torch.float64).std(correction=0).item()
    tokens = float(sum(map(len, rollout["completion_ids"])))
    correct = float(sum(len(a) for a in rollout["completion_ids"][::4]))
    loss = torch.zeros((), dtype=torch.float64)
    for i, (prompt, answer) in enumerate(
        zip(rollout["prompt_ids"], rollout["completion_ids"], strict=True)
    ):
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        all_logp = logits.log_softmax(-1)
        logp = all_logp.gather(1, torch.tensor(answer)[:, None]).T
        policy = (GROUP[i % 4] - mean) / sigma * logp.sum() / tokens
        if "policy_loss" in config:
            policy = (GROUP[i % 4] - mean) / sigma * logp.mean() / len(rows)
        right = alpha * logp.sum() / correct if i % 4 == 0 else 0.0
        entropy = -(all_logp.exp() * all_logp).sum()
        loss = loss - policy - right - bonus * entropy / tokens
    loss.backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    close({n: g.double() for n, g in ours.items()}, theirs, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("bonus", [0.0, 0.1])
def test_entropy_is_differentiated_only_where_it_has_a_weight(make_trainer, on_logp, bonus):
    """The fused head leaves out the work of a gradient that never comes."""
    calls = []
    on_logp(lambda *seen: seen[-1].requires_grad and seen[-1].register_hook(calls.append))
    make_trainer(pay, prompts=4, mini_batch=4, rollout_func=fixed, entropy_coef=bonus).train()
    assert bool(calls) == bool(bonus)


@pytest.fixture
def boundaries(monkeypatch) -> list[list[int]]:
    """Cumulative lengths that flash attention was called with; empty for a call without any.

    The kernel needs a GPU. Plain attention stands in for it, sequence by sequence between the
    boundaries, below everything that transformers does on the way to it.
    """
    seen: list[list[int]] = []

    def attend(q, k, v, softmax_scale, causal):
        heads_first = (x.transpose(-3, -2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            *heads_first, is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        return out.transpose(-3, -2)

    def whole(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
        seen.append([])
        return attend(q, k, v, softmax_scale, causal)

    def varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False,
    ):  # fmt: skip
        ends = cu_seqlens_q.tolist()
        seen.append(ends)
        assert cu_seqlens_k.tolist() == ends
        assert max_seqlen_q == max(b - a for a, b in itertools.pairwise(ends))
        parts = itertools.pairwise(ends)
        return torch.cat([attend(q[a:b], k[a:b], v[a:b], softmax_scale, causal) for a, b in parts])

    replaced = whole, varlen, None, flash._pad_input, flash._unpad_input
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: replaced)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    return seen


def test_packed_rows_reach_flash_attention_cut_at_every_sequence(
    make_trainer, gradients, boundaries
):
    update = partial(one_update, make_trainer, gradients, micro_batch_tokens=300)
    padded = update("sdpa")
    assert not boundaries
    packed = update("flash_attention_2")  # nothing else says that rows are to be packed
    assert max(map(len, boundaries)) > 3  # several sequences in a row
    assert all(ends[0] == 0 for ends in boundaries)
    close(packed, padded)
