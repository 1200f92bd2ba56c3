"""Effects over seeds: right in sign and size, and honest about few seeds."""

import numpy as np
import pytest
from scipy import stats

from tasks.ablation.effects import Effect, band, paired_effect


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


PARTS = [  # shares of seeds, problems and noise in the variance of a mean difference of zero
    pytest.param((1, 0, 0), 1.1, id="seeds alone"),
    pytest.param((0, 1, 0), 1.1, id="problems alone"),
    pytest.param((0, 0, 1), 1.5, id="noise alone"),
    pytest.param((1, 1, 0), 1.1, id="seeds and problems"),
    pytest.param((1, 1, 1), 1.2, id="all three"),
]


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize(("parts", "too_wide"), PARTS)
def test_without_a_difference_the_interval_seldom_misses_zero_and_is_not_needlessly_wide(
    seeds, parts, too_wide
):
    """5 % of 250 is 12.5, and more than 23 come by chance in 2 of 1,000 (binomial).

    A bootstrap alone misses 24, 16 and 11 % with 3, 5 and 8 seeds where seeds alone matter; its
    envelope with Student's over seeds misses 8 % with 5 where problems matter as much as they do.

    Wide is measured in an interval that knows how the variance is shared: Student's over seeds for
    what seeds and noise make, the normal one for problems, of which there are 30.
    """
    rng, problems, times = np.random.default_rng(0), 30, 250
    of_seeds, of_problems, noise = parts
    scale = [np.sqrt(of_seeds * seeds), np.sqrt(of_problems * problems),
             np.sqrt(noise * seeds * problems)]  # fmt: skip
    shapes = [(seeds, 1), (1, problems), (seeds, problems)]
    zero = [dict.fromkeys(map(str, range(problems)), 0.0)] * seeds
    missed, width = 0, 0.0
    for _ in range(times):
        drawn = [s * rng.standard_normal(shape) for s, shape in zip(scale, shapes, strict=True)]
        table = drawn[0] + drawn[1] + drawn[2]
        ours = [{str(j): float(d) for j, d in enumerate(row)} for row in table]
        found = paired_effect(ours, zero, resamples=250)
        missed += found.verdict != "not seen"
        width += (found.high - found.low) / times
    assert missed <= 23
    student = stats.t.ppf(0.975, seeds - 1)
    known = 2 * np.sqrt(student**2 * (of_seeds + noise) + 1.96**2 * of_problems)
    assert width <= too_wide * known


def test_the_bounds_are_no_extremes_of_the_draws():
    """Else more resamples would move them."""
    rng = np.random.default_rng(1)
    ours = [{str(j): float(d) for j, d in enumerate(rng.random(40))} for _ in range(3)]
    none = [dict.fromkeys(ours[0], 0.5)] * 3
    few, many = (paired_effect(ours, none, resamples=n) for n in (2_000, 20_000))
    assert (few.low, few.high) == pytest.approx(
        (many.low, many.high), abs=0.05 * (many.high - many.low)
    )


def test_with_one_problem_the_interval_is_for_other_seeds():
    found = paired_effect(runs([0.5, 0.6, 0.7], problems=1), runs([0.4] * 3, problems=1))
    half = 4.303 * 0.1 / np.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-4)


def test_where_problems_do_not_matter_the_interval_is_students():
    found = paired_effect(runs([0.5, 0.6, 0.7]), runs([0.4, 0.4, 0.4]))
    half = 4.303 * 0.1 / np.sqrt(3)  # t of 2 degrees of freedom; differences 0.1, 0.2, 0.3
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-4)


def test_an_effect_that_rests_on_few_problems_is_not_taken_for_one_on_others():
    """Every seed agrees, but two of ten problems make the whole difference."""
    gained = {f"p{i}": (1.0 if i < 2 else 0.0) for i in range(10)}
    none = dict.fromkeys(gained, 0.0)
    found = paired_effect([gained] * 5, [none] * 5)
    half = 2.262 * np.sqrt(0.16 / 9)  # t of 9; the ten means have the variance 10 / 9 · 0.2 · 0.8
    assert (found.mean, found.low) == pytest.approx((0.2, 0.2 - half), abs=1e-3)
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
    assert found == ((1.0, 2.0), (2.0, 2.0), (1.0, 2.0), (3.0, 2.0))
    assert band([])[0] == ()
