"""Effects over seeds: right in sign and size, and honest about few seeds."""

import numpy as np
import pytest

from eval.effects import Effect, band, paired_effect


def runs(scores: list[float], problems: int = 50) -> list[dict[str, float]]:
    """One run a score; every problem of a run has that mean outcome."""
    return [{f"p{i}": score for i in range(problems)} for score in scores]


def test_the_effect_is_the_mean_difference_over_seeds_and_its_size_in_their_deviations():
    found = paired_effect(runs([0.5, 0.6, 0.7]), runs([0.4, 0.4, 0.4]))
    assert found.mean == pytest.approx(0.2)
    assert found.size == pytest.approx(0.2 / 0.1)  # differences 0.1, 0.2, 0.3
    assert (found.wins, found.seeds) == (3, 3)
    assert found.low <= found.mean <= found.high


def test_swapping_the_arms_swaps_the_interval():
    first, second = runs([0.5, 0.62, 0.7, 0.4]), runs([0.4, 0.3, 0.65, 0.45])
    there, back = paired_effect(first, second), paired_effect(second, first)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=1e-9)


def test_a_large_difference_in_every_seed_is_confirmed_and_its_opposite_reversed():
    high, low = runs([0.8, 0.82, 0.81, 0.79, 0.8]), runs([0.2, 0.21, 0.2, 0.22, 0.19])
    assert paired_effect(high, low).verdict == "confirmed"
    assert paired_effect(low, high).verdict == "reversed"
    assert paired_effect(high, high).verdict == "not seen"


def test_problems_that_only_one_run_scored_do_not_count():
    first, second = runs([0.5] * 3, problems=2), runs([0.5] * 3, problems=2)
    first[0]["only here"] = 1.0
    assert paired_effect(first, second).mean == 0.0


def test_without_a_difference_the_intervals_miss_zero_as_seldom_as_they_promise():
    """Seeds with normal effects around zero: a plain percentile interval of five seeds would miss
    in 15 to 20 of a hundred; Student's, and the expanded one, in 5 (binomial: up to 11 of 100)."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(100):
        effects = 0.5 + 0.1 * rng.standard_normal(5)
        missed += paired_effect(runs(list(effects)), runs([0.5] * 5), resamples=4000).verdict != (
            "not seen"
        )
    assert missed <= 11


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (runs([0.1, 0.2]), runs([0.1, 0.2]), "at least 3"),
        (runs([0.1, 0.2, 0.3]), runs([0.1, 0.2]), "do not pair"),
        ([{"a": 1.0}] * 3, [{"b": 1.0}] * 3, "no problem in common"),
    ],
)
def test_what_gives_no_interval_is_refused(first, second, says):
    with pytest.raises(ValueError, match=says):
        paired_effect(first, second)


def test_equal_differences_have_no_size():
    assert np.isnan(Effect(0.1, 0.1, 0.1, float("nan"), 3, 3).size)
    assert np.isnan(paired_effect(runs([0.5] * 3), runs([0.25] * 3)).size)


def test_a_band_has_the_steps_that_every_seed_reached():
    found = band([{1: 1.0, 2: 2.0, 3: 9.0}, {1: 3.0, 2: 2.0}])
    assert found.steps == (1.0, 2.0)
    assert found.mean == (2.0, 2.0)
    assert (found.low, found.high) == ((1.0, 2.0), (3.0, 2.0))
    assert band([]).steps == ()
