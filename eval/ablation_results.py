"""What the runs of an ablation left, read from their folders: scores a problem, training curves."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from configs.evaluate_stage import LEARNING_CURVE
from eval.effects import Means
from eval.off_policy import Counted, read_off_policy

TRAINING = "logs/metrics.jsonl"
ACCURACY = "accuracy/"


@dataclass(frozen=True)
class Cell:
    """One arm with one seed."""

    arm: str
    seed: int
    scores: Mapping[str, Means]
    """Benchmark → problem id → mean of its scored samples."""
    curves: Mapping[str, Mapping[int, float]]
    """Metric → rollout step → value: of training, and `accuracy/<benchmark>` of the models that
    were kept along the way and of the last one."""
    off_policy: Sequence[Counted] = ()
    """Every update of the RL stage that was scored."""

    def learning(self, benchmark: str) -> Mapping[int, float]:
        """avg@k in [0, 1] by rollout step; empty where no model was kept."""
        return self.curves.get(f"{ACCURACY}{benchmark}", {})

    def score(self, benchmark: str) -> float:
        """avg@k in [0, 1]; NaN when nothing of it was scored."""
        means = self.scores.get(benchmark, {})
        return sum(means.values()) / len(means) if means else float("nan")


def read_cell(arm: str, seed: int, evaluation: Path, model: Path) -> Cell:
    """From the folders of an `evaluate` stage and of the stage that trained the model."""
    curves = curves_in(model / TRAINING) | curves_in(evaluation / LEARNING_CURVE)
    return Cell(arm, seed, problem_means(evaluation), curves, read_off_policy(model))


def problem_means(evaluation: Path) -> dict[str, dict[str, float]]:
    """Benchmark → problem id → mean outcome; unscored samples leave the mean."""
    problems = pq.read_table(evaluation / "problems.parquet", columns=["id", "source"])
    of = dict(zip(problems["id"].to_pylist(), problems["source"].to_pylist(), strict=True))
    scores = pq.read_table(
        evaluation / "scores.parquet", columns=["problem_id", "correct", "verdict"]
    )
    seen: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in scores.to_pylist():
        if row["verdict"] != "IE":
            seen[of[row["problem_id"]]][row["problem_id"]].append(row["correct"])
    return {b: {p: sum(r) / len(r) for p, r in rows.items()} for b, rows in seen.items()}


def curves_in(path: Path) -> dict[str, dict[int, float]]:
    """Metric → step → value; nothing for a stage that logged none."""
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        for name, value in line["metrics"].items():
            curves[name][int(line["step"])] = float(value)
    return dict(curves)
