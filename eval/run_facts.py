"""What a finished run left on disk, read for the report: counts, curves, verdicts, scores.

Any stage may be missing (a run stopped early, a profile without RL): its facts are then absent.
Wide tables are read by column, so that the answers of a full-size run never enter memory.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.stage_names import STAGES
from eval.agreement import Agreement, Grade, compare
from eval.benchmarks import RESULTS, BenchmarkResult
from eval.plots import Series
from eval.records import Problem, Sample, Score
from eval.tables import column, count_rows, read_table

CHECKPOINTS = {"base": "base", "sft": "SFT", "rl_math": "math RL", "rl_code": "code RL"}
# Stages whose answers one judge stage scored: (answers, verdicts, where the problems are).
JUDGED = (
    ("distill", "judge", "decontaminate"),
    ("rate", "judge_rate", "decontaminate"),
    ("sample", "judge_rl", "filter_tests"),
)
TOKEN_METRICS = ("completion_tokens", "tokens")
COST_METRICS = ("cost", "cost_usd")
_DETAIL = re.compile(r"'[^']*'|\"[^\"]*\"|\b(?=\w*\d)[0-9a-f]{8,}\b|\b\d+(?:\.\d+)?\b(?![\w-])")


@dataclass(frozen=True)
class StageOutput:
    """One published stage as the report sees it."""

    stage: str
    folder: Path
    metrics: Mapping[str, float]
    seconds: float = 0.0


@dataclass(frozen=True)
class Filtered:
    """What one stage kept and rejected; `reasons` with counts, the most frequent first."""

    stage: str
    kept: int
    rejected: int
    reasons: tuple[tuple[str, int], ...]
    answers: bool = False
    """The rows kept are answers that a model gave, those rejected are problems without one."""


@dataclass(frozen=True)
class Verdicts:
    """The judge's word on the answers of one stage."""

    stage: str
    answers: int
    right: int
    unscored: int
    by_verdict: tuple[tuple[str, int], ...]


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


class RunFacts:
    """The stages of one run by name, in the order of the pipeline."""

    def __init__(self, outputs: Sequence[StageOutput]) -> None:
        order = {name: i for i, name in enumerate(STAGES)}
        self.outputs = sorted(outputs, key=lambda o: order.get(o.stage, len(order)))

    def get(self, stage: str) -> StageOutput | None:
        return next((o for o in self.outputs if o.stage == stage), None)

    def path(self, stage: str, name: str) -> Path | None:
        """One file of one stage; None if either is missing."""
        output = self.get(stage)
        path = output.folder / name if output else None
        return path if path and path.exists() else None

    def filters(self) -> list[Filtered]:
        return [f for o in self.outputs if (f := _filtered(o))]

    def verdicts(self) -> list[Verdicts]:
        paths = [(answers, self.path(judge, "scores.parquet")) for answers, judge, _ in JUDGED]
        return [_verdicts(stage, path) for stage, path in paths if path]

    def evaluations(self) -> list[Evaluation]:
        found = [(o.stage, o.folder / "results.json") for o in self.outputs]
        return [
            Evaluation(stage, RESULTS.validate_json(path.read_bytes()))
            for stage, path in found
            if path.exists()
        ]

    def curves(self, stage: str) -> dict[str, Series]:
        """Every metric that `stage` logged, by name."""
        path = self.path(stage, "logs/metrics.jsonl")
        return curves_of(path) if path else {}

    def agreements(self) -> list[tuple[str, Agreement]]:
        """Judge against published grades, for every stage whose answers carry some."""
        found = []
        for answers, judge, problems in JUDGED:
            grades, samples = (
                self.path(answers, "grades.parquet"),
                self.path(answers, "samples.parquet"),
            )
            scores, asked = self.path(judge, "scores.parquet"), self.path(problems, "kept.parquet")
            if grades and samples and scores:
                agreement = compare(
                    read_table(asked, Problem) if asked else (),
                    read_table(samples, Sample),
                    read_table(scores, Score),
                    read_table(grades, Grade),
                )
                found.append((answers, agreement))
        return found


def first(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    """The first of the metrics `names` that there is."""
    return next((v for n, v in metrics.items() if n in names), None)


def reason_kind(reason: str) -> str:
    """A reject's reason without the row's own details: quoted text, hashes and numbers."""
    return " ".join(_DETAIL.sub("…", reason).split())


def _filtered(output: StageOutput) -> Filtered | None:
    kept, rejected = output.folder / "kept.parquet", output.folder / "rejected.parquet"
    samples = output.folder / "samples.parquet"
    answers = not kept.exists() and samples.exists() and rejected.exists()
    if not (kept.exists() or answers):
        return None
    reasons: Counter[str] = Counter()
    if rejected.exists():
        reasons.update(reason_kind(str(r)) for r in column(rejected, "reason"))
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = count_rows(samples if answers else kept)
    return Filtered(output.stage, rows, reasons.total(), tuple(ranked), answers)


def _verdicts(stage: str, path: Path) -> Verdicts:
    counts = Counter(str(v) for v in column(path, "verdict"))
    return Verdicts(
        stage=stage,
        answers=counts.total(),
        right=sum(c is True for c in column(path, "correct")),
        unscored=counts["IE"],
        by_verdict=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
    )


def curves_of(path: Path) -> dict[str, Series]:
    """Metrics by name from lines {"step", "time", "metrics"}; a later line of a step replaces."""
    points: dict[str, dict[float, float]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        for name, value in row["metrics"].items():
            points.setdefault(name, {})[row["step"]] = float(value)
    return {
        name: Series(name, *zip(*sorted(values.items()), strict=True))
        for name, values in sorted(points.items())
    }
