"""The paper's numbers in TRL's units (§4.1)."""

import pytest

from configs.training_stages import RLSettings
from training.schedule import rl_schedule

MATH = RLSettings()
CODE = RLSettings(mini_batch_prompts=32, learning_rate=5e-7)


@pytest.mark.parametrize(
    ("settings", "world", "micro", "updates"),
    [(MATH, 1, 1, 8), (MATH, 8, 1, 8), (MATH, 16, 8, 8), (CODE, 8, 1, 4), (CODE, 32, 2, 4)],
)
def test_the_stock_trainer_gets_the_papers_batches(settings, world, micro, updates):
    units = rl_schedule(settings, world, micro)
    per_update = units.per_device_train_batch_size * world * units.gradient_accumulation_steps
    assert units.generation_batch_size == 128 * 8
    assert per_update == settings.mini_batch_prompts * 8
    assert units.steps_per_generation == updates * units.gradient_accumulation_steps
    assert units.generation_batch_size == (
        units.per_device_train_batch_size * world * units.steps_per_generation
    )
    assert units.updates_per_rollout == updates


def test_warm_up_is_ten_rollouts_in_optimizer_steps():
    assert rl_schedule(MATH, 8).warmup_steps == 80
    assert rl_schedule(CODE, 8).warmup_steps == 40


def test_one_device_takes_its_share_of_a_mini_batch_at_once():
    units = rl_schedule(MATH, 8)
    assert units.per_device_train_batch_size == 16 * 8 // 8
    assert units.gradient_accumulation_steps == 1
    assert units.max_steps == 100 * 8


def test_more_processes_than_prompts_in_a_mini_batch_are_refused_with_the_arithmetic():
    with pytest.raises(ValueError, match=r"16 = 0 × 32 \+ 16"):
        rl_schedule(MATH, 32)


def test_a_micro_batch_that_does_not_divide_is_refused_with_what_would():
    with pytest.raises(ValueError, match="126 and 129 would divide"):
        rl_schedule(MATH, 1, sequences_per_device=3)


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("settings", [MATH, CODE], ids=["math", "code"])
@pytest.mark.parametrize("oversampling", [1, 2])
def test_the_papers_batch_fits_every_number_of_processes(settings, world, oversampling):
    settings = settings.model_copy(update={"oversampling": oversampling})
    units = rl_schedule(settings, world)
    trained = units.per_device_train_batch_size * world // oversampling
    assert trained == settings.mini_batch_prompts * 8
    assert trained * units.updates_per_rollout == 128 * 8
    assert units.generation_batch_size == 128 * 8 * oversampling
    assert units.generation_batch_size == (
        units.per_device_train_batch_size * world * units.steps_per_generation
    )
