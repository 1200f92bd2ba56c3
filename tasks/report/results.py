"""What the stages of one run left on disk. Any of them may be missing: a run stopped early."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from configs.settings.evaluation import LEARNING_CURVE, BenchmarkProtocol
from configs.stage_names import STAGES
from eval.benchmarks.benchmarks import RESULTS, BenchmarkResult, in_window
from tasks.ablation.effects import Learning, Point
from tasks.store.store import Artifact
from training.layout import kept_models

CHECKPOINTS = {"base": "base", "sft": "SFT", "rl_math": "math RL", "rl_code": "code RL"}
RESULTS_FILE = "results.json"
ACCURACY = "accuracy/"
Answers = Mapping[str, Mapping[int, bool]]
"""Problem id → index → whether that answer is right; unscored ones are left out."""


class Outputs:
    """The results of a run, in the order of the pipeline."""

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        order = {name: i for i, name in enumerate(STAGES)}
        self.all = sorted(artifacts, key=lambda a: order.get(a.stage, len(order)))

    def get(self, stage: str) -> Artifact | None:
        return next((a for a in self.all if a.stage == stage), None)

    def file(self, stage: str, name: str) -> Path | None:
        """One file of one stage; None if either is missing."""
        artifact = self.get(stage)
        path = artifact.folder / name if artifact else None
        return path if path and path.exists() else None

    def evaluations(self) -> list["Evaluation"]:
        return [
            Evaluation(a.stage, read_results(a.folder))
            for a in self.all
            if (a.folder / RESULTS_FILE).exists()
        ]


@dataclass(frozen=True)
class Evaluation:
    """All scores of one checkpoint."""

    stage: str
    results: tuple[BenchmarkResult, ...]

    @property
    def checkpoint(self) -> str:
        name = self.stage.removeprefix("evaluate_")
        return CHECKPOINTS.get(name, name)

    def result(self, benchmark: str) -> BenchmarkResult | None:
        return next((r for r in self.results if r.name == benchmark), None)


def read_results(evaluation: Path) -> tuple[BenchmarkResult, ...]:
    return RESULTS.validate_json((evaluation / RESULTS_FILE).read_bytes())


def curves_of(path: Path) -> dict[str, dict[int, float]]:
    """Metric → step → value, by name, from lines {"step", "metrics"}; none without the file.

    A later line of a step replaces an earlier one: a resumed stage logs some steps again.
    """
    curves: dict[str, dict[int, float]] = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(text)
        for name, value in row["metrics"].items():
            curves.setdefault(name, {})[int(row["step"])] = float(value)
    return {name: dict(sorted(points.items())) for name, points in sorted(curves.items())}


def rows_at(path: Path, numbers: Sequence[int]) -> list[dict]:
    """The rows at `numbers`, in that order; answers of a full-size run never fill memory."""
    scanner = ds.dataset(path).scanner(batch_size=256, batch_readahead=1)
    return scanner.take(pa.array(numbers, pa.int64())).to_pylist()


def spread(size: int, count: int) -> list[int]:
    """`count` indices of a list of `size`, evenly from the first to the last."""
    if count < 2 or size <= 0:
        return list(range(min(size, count)))
    return sorted({round(i * (size - 1) / (count - 1)) for i in range(count)})


def answers_of(evaluation: Path, below: int | None = None) -> dict[str, Answers]:
    """Benchmark → answers, from the files of an evaluation; only those with index `below` it."""
    columns = ["problem_id", "index", "correct", "verdict"]
    judged: dict[str, dict[int, bool]] = defaultdict(dict)
    for row in pq.read_table(evaluation / "scores.parquet", columns=columns).to_pylist():
        if row["verdict"] != "IE" and (below is None or row["index"] < below):
            judged[row["problem_id"]][row["index"]] = row["correct"]
    columns = ["id", "source", "date"]
    problems = pq.read_table(evaluation / "problems.parquet", columns=columns).to_pylist()
    found: dict[str, Answers] = {}
    for r in read_results(evaluation):
        window = BenchmarkProtocol(name=r.name, date_from=r.date_from, date_to=r.date_to)
        asked = [p for p in problems if p["source"] == r.source]
        ids = [p["id"] for p in asked if in_window(window, p["date"] or "") and p["id"] in judged]
        mine = {i: {n: right for n, right in judged[i].items() if n < r.k} for i in ids}
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
    first = read_results(next(iter(kept.values())))
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
