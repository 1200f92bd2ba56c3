"""Accuracy on benchmarks over training, and how steadily it rises (Figures 2 and 5)."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from configs.settings.evaluation import LEARNING_CURVE, BenchmarkProtocol
from eval.benchmarks.benchmarks import RESULTS, in_window
from tasks.ablation.effects import Effect, paired_seeds, students_half
from training.layout import kept_models

ACCURACY = "accuracy/"
Answers = Mapping[str, Mapping[int, bool]]
"""Problem id → index → whether that answer is right; unscored ones are left out."""


@dataclass(frozen=True)
class Point:
    """One half of the answers of one model."""

    accuracy: float
    answers: int


@dataclass(frozen=True)
class Learning:
    """Accuracy on one benchmark over training."""

    curve: Mapping[int, float]
    """Rollout step → avg@k in [0, 1]; the same k at every step."""
    halves: tuple[Mapping[int, Point], Mapping[int, Point]]
    """By step, of answers with even and with odd index: two measurements of each model."""


def answers_of(evaluation: Path, below: int | None = None) -> dict[str, Answers]:
    """Benchmark → answers, from the files of an evaluation; only those with index `below` it."""
    columns = ["problem_id", "index", "correct", "verdict"]
    judged: dict[str, dict[int, bool]] = defaultdict(dict)
    for row in pq.read_table(evaluation / "scores.parquet", columns=columns).to_pylist():
        if row["verdict"] != "IE" and (below is None or row["index"] < below):
            judged[row["problem_id"]][row["index"]] = row["correct"]
    problems = pq.read_table(evaluation / "problems.parquet", columns=["id", "source", "date"])
    found: dict[str, Answers] = {}
    for r in RESULTS.validate_json((evaluation / "results.json").read_bytes()):
        window = BenchmarkProtocol(name=r.name, date_from=r.date_from, date_to=r.date_to)
        mine = {
            row["id"]: {n: c for n, c in judged[row["id"]].items() if n < r.k}
            for row in problems.to_pylist()
            if row["id"] in judged and row["source"] == r.source
            if in_window(window, row["date"] or "")
        }
        found[r.name] = {i: answers for i, answers in mine.items() if answers}
    return found


def means_of(answers: Answers) -> dict[str, float]:
    """Problem id → mean outcome."""
    return {i: sum(row.values()) / len(row) for i, row in answers.items()}


def accuracy(answers: Answers) -> float:
    """avg@k in [0, 1]."""
    return float(np.mean(list(means_of(answers).values())))


def read_learning(evaluation: Path) -> dict[str, Learning]:
    """By benchmark, from an evaluation with a learning curve; empty without one.

    Of the last model only as many answers to a problem count as of those kept along the way. A
    model of which nothing was scored is no point.
    """
    file = evaluation / LEARNING_CURVE
    if not file.exists():
        return {}
    final = max(json.loads(line)["step"] for line in file.read_text().splitlines())
    kept = dict(kept_models(evaluation))
    first = RESULTS.validate_json((next(iter(kept.values())) / "results.json").read_bytes())
    by_step = {step: answers_of(folder) for step, folder in kept.items()}
    by_step[final] = answers_of(evaluation, below=max(r.k for r in first))
    return {r.name: _learning({s: found[r.name] for s, found in by_step.items()}) for r in first}


def _learning(by_step: Mapping[int, Answers]) -> Learning:
    first, second = ({s: _half(a, odd) for s, a in by_step.items()} for odd in (0, 1))
    whole = [step for step in by_step if first[step].answers and second[step].answers]
    curve = {step: accuracy(by_step[step]) for step in whole}
    return Learning(curve, ({s: first[s] for s in whole}, {s: second[s] for s in whole}))


def _half(answers: Answers, odd: int) -> Point:
    rows = [[c for n, c in row.items() if n % 2 == odd] for row in answers.values()]
    means = [sum(row) / len(row) for row in rows if row]
    mean = sum(means) / len(means) if means else float("nan")
    return Point(mean, sum(map(len, rows)))


def fall(halves: tuple[Mapping[int, Point], Mapping[int, Point]]) -> float:
    """How far accuracy fell on its way: Σₜ max(0, aₜ₋₁ − aₜ), without the falls that are noise.

    Cross-fitted: between consecutive models one half of the answers selects the drops larger than a
    standard error, the other half measures them; both ways, and their mean. So noise averages to
    zero, whatever the level and the slope of the curve: plain drops of noisy scores are fewer where
    the curve rises, and where nearly all is wrong, and would call such an arm steadier. A
    true fall below the error of a half counts in part.
    """
    total = 0.0
    for before, now in pairwise(sorted(halves[0])):
        first, second = ((half[before], half[now]) for half in halves)
        for told, measured in ((first, second), (second, first)):
            if told[0].accuracy - told[1].accuracy > _error(told):
                total += (measured[0].accuracy - measured[1].accuracy) / 2
    return total


def _error(points: Sequence[Point]) -> float:
    """Standard error of a difference of two accuracies; at most, for problems differ."""
    return math.sqrt(sum(p.accuracy * (1 - p.accuracy) / p.answers for p in points))


def steadiness_effect(
    first: Sequence[Learning], second: Sequence[Learning], confidence: float = 0.95
) -> Effect:
    """By how much less the first fell on its way than the second; entry i of both have seed i.

    Student's interval of the paired differences of `fall`, over seeds. With no fall in either arm
    at most 3 % are called confirmed, and as many reversed, also if one rises or is stuck at zero
    (simulated in tests/tasks/test_learning.py).

    Raises ValueError for fewer than FEWEST_SEEDS seeds, lists that do not pair, or points of other
    steps: a curve with more points has more chances to fall.
    """
    n = paired_seeds(first, second)
    if len({tuple(sorted(one.curve)) for one in (*first, *second)}) > 1:
        raise ValueError("the curves have points at different steps")
    falls = np.array([fall(b.halves) - fall(a.halves) for a, b in zip(first, second, strict=True)])
    mean, spread, half = falls.mean(), falls.std(ddof=1), students_half(falls, confidence)
    size = float(mean / spread) if spread else float("nan")
    wins = int((falls > 0).sum())
    return Effect(float(mean), float(mean - half), float(mean + half), size, wins, n)
