"""The paper's numbers in TRL's units (§4.1)."""

import pytest

from configs.settings.training import RLSettings
from training.packing import rl_schedule

MATH = RLSettings()
CODE = RLSettings(mini_batch_prompts=32, learning_rate=5e-7)


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("settings", [MATH, CODE], ids=["math", "code"])
@pytest.mark.parametrize("oversampling", [1, 2])
def test_the_papers_batch_fits_every_number_of_processes(settings, world, oversampling):
    settings = settings.model_copy(update={"oversampling": oversampling})
    units = rl_schedule(settings, world)
    trained = units.per_device_train_batch_size * world // oversampling
    assert trained == settings.mini_batch_prompts * 8
    assert trained * units.steps_per_generation == 128 * 8
    assert units.max_steps == 100 * units.steps_per_generation
    assert units.warmup_steps == (80 if settings.mini_batch_prompts == 16 else 40)


def test_more_processes_than_prompts_in_a_mini_batch_are_refused_with_what_would_divide():
    with pytest.raises(ValueError, match=r"16 = 0 × 32 \+ 16; 32 and 32 would divide"):
        rl_schedule(MATH, 32)
