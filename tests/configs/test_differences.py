"""A run's name says profile, seed and what differs from the profile, as one would type it."""

import pytest

from configs.differences import differences, run_name
from configs.load import load_profile


def name(*overrides: str) -> str:
    return run_name(load_profile("tiny", list(overrides)))


def test_a_run_of_the_profile_itself_is_called_after_it():
    assert name() == "tiny-seed0"
    assert name("seed=3") == "tiny-seed3"


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("sft.learning_rate=1e-4", "sft.learning_rate=1e-4"),
        ("sft.learning_rate=2.5e-05", "sft.learning_rate=2.5e-5"),
        ("rl_math.loss=cispo", "rl_math.loss=cispo"),
        ("dedup.near=true", "dedup.near=true"),
        ("rl_math.dual_clip=10", "rl_math.dual_clip=10"),
        ("collect.sources.countdown.size=5", "collect.sources.countdown.size=5"),
        ("distill.sources=[countdown]", "distill.sources=1 entries"),
    ],
)
def test_what_differs_is_said_as_it_would_be_typed(override: str, shown: str):
    assert name(override) == f"tiny-seed0 · {shown}"


def test_the_first_three_are_said_and_the_others_counted():
    four = ("sft.epochs=2", "rl_math.steps=3", "rl_code.steps=3", "evaluate.bootstrap=7")
    said = name(*four).partition(" · ")[2]
    assert said.count("=") == 3
    assert said.endswith("and 1 more")


def test_settings_that_say_how_are_no_difference():
    assert name("sft.runtime.threads=2", "stall_minutes=5") == "tiny-seed0"


def test_a_profile_from_a_file_is_compared_with_itself_unless_the_file_is_given():
    mine = load_profile("tiny", ["profile=mine", "sft.epochs=2"])
    assert run_name(mine) == "mine-seed0"
    assert run_name(mine, load_profile("tiny")) == "mine-seed0 · sft.epochs=2"


def test_a_group_that_appears_is_named_without_its_content():
    changed = differences(load_profile("tiny", ["rl_math.lora={rank: 4}"]), load_profile("tiny"))
    assert changed == [("rl_math.lora", "changed")]
