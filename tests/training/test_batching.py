"""Batches of tokens, micro-batches of a rollout, and the order of prompts: pure functions of their
seed."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from klear.configs.settings.training import RLSettings
from klear.training import packing
from klear.training.rl.rollout import Rollout, fair_quotas
from klear.training.rl.rollout import plan_updates as plan_of
from tests.training.conftest import ALONE

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 4))
def test_a_plan_visits_every_sequence_every_epoch_in_a_multiple_of_batches(
    lengths, epochs, multiple
):
    plan = packing.epoch_batches(lengths, 60, epochs, seed=1, multiple=multiple)
    assert len(plan) % multiple == 0
    seen = Counter(i for batch in plan for i in batch)
    assert set(seen) == set(range(len(lengths)))
    assert min(seen.values()) >= epochs


def order(**changes):
    numbers = {"prompts_per_step": 2, "rollouts": 3, "updates": 2, "steps": 4, "seed": 0}
    return packing.prompt_order(5, **(numbers | changes))


def test_prompts_run_on_over_epochs_without_a_break():
    prompts = order(steps=5)[::3]
    stream = [p for s in range(5) for p in prompts[s * 4 : s * 4 + 2]]
    assert sorted(stream[:5]) == sorted(stream[5:]) == list(range(5))
    assert stream[:5] != stream[5:]


@given(LENGTHS, st.integers(1, 60), st.integers(1, 4), st.integers(1, 3))
def test_a_step_is_cut_into_as_many_micro_batches_as_every_other(
    lengths, budget, processes, epochs
):
    steps = packing.optimizer_steps(lengths, 120, 50, epochs, seed=0)
    plan, each = packing.cut_steps(steps, lengths, budget, processes)
    width = each * processes
    assert len(plan) == len(steps) * width
    for n, step in enumerate(steps):
        cut = plan[n * width : (n + 1) * width]
        assert sorted(i for batch in cut for i in batch) == sorted(step)
        for batch in cut:
            assert len(batch) < 2 or len(batch) * max(lengths[i] for i in batch) <= budget


MATH = RLSettings()
CODE = RLSettings(mini_batch_prompts=32, learning_rate=5e-7)


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("settings", [MATH, CODE], ids=["math", "code"])
@pytest.mark.parametrize("oversampling", [1, 2])
def test_the_papers_batch_fits_every_number_of_processes(settings, world, oversampling):
    settings = settings.model_copy(update={"oversampling": oversampling})
    units = packing.rl_schedule(settings, world)
    trained = units["per_device_train_batch_size"] * world // oversampling
    assert trained == settings.mini_batch_prompts * 8
    assert trained * units["steps_per_generation"] == 128 * 8
    assert units["max_steps"] == 100 * units["steps_per_generation"]
    assert units["warmup_steps"] == (80 if settings.mini_batch_prompts == 16 else 40)


def test_more_processes_than_prompts_in_a_mini_batch_are_refused_with_what_would_divide():
    with pytest.raises(ValueError, match=r"16 is no multiple of .* = 32"):
        packing.rl_schedule(MATH, 32)


PAIRS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=2, max_size=12)


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


@given(PAIRS, st.booleans())
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
