"""Batches of tokens, and the order of prompts: pure functions of their seed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klear.configs.settings.training import RLSettings
from klear.training.packing import (
    cut_steps,
    epoch_batches,
    optimizer_steps,
    prompt_order,
    rl_schedule,
)

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 4))
def test_a_plan_visits_every_sequence_every_epoch_in_a_multiple_of_batches(
    lengths, epochs, multiple
):
    plan = epoch_batches(lengths, 60, epochs, seed=1, multiple=multiple)
    assert len(plan) % multiple == 0
    seen = Counter(i for batch in plan for i in batch)
    assert set(seen) == set(range(len(lengths)))
    assert min(seen.values()) >= epochs


def order(**changes):
    numbers = {"prompts_per_step": 2, "rollouts": 3, "updates": 2, "steps": 4, "seed": 0}
    return prompt_order(5, **(numbers | changes))


def test_prompts_run_on_over_epochs_without_a_break():
    prompts = order(steps=5)[::3]
    stream = [p for s in range(5) for p in prompts[s * 4 : s * 4 + 2]]
    assert sorted(stream[:5]) == sorted(stream[5:]) == list(range(5))
    assert stream[:5] != stream[5:]


@given(LENGTHS, st.integers(1, 60), st.integers(1, 4), st.integers(1, 3))
def test_a_step_is_cut_into_as_many_micro_batches_as_every_other(
    lengths, budget, processes, epochs
):
    steps = optimizer_steps(lengths, 120, 50, epochs, seed=0)
    plan, each = cut_steps(steps, lengths, budget, processes)
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
    units = rl_schedule(settings, world)
    trained = units["per_device_train_batch_size"] * world // oversampling
    assert trained == settings.mini_batch_prompts * 8
    assert trained * units["steps_per_generation"] == 128 * 8
    assert units["max_steps"] == 100 * units["steps_per_generation"]
    assert units["warmup_steps"] == (80 if settings.mini_batch_prompts == 16 else 40)


def test_more_processes_than_prompts_in_a_mini_batch_are_refused_with_what_would_divide():
    with pytest.raises(ValueError, match=r"16 is no multiple of .* = 32"):
        rl_schedule(MATH, 32)
