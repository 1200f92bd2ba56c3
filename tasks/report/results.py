"""What the stages of one run left on disk. Any of them may be missing: a run stopped early."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ...configs.settings.evaluation import BenchmarkProtocol
from ...configs.settings.pipeline import STAGES
from ...eval.benchmarks.benchmarks import RESULTS, BenchmarkResult, in_window
from ...eval.benchmarks.metrics import bootstrap_interval
from ...training.launch.result_files import read_lines
from ..store.store import Artifact

CHECKPOINTS = {"base": "base", "sft": "SFT", "rl_math": "math RL", "rl_code": "code RL"}
RESAMPLES = 2_000
RESULTS_FILE = "results.json"
ACCURACY = "accuracy/"
ANSWERED_BY = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "yarn_factor",
               "grader_version", "not_sent")  # fmt: skip
"""Of a statement: scores that differ in one of them are not compared."""
Answers = Mapping[str, Mapping[int, bool]]
"""Problem id → index → whether that answer is right; unscored ones are left out."""


class Outputs:
    """The results of a run, in the order of the pipeline."""

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        order = {name: i for i, name in enumerate(STAGES)}
        self.all = sorted(artifacts, key=lambda a: order.get(a.stage, len(order)))

    def file(self, stage: str, name: str) -> Path | None:
        """One file of one stage; None if either is missing."""
        paths = (a.folder / name for a in self.all if a.stage == stage)
        return next((path for path in paths if path.exists()), None)

    def evaluations(self) -> list["Evaluation"]:
        return [
            Evaluation(a.stage, read_results(a.folder), a.folder)
            for a in self.all
            if (a.folder / RESULTS_FILE).exists()
        ]


@dataclass(frozen=True)
class Evaluation:
    """All scores of one checkpoint, and where its answers are."""

    stage: str
    results: tuple[BenchmarkResult, ...]
    folder: Path

    @property
    def checkpoint(self) -> str:
        name = self.stage.removeprefix("evaluate_")
        return CHECKPOINTS.get(name, name)

    def result(self, benchmark: str) -> BenchmarkResult | None:
        return next((r for r in self.results if r.name == benchmark), None)


class Change(NamedTuple):
    """Of avg@k in points, with its 95 % interval over problems."""

    points: float
    low: float
    high: float

    def __str__(self) -> str:
        """`+19.0`, or `within noise`."""
        if self.low <= 0 <= self.high:
            return "within noise"
        return f"{self.points:+.1f}".replace("-", "−")


def change_of(before: Evaluation, after: Evaluation, benchmark: str) -> Change | None:
    """From one checkpoint to the next; None where both did not answer the same questions, or were
    sampled or judged in other ways.

    What makes a problem hard is in both scores and cancels, so the interval is narrower than the
    two intervals of the scores say: that of the mean difference, resampling problems.
    """
    old, new = before.result(benchmark), after.result(benchmark)
    if not old or not new or old.avg is None or new.avg is None or old.questions != new.questions:
        return None
    if any(getattr(old.statement, n) != getattr(new.statement, n) for n in ANSWERED_BY):
        return None
    first, second = (means_of(answers_of(e.folder)[benchmark]) for e in (before, after))
    both = np.array([100 * (second[p] - first[p]) for p in sorted(first.keys() & second.keys())])
    if not both.size:
        return None
    return Change(float(both.mean()), *bootstrap_interval(both, RESAMPLES, seed=0))


def read_results(evaluation: Path) -> tuple[BenchmarkResult, ...]:
    return RESULTS.validate_json((evaluation / RESULTS_FILE).read_bytes())


def curves_of(path: Path) -> dict[str, dict[int, float]]:
    """Metric → step → value, by name, from lines {"step", "metrics"}; none without the file. A
    later line of a step replaces an earlier one: a resumed stage logs some steps again."""
    curves: dict[str, dict[int, float]] = {}
    for row in read_lines(path):
        for name, value in row["metrics"].items():
            curves.setdefault(name, {})[int(row["step"])] = float(value)
    return {name: dict(sorted(points.items())) for name, points in sorted(curves.items())}


def rows_at(path: Path, numbers: Sequence[int]) -> list[dict]:
    """The rows at `numbers`, in that order; answers of a full-size run never fill memory."""
    scanner = ds.dataset(path).scanner(batch_size=256, batch_readahead=1)
    return scanner.take(pa.array(numbers, pa.int64())).to_pylist()


def answers_of(evaluation: Path, below: int | None = None) -> dict[str, Answers]:
    """Benchmark → answers, from the files of an evaluation; only those with index `below` it."""
    columns = ["problem_id", "index", "correct", "verdict"]
    judged: dict[str, dict[int, bool]] = defaultdict(dict)
    for row in pq.read_table(evaluation / "scores.parquet", columns=columns).to_pylist():
        if row["verdict"] != "IE" and (below is None or row["index"] < below):
            judged[row["problem_id"]][row["index"]] = row["correct"]
    columns = ["id", "source", "date"]
    problems = pq.read_table(evaluation / "problems.parquet", columns=columns).to_pylist()
    by_benchmark: dict[str, Answers] = {}
    for r in read_results(evaluation):
        window = BenchmarkProtocol(name=r.name, date_from=r.date_from, date_to=r.date_to)
        of_source = [p for p in problems if p["source"] == r.source]
        ids = [
            p["id"] for p in of_source if in_window(window, p["date"] or "") and p["id"] in judged
        ]
        outcomes = {i: {n: right for n, right in judged[i].items() if n < r.k} for i in ids}
        by_benchmark[r.name] = {i: answers for i, answers in outcomes.items() if answers}
    return by_benchmark


def means_of(answers: Answers) -> dict[str, float]:
    """Problem id → mean outcome."""
    return {i: fmean(row.values()) for i, row in answers.items()}
