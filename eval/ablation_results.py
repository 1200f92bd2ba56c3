"""What the runs of an ablation left, read from their folders: scores a problem, training curves."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eval.effects import Means
from eval.learning import ACCURACY, Learning, answers_of, means_of, read_learning
from eval.off_policy import Counted, read_off_policy

TRAINING = "logs/metrics.jsonl"


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
    learned: Mapping[str, Learning] = field(default_factory=dict)
    """Benchmark → accuracy over training; empty where no model was kept along the way."""

    def score(self, benchmark: str) -> float:
        """avg@k in [0, 1]; NaN when nothing of it was scored."""
        means = self.scores.get(benchmark, {})
        return sum(means.values()) / len(means) if means else float("nan")


def read_cell(arm: str, seed: int, evaluation: Path, model: Path) -> Cell:
    """From the folders of an `evaluate` stage and of the stage that trained the model."""
    learned = read_learning(evaluation)
    curves = curves_in(model / TRAINING)
    curves |= {ACCURACY + name: dict(one.curve) for name, one in learned.items()}
    scores = {name: means_of(answers) for name, answers in answers_of(evaluation).items()}
    return Cell(arm, seed, scores, curves, read_off_policy(model), learned)


def curves_in(path: Path) -> dict[str, dict[int, float]]:
    """Metric → step → value; nothing for a stage that logged none."""
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        for name, value in line["metrics"].items():
            curves[name][int(line["step"])] = float(value)
    return dict(curves)
