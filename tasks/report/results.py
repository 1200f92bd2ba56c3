"""What the stages of one run left on disk. Any of them may be missing: a run stopped early."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from configs.stage_names import STAGES
from eval.benchmarks.benchmarks import RESULTS, BenchmarkResult
from tasks.store.store import Artifact

CHECKPOINTS = {"base": "base", "sft": "SFT", "rl_math": "math RL", "rl_code": "code RL"}
RESULTS_FILE = "results.json"


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
        found = [(a.stage, a.folder / RESULTS_FILE) for a in self.all]
        return [
            Evaluation(stage, RESULTS.validate_json(path.read_bytes()))
            for stage, path in found
            if path.exists()
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
    if count <= 0 or size <= 0:
        return []
    if count == 1:
        return [0]
    return sorted({round(i * (size - 1) / (count - 1)) for i in range(count)})
