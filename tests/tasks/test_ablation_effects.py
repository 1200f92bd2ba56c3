"""Effects over seeds: right in sign and size, and honest about few seeds and noisy answers."""

import numpy as np
import pytest
from scipy import stats

from tasks.ablation.effects import (
    Learning,
    Point,
    band,
    fall,
    paired_effect,
    steadiness_effect,
)


def runs(scores: list[float], problems: int = 50) -> list[dict[str, float]]:
    """One run a score; every problem of a run has that mean outcome."""
    return [{f"p{i}": score for i in range(problems)} for score in scores]


def test_the_effect_is_the_mean_difference_over_seeds_and_its_size_in_their_deviations():
    found = paired_effect(runs([0.5, 0.6, 0.7]), runs([0.4, 0.4, 0.4]))
    assert found.mean == pytest.approx(0.2)
    assert found.size == pytest.approx(0.2 / 0.1)  # differences 0.1, 0.2, 0.3
    assert (found.wins, found.seeds, found.verdict) == (3, 3, "not seen")
    assert np.isnan(paired_effect(runs([0.5] * 3), runs([0.25] * 3)).size)  # all differences equal
    assert found.low <= found.mean <= found.high


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


def test_with_one_problem_the_interval_is_for_other_seeds():
    found = paired_effect(runs([0.5, 0.6, 0.7], problems=1), runs([0.4] * 3, problems=1))
    half = 4.303 * 0.1 / np.sqrt(3)
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


def test_a_band_has_the_steps_that_every_seed_reached():
    found = band([{1: 1.0, 2: 2.0, 3: 9.0}, {1: 3.0, 2: 2.0}])
    assert found == ((1.0, 2.0), (2.0, 2.0), (1.0, 2.0), (3.0, 2.0))
    assert band([])[0] == ()


def half(*accuracies: float, answers: int = 200) -> dict[int, Point]:
    return {step: Point(a, answers) for step, a in enumerate(accuracies)}


def test_a_fall_that_one_half_shows_is_measured_on_the_other():
    """Standard error of a half: at most sqrt(2 · 0.25 / 200) = 0.05."""
    assert fall((half(0.5, 0.3, 0.6), half(0.5, 0.2, 0.7))) == pytest.approx((0.3 + 0.2) / 2)
    assert fall((half(0.5, 0.3), half(0.5, 0.5))) == pytest.approx(0.0)  # seen here, not there
    assert fall((half(0.5, 0.3), half(0.5, 0.55))) == pytest.approx(-0.05 / 2)
    assert fall((half(0.5, 0.46), half(0.5, 0.46))) == 0.0  # within an error in both
    assert fall((half(0.2, 0.5, 0.9), half(0.1, 0.6, 0.8))) == 0.0


def learned(levels: np.ndarray, rng: np.random.Generator, answers: int = 200) -> Learning:
    """Two halves of the answers of models with these true accuracies."""
    halves = [
        {
            s: Point(right / answers, answers)
            for s, right in enumerate(rng.binomial(answers, levels))
        }
        for _ in range(2)
    ]
    return Learning({s: p.accuracy for s, p in halves[0].items()}, (halves[0], halves[1]))


FLAT = np.full(6, 0.5)


@pytest.mark.parametrize(
    "other",
    [FLAT, np.linspace(0.2, 0.7, 6), np.linspace(0.4, 0.55, 6), np.full(6, 0.01)],
    ids=["flat", "rising", "slowly", "stuck"],
)
def test_noise_makes_no_arm_steadier_whatever_its_level_and_slope(other):
    """No arm truly falls. Of 1,000 simulated experiments of five seeds at most 3 % are called
    either way, to three deviations. (Plain falls of the scores call the rising arm in 98 %.)"""
    rng = np.random.default_rng(0)
    verdicts = [
        steadiness_effect(
            [learned(other, rng) for _ in range(5)], [learned(FLAT, rng) for _ in range(5)]
        ).verdict
        for _ in range(1_000)
    ]
    most = 0.03 + 3 * np.sqrt(0.03 * 0.97 / len(verdicts))
    assert verdicts.count("confirmed") / len(verdicts) < most
    assert verdicts.count("reversed") / len(verdicts) < most


def test_true_falls_of_eight_points_are_seen():
    """Twice eight and once ten points, six models: at least four experiments of five."""
    rng = np.random.default_rng(1)
    falling = np.array([0.4, 0.5, 0.42, 0.55, 0.45, 0.6])
    steady = np.linspace(0.4, 0.6, 6)
    seen = [
        steadiness_effect(
            [learned(steady, rng) for _ in range(5)], [learned(falling, rng) for _ in range(5)]
        ).verdict
        == "confirmed"
        for _ in range(200)
    ]
    assert sum(seen) / len(seen) > 0.8


def exactly(*accuracies: float) -> Learning:
    same = half(*accuracies, answers=100_000)
    return Learning(dict(enumerate(accuracies)), (same, same))


def test_the_interval_is_students_over_seeds():
    """Falls of 0 against 0.1 to 0.5, with so many answers that no noise is left."""
    depths = [0.1, 0.2, 0.3, 0.4, 0.5]
    rising = [exactly(0.1, 0.2, 0.3)] * 5
    falling = [exactly(0.6, 0.6 - d, 0.6) for d in depths]
    width = stats.t.ppf(0.975, 4) * np.std(depths, ddof=1) / np.sqrt(5)
    found = steadiness_effect(rising, falling)
    assert (found.mean, found.low, found.high) == pytest.approx((0.3, 0.3 - width, 0.3 + width))
    assert (found.verdict, found.wins, found.seeds) == ("confirmed", 5, 5)
    assert steadiness_effect(falling, rising).verdict == "reversed"
    assert steadiness_effect(rising, rising).verdict == "not seen"


def test_curves_with_other_points_are_not_compared():
    with pytest.raises(ValueError, match="points at different steps"):
        steadiness_effect([exactly(0.1, 0.2)] * 3, [exactly(0.1, 0.2, 0.1)] * 3)
    with pytest.raises(ValueError, match="run at least 3"):
        steadiness_effect([exactly(0.1, 0.2)] * 2, [exactly(0.1, 0.2)] * 2)
