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


@pytest.mark.parametrize("seeds", [3, 5])
def test_without_a_difference_the_intervals_miss_zero_as_seldom_as_they_promise(seeds):
    """Normal effects around zero: a bootstrap alone would miss in a quarter of the experiments of
    three seeds and in 12 % of those of five; 5 % of 300 is 15, and more than 26 of them come by
    chance in 3 of 1,000 (binomial)."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(300):
        effects = 0.5 + 0.1 * rng.standard_normal(seeds)
        found = paired_effect(runs(list(effects), problems=2), runs([0.5] * seeds, problems=2),
                              resamples=2000)  # fmt: skip
        missed += found.verdict != "not seen"
    assert missed <= 26


def test_where_problems_do_not_matter_the_interval_is_students():
    found = paired_effect(runs([0.5, 0.6, 0.7]), runs([0.4, 0.4, 0.4]))
    half = 4.303 * 0.1 / np.sqrt(3)  # t of 2 degrees of freedom; differences 0.1, 0.2, 0.3
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-4)


def test_an_effect_that_rests_on_few_problems_is_not_taken_for_one_on_others():
    """Every seed agrees, but two of ten problems make the whole difference."""
    gained = {f"p{i}": (1.0 if i < 2 else 0.0) for i in range(10)}
    none = dict.fromkeys(gained, 0.0)
    found = paired_effect([gained] * 5, [none] * 5)
    assert found.mean == pytest.approx(0.2)
    assert found.low == 0.0
    assert found.verdict == "not seen"


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
