"""Accuracy over training, and how steadily it rises: measured beyond the noise of the answers."""

import json

import numpy as np
import pytest
from scipy import stats

from configs.settings.evaluation import LEARNING_CURVE
from tasks.report.learning import (
    Learning,
    Point,
    answers_of,
    fall,
    means_of,
    read_learning,
    steadiness_effect,
)
from tests.eval.evaluations_by_hand import evaluation, result


def test_a_benchmark_has_its_own_answers_also_where_two_share_a_source(tmp_path):
    """As LiveCodeBench v5 and v6 are windows of one source, and February is in both."""
    problems = [("a", "lcb", "2024-09-01"), ("b", "lcb", "2025-02-10"), ("c", "aime", None)]
    verdicts = {("a", 0): "AC", ("a", 1): "WA", ("b", 0): "AC", ("b", 1): "IE", ("c", 0): "WA"}
    found = answers_of(
        evaluation(
            tmp_path,
            [
                result("v5", 2, "lcb", date_to="2025-03-01"),
                result("v6", 1, "lcb", date_from="2025-02-01"),
                result("aime", 1),
            ],
            problems,
            verdicts,
        )
    )
    assert found["v5"] == {"a": {0: True, 1: False}, "b": {0: True}}
    assert found["v6"] == {"b": {0: True}}
    assert means_of(found["v5"]) == {"a": 0.5, "b": 1.0}
    assert means_of(found["aime"]) == {"c": 0.0}


def test_the_last_model_counts_with_as_many_answers_as_those_kept_along_the_way(tmp_path):
    two = {("a", 0): "AC", ("a", 1): "WA"}
    problems = [("a", "x", None)]
    evaluation(tmp_path / "kept/step-00002", [result("x", 2)], problems, two)
    four = two | {("a", 2): "AC", ("a", 3): "AC"}
    evaluation(tmp_path, [result("x", 4)], problems, four)
    assert read_learning(tmp_path) == {}  # no learning curve was asked for
    (tmp_path / LEARNING_CURVE).parent.mkdir()
    lines = [{"step": step, "time": 0.0, "metrics": {}} for step in (2, 6)]
    (tmp_path / LEARNING_CURVE).write_text("\n".join(map(json.dumps, lines)))
    (found,) = read_learning(tmp_path).values()
    assert found.curve == {2: 0.5, 6: 0.5}
    assert found.halves == (
        {2: Point(1.0, 1), 6: Point(1.0, 1)}, {2: Point(0.0, 1), 6: Point(0.0, 1)}
    )  # fmt: skip


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
