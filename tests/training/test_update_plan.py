"""From a rollout to micro-batches: padded or packed, and how many groups each process keeps."""

import random
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from klear.training.rl.rollout import Rollout, fair_quotas
from klear.training.rl.rollout import plan_updates as plan_of
from tests.training.conftest import ALONE

LENGTHS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=2, max_size=12)


def rollout(lengths):
    tokens, start = [], 0
    for prompt, answer in lengths:
        tokens.append(torch.arange(start, start + prompt + answer))
        start += 100
    n = len(lengths)
    return Rollout(
        tokens,
        [p for p, _ in lengths],
        advantage=torch.arange(n) + 1.0,
        positive=torch.arange(n) % 2 == 0,
        keep=torch.ones(n, dtype=torch.bool),
        sampling_logp=[-torch.arange(1.0, a + 1) for _, a in lengths],
    )


def plan_updates(rollout, packed=False, **changes):
    cut = {"num_generations": 1, "mini_batch_groups": 100, "updates": 1, "micro_batch_tokens": 20}
    args: Any = SimpleNamespace(**(cut | changes))
    return plan_of(rollout, random.Random(0), ALONE, args, packed)


@given(LENGTHS, st.booleans())
def test_every_answer_token_is_scored_once_with_its_own_row(lengths, packed):
    (update,) = plan_updates(rollout(lengths), packed=packed)
    seen = {}
    for micro in update.micro_batches:
        answers = micro.input_ids[:, -micro.answers :]
        full = torch.ones_like(answers)
        advantage = (micro.advantage * full)[micro.mask]
        positive = micro.positive if packed else micro.positive[:, None]
        correct = (positive * full)[micro.mask]
        logps = micro.sampling_logp[micro.mask]
        rows = zip(answers[micro.mask].tolist(), advantage, correct, logps, strict=True)
        for token, a, p, logp in rows:
            assert token not in seen
            seen[token] = (float(a), bool(p), float(logp))
        scored = micro.labels[micro.labels != -100]
        assert scored.tolist() == answers[micro.mask].tolist()
    for i, (prompt, answer) in enumerate(lengths):
        for j in range(answer):
            assert seen.pop(100 * i + prompt + j) == (i + 1, i % 2 == 0, -(j + 1))
    assert not seen
    assert update.policy_tokens == sum(a for _, a in lengths)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 60))
def test_quotas_keep_the_batch_full_and_the_processes_even(counts, most):
    quotas = fair_quotas(counts, most)
    assert sum(quotas) == min(sum(counts), most)
    assert all(0 <= q <= c for q, c in zip(quotas, counts, strict=True))
    cut = [q for q, c in zip(quotas, counts, strict=True) if q < c]
    assert not cut or max(quotas) - min(cut) <= 1
