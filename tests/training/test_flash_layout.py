"""Flash attention's part of the packed layout: which boundaries its kernel is told.

The kernel itself needs a GPU. Here plain attention stands in for it, sequence by sequence between
the boundaries it is given, below everything that transformers does on the way to it.
"""

import itertools

import pytest
import torch
from transformers import modeling_flash_attention_utils as flash

from training import render
from training.packing import check_packing

LENGTHS = [12, 3, 7, 1, 9, 5, 12, 2]


@pytest.fixture
def boundaries(monkeypatch) -> list[list[int]]:
    """Cumulative lengths that the kernel was called with; empty for a call without any."""
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

    given = whole, varlen, None, flash._pad_input, flash._unpad_input
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: given)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    return seen


def answers(prompts, trainer):
    """Answers that are given, of very different lengths."""
    ids = render.prompt_ids(trainer._tokenizer, [p[-1]["content"] for p in prompts])
    texts = [[70 + (7 * i + 3 * j) % 90 for j in range(LENGTHS[i % 8])] for i in range(len(ids))]
    return {"prompt_ids": ids, "completion_ids": texts, "logprobs": None}


def pay(completions, **_):
    return [(1.0, 0.0, 0.5, 0.0)[i % 4] for i in range(len(completions))]


def test_packed_rows_reach_flash_attention_cut_at_every_sequence(
    make_trainer, gradients, boundaries
):
    def update(attention: str, packed: bool):
        trainer = make_trainer(
            pay, prompts=4, mini_batch=4, rollout_func=answers, max_grad_norm=0.0,
            micro_batch_tokens=300,
        )  # fmt: skip
        trainer.model.config._attn_implementation = attention
        assert trainer._packed is packed  # it is what the kernel is for
        if packed:
            check_packing(trainer.model)
        boundaries.clear()
        (found,) = gradients(trainer)
        return found

    padded = update("sdpa", packed=False)
    assert not boundaries
    packed = update("flash_attention_2", packed=True)
    assert max(map(len, boundaries)) > 3  # several sequences in a row
    assert all(ends[0] == 0 for ends in boundaries)
    for name, gradient in padded.items():
        torch.testing.assert_close(packed[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_kernel_that_is_told_no_boundaries_is_refused(make_trainer, boundaries, monkeypatch):
    monkeypatch.setattr(flash, "_is_packed_sequence", lambda *_, **__: False)
    trainer = make_trainer(pay)
    trainer.model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="lets packed sequences see each other"):
        check_packing(trainer.model)
    assert boundaries == [[]] * len(boundaries)
