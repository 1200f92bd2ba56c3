"""What an evaluation answered, by benchmark: for scores, for accuracy over training and how
steadily it rises (Figures 2 and 5)."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from configs.evaluate_stage import LEARNING_CURVE, BenchmarkProtocol
from eval.benchmarks import RESULTS, in_window
from eval.effects import Effect, paired_seeds, students_half
from eval.kept import kept_models

ACCURACY = "accuracy/"
_RESULTS = "results.json"
Answers = Mapping[str, Mapping[int, bool]]
"""Problem id → index → whether that answer is right; unscored ones are left out."""


@dataclass(frozen=True)
class Point:
    """One half of the answers of one model."""

    accuracy: float
    answers: int


Half = Mapping[int, Point]
"""By rollout step."""


@dataclass(frozen=True)
class Learning:
    """Accuracy on one benchmark over training."""

    curve: Mapping[int, float]
    """Rollout step → avg@k in [0, 1]; the same k at every step."""
    halves: tuple[Half, Half]
    """The same of answers with even and with odd index: two measurements of each model."""


def answers_of(folder: Path, below: int | None = None) -> dict[str, Answers]:
    """Benchmark → answers, from the files of an evaluation; only those with index `below` it."""
    table = pq.read_table(folder / "problems.parquet", columns=["id", "source", "date"]).to_pylist()
    judged: dict[str, dict[int, bool]] = defaultdict(dict)
    columns = ["problem_id", "index", "correct", "verdict"]
    for row in pq.read_table(folder / "scores.parquet", columns=columns).to_pylist():
        if row["verdict"] != "IE":
            judged[row["problem_id"]][row["index"]] = row["correct"]
    found: dict[str, Answers] = {}
    for result in RESULTS.validate_json((folder / _RESULTS).read_bytes()):
        k = result.k if below is None else min(result.k, below)
        window = BenchmarkProtocol(
            name=result.name, date_from=result.date_from, date_to=result.date_to
        )
        ids = [
            row["id"]
            for row in table
            if row["source"] == result.source and in_window(window, row["date"] or "")
        ]
        mine = {i: {n: c for n, c in judged[i].items() if n < k} for i in ids if i in judged}
        found[result.name] = {i: answers for i, answers in mine.items() if answers}
    return found


def means_of(answers: Answers) -> dict[str, float]:
    """Problem id → mean outcome."""
    return {i: sum(row.values()) / len(row) for i, row in answers.items()}


def accuracy(answers: Answers) -> float:
    """avg@k in [0, 1]."""
    return float(np.mean(list(means_of(answers).values())))


def read_learning(evaluation: Path) -> dict[str, Learning]:
    """By benchmark, from an evaluation with a learning curve; empty without one.

    Of the last model only as many answers to a problem count as of those kept along the way.
    """
    file = evaluation / LEARNING_CURVE
    if not file.exists():
        return {}
    final = max(json.loads(line)["step"] for line in file.read_text().splitlines())
    kept = dict(kept_models(evaluation))
    first = next(iter(kept.values()))
    k = max(result.k for result in RESULTS.validate_json((first / _RESULTS).read_bytes()))
    by_step = {step: answers_of(folder) for step, folder in kept.items()}
    own = answers_of(evaluation, below=k)
    return {
        name: _learning({s: found[name] for s, found in by_step.items()} | {final: own[name]})
        for name in next(iter(by_step.values()))
    }


def _learning(by_step: Mapping[int, Answers]) -> Learning:
    """A model of which nothing was scored is no point of it."""
    first, second = ({s: _half(a, odd) for s, a in by_step.items()} for odd in (0, 1))
    whole = [step for step in by_step if first[step].answers and second[step].answers]
    curve = {step: accuracy(by_step[step]) for step in whole}
    return Learning(curve, ({s: first[s] for s in whole}, {s: second[s] for s in whole}))


def _half(answers: Answers, odd: int) -> Point:
    rows = [[c for n, c in row.items() if n % 2 == odd] for row in answers.values()]
    means = [sum(row) / len(row) for row in rows if row]
    accuracy = sum(means) / len(means) if means else float("nan")
    return Point(accuracy, sum(map(len, rows)))


def fall(halves: tuple[Half, Half]) -> float:
    """How far accuracy fell on its way: Σₜ max(0, aₜ₋₁ − aₜ), without the falls that are noise.

    From one model to the next counts what one half of the answers fell, where the other half fell
    by more than a standard error; both ways, and their mean. So answers that waver by chance add
    nothing in the mean, whatever the level and the slope of the curve: plain falls of noisy scores
    are fewer where the curve rises, and where nearly all is wrong, and would call such an arm
    steadier. A true fall below the error of a half counts in part.
    """
    steps = sorted(halves[0])
    total = 0.0
    for before, now in pairwise(steps):
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
    (simulated in tests/eval/test_learning.py).

    Raises ValueError for fewer than FEWEST_SEEDS seeds, lists that do not pair, or points of other
    steps: a curve with more points has more chances to fall.
    """
    n = paired_seeds(first, second)
    if len({tuple(sorted(one.curve)) for one in (*first, *second)}) > 1:
        raise ValueError("the curves have points at different steps")
    falls = [fall(b.halves) - fall(a.halves) for a, b in zip(first, second, strict=True)]
    by_seed = np.array(falls)
    mean, spread = float(by_seed.mean()), float(by_seed.std(ddof=1))
    half = students_half(by_seed, confidence)
    size = mean / spread if spread else float("nan")
    return Effect(mean, mean - half, mean + half, size, int((by_seed > 0).sum()), n)
