"""Effects over seeds: right in sign and size, and honest about few seeds and noisy answers."""

import numpy as np
import pytest
from scipy import stats

from klear.tasks.ablation.effects import (
    Effect,
    Half,
    Learning,
    detectable,
    fall,
    paired_effect,
    seeds_needed,
    steadiness_effect,
)


def runs(scores: list[float], problems: int = 50) -> list[dict[str, float]]:
    """One run a score; every problem of a run has that mean outcome."""
    return [{f"p{i}": score for i in range(problems)} for score in scores]


def test_the_effect_is_the_mean_difference_over_seeds_and_problems_that_all_have():
    first, second = runs([0.5, 0.6, 0.7]), runs([0.4, 0.4, 0.4])
    first[0]["only here"] = 1.0
    effect = paired_effect(first, second)
    assert effect.points == pytest.approx(20)
    assert (effect.wins, effect.seeds, effect.verdict) == (3, 3, "not seen")
    assert effect.low <= effect.points <= effect.high
    # With one problem the interval is for other seeds.
    effect = paired_effect(runs([0.5, 0.6, 0.7], problems=1), runs([0.4] * 3, problems=1))
    half = 4.303 * 10 / np.sqrt(3)
    assert (effect.low, effect.high) == pytest.approx((20 - half, 20 + half), abs=1e-2)
    for few, other, says in (
        (runs([0.1, 0.2]), runs([0.1, 0.2]), "at least 3"),
        (runs([0.1, 0.2, 0.3, 0.4]), runs([0.1, 0.2, 0.3]), "shorter"),
        ([{"a": 1.0}] * 3, [{"b": 1.0}] * 3, "no problem in common"),
        ([], [], "no problem in common"),
    ):
        with pytest.raises(ValueError, match=says):
            paired_effect(few, other)


PARTS = [  # shares of seeds, problems and noise in the variance of a mean difference of zero
    pytest.param((1, 0, 0), 1.1, id="seeds alone"),
    pytest.param((0, 1, 0), 1.1, id="problems alone"),
    pytest.param((0, 0, 1), 1.5, id="noise alone"),
    pytest.param((1, 1, 0), 1.1, id="seeds and problems"),
    pytest.param((1, 1, 1), 1.2, id="all three"),
]


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize(("parts", "too_wide"), PARTS)
def test_the_interval_of_no_difference_seldom_misses_zero_and_is_narrow(seeds, parts, too_wide):
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
        table = (drawn[0] + drawn[1] + drawn[2]) / 100
        ours = [{str(j): float(d) for j, d in enumerate(row)} for row in table]
        effect = paired_effect(ours, zero, resamples=250)
        missed += effect.verdict != "not seen"
        width += (effect.high - effect.low) / times
    assert missed <= 23
    student = stats.t.ppf(0.975, seeds - 1)
    ideal_width = 2 * np.sqrt(student**2 * (of_seeds + noise) + 1.96**2 * of_problems)
    assert width <= too_wide * ideal_width


def test_an_effect_that_rests_on_few_problems_is_not_taken_for_one_on_others():
    """Every seed agrees, but two of ten problems make the whole difference."""
    gained = {f"p{i}": (1.0 if i < 2 else 0.0) for i in range(10)}
    none = dict.fromkeys(gained, 0.0)
    effect = paired_effect([gained] * 5, [none] * 5)
    half = 226.2 * np.sqrt(0.16 / 9)  # t of 9; the ten means have the variance 10 / 9 · 0.2 · 0.8
    assert (effect.points, effect.low) == pytest.approx((20, 20 - half), abs=0.1)
    assert effect.verdict == "not seen"


def learned(even, odd, answers: int = 200) -> Learning:
    """Both halves of the answers, by their accuracies at each step."""
    halves = zip(even, odd, strict=True)
    return {step: (Half(a, answers), Half(b, answers)) for step, (a, b) in enumerate(halves)}


@pytest.mark.parametrize(
    ("even", "odd", "expected"),
    [
        ((0.5, 0.3, 0.6), (0.5, 0.2, 0.7), (0.3 + 0.2) / 2),
        ((0.5, 0.3), (0.5, 0.5), 0.0),  # seen here, not there
        ((0.5, 0.3), (0.5, 0.55), -0.05 / 2),
        ((0.5, 0.46), (0.5, 0.46), 0.0),  # within an error in both
        ((0.2, 0.5, 0.9), (0.1, 0.6, 0.8), 0.0),
    ],
)
def test_a_fall_that_one_half_shows_is_measured_on_the_other(even, odd, expected):
    """Standard error of a half: at most sqrt(2 · 0.25 / 200) = 0.05."""
    assert fall(learned(even, odd)) == pytest.approx(expected)


FLAT = np.full(6, 0.5)


def verdicts(one: np.ndarray, two: np.ndarray, times: int, seed: int) -> list[str]:
    """Of simulated experiments with five seeds; arms whose models have these true accuracies."""
    rng = np.random.default_rng(seed)

    def drawn(levels: np.ndarray) -> list[Learning]:
        return [learned(*rng.binomial(200, levels, (2, len(levels))) / 200) for _ in range(5)]

    return [steadiness_effect(drawn(one), drawn(two)).verdict for _ in range(times)]


@pytest.mark.parametrize(
    "other",
    [FLAT, np.linspace(0.2, 0.7, 6), np.linspace(0.4, 0.55, 6), np.full(6, 0.01)],
    ids=["flat", "rising", "slowly", "stuck"],
)
def test_noise_makes_no_arm_steadier_whatever_its_level_and_slope(other):
    """No arm truly falls. Of 1,000 simulated experiments of five seeds at most 3 % are called
    either way, to three deviations. (Plain falls of the scores call the rising arm in 98 %.)"""
    calls = verdicts(other, FLAT, 1_000, seed=0)
    most = 0.03 + 3 * np.sqrt(0.03 * 0.97 / len(calls))
    assert calls.count("confirmed") / len(calls) < most
    assert calls.count("reversed") / len(calls) < most


def test_true_falls_of_eight_points_are_seen():
    """Twice eight and once ten points, six models: at least four experiments of five."""
    falling = np.array([0.4, 0.5, 0.42, 0.55, 0.45, 0.6])
    calls = verdicts(np.linspace(0.4, 0.6, 6), falling, 200, seed=1)
    assert calls.count("confirmed") / len(calls) > 0.8


def test_the_interval_is_students_over_seeds():
    """Falls of 0 against 0.1 to 0.5, with so many answers that no noise is left."""
    depths = [0.1, 0.2, 0.3, 0.4, 0.5]
    rising = [learned([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], 100_000)] * 5
    dips = [[0.6, 0.6 - d, 0.6] for d in depths]
    falling = [learned(dip, dip, 100_000) for dip in dips]
    width = 100 * stats.t.ppf(0.975, 4) * np.std(depths, ddof=1) / np.sqrt(5)
    effect = steadiness_effect(rising, falling)
    assert (effect.points, effect.low, effect.high) == pytest.approx((30, 30 - width, 30 + width))
    assert (effect.verdict, effect.wins, effect.seeds) == ("confirmed", 5, 5)
    assert steadiness_effect(falling, rising).verdict == "reversed"
    assert steadiness_effect(rising, rising).verdict == "not seen"
    with pytest.raises(ValueError, match="run at least 3"):
        steadiness_effect(rising[:2], rising[:2])
    with pytest.raises(ValueError, match="points at different steps"):
        steadiness_effect(rising, [{step + 1: at for step, at in one.items()} for one in falling])


@pytest.mark.parametrize(("size", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_the_seeds_that_a_difference_needs_are_those_of_cohens_tables(size, seeds):
    """Paired t-test, two-sided, 5 %, power 0.8, as G*Power counts them."""
    assert seeds_needed(10 * size, sd=10) == seeds
    assert detectable(10, seeds) <= 10 * size < detectable(10, seeds - 1)


@pytest.mark.parametrize("seeds", [5, 16])
def test_a_detectable_difference_is_found_in_four_of_five_simulated_experiments(seeds):
    """Of 20,000, to four deviations: 0.8 ± 0.011."""
    rng, times, sd = np.random.default_rng(0), 20_000, 12.0
    drawn = rng.normal(detectable(sd, seeds), sd, (times, seeds))
    half = stats.t.ppf(0.975, seeds - 1) * drawn.std(axis=1, ddof=1) / np.sqrt(seeds)
    power = (drawn.mean(axis=1) - half > 0).mean()
    assert power == pytest.approx(0.8, abs=0.011)


def test_what_an_effect_could_have_seen_follows_from_the_width_of_its_interval():
    drawn = np.array([4.0, -6.0, 1.0, 9.0, 2.0])
    half = stats.t.ppf(0.975, 4) * drawn.std(ddof=1) / np.sqrt(5)
    mean = drawn.mean()
    effect = Effect(points=mean, low=mean - half, high=mean + half, wins=4, seeds=5)
    assert effect.sd == pytest.approx(drawn.std(ddof=1))
    assert effect.could_see == pytest.approx(detectable(drawn.std(ddof=1), 5))
    assert effect.seeds_for(effect.could_see + 0.01) == 5
    alike = Effect(points=0, low=0, high=0, wins=0, seeds=5)  # all at 0 %, say
    assert (alike.could_see, alike.seeds_for(5)) == (None, None)
