"""Evaluate: a checkpoint answers every benchmark k times, the judge scores it: avg@k (§4)."""

from pathlib import Path

from configs.engines import EngineSettings
from configs.evaluate_stage import EvaluateSettings
from eval.benchmarks import GRADER_VERSION
from eval.records import Problem
from eval.tables import count_rows, read_table
from eval.template_hash import template_hash
from tasks.benchmarking import Subject, metrics_of, run_benchmarks
from tasks.learning_curve import score_kept_models
from tasks.stage import Metrics, stage
from tasks.store import Artifact


def subject_of(folder: Path, name: str, digest: str, settings: EvaluateSettings) -> Subject:
    """A checkpoint of ours as results name it."""
    engine = EngineSettings(
        kind=settings.engine,
        model=str(folder),
        yarn_factor=settings.yarn_factor,
        runtime=settings.engine_runtime,
    )
    return Subject(engine, name, digest, template_hash(folder))


@stage(version=2 + GRADER_VERSION)  # scores of another judge are not reused
def evaluate(
    out: Path, checkpoint: Artifact, benchmarks: Artifact, *, settings: EvaluateSettings
) -> Metrics:
    """avg@k of one checkpoint on every benchmark, with all that makes the figures comparable.

    Writes problems.parquet (what was asked), samples.parquet, scores.parquet and results.json, and
    with `learning_curve` the same below `kept/` for every model that RL kept along the way.
    """

    def subject(folder: Path, name: str) -> Subject:
        return subject_of(folder, name, checkpoint.digest[:16], settings)

    everything = list(read_table(benchmarks.file("kept.parquet"), Problem))
    itself = subject(checkpoint.file("checkpoint"), checkpoint.stage)
    results, costs = run_benchmarks(out, itself, everything, settings)
    costs["answers"] = float(count_rows(out / "samples.parquet"))
    for name, more in score_kept_models(out, checkpoint, everything, settings, subject).items():
        costs[name] = costs.get(name, 0.0) + more
    return {**metrics_of(results), **costs}
