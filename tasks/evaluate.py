"""Evaluate: a checkpoint answers every benchmark k times, the judge scores it: avg@k (§4)."""

from pathlib import Path

from configs.engines import EngineSettings
from configs.evaluate_stage import EvaluateSettings
from eval.benchmarks import GRADER_VERSION
from eval.records import Problem
from eval.tables import read_table
from eval.template_hash import template_hash
from tasks.benchmarking import Subject, metrics_of, run_benchmarks
from tasks.stage import Metrics, stage
from tasks.store import Artifact


def subject_of(checkpoint: Artifact, settings: EvaluateSettings) -> Subject:
    """A checkpoint of ours, named by the stage that made it."""
    folder = checkpoint.file("checkpoint")
    engine = EngineSettings(
        kind=settings.engine,
        model=str(folder),
        yarn_factor=settings.yarn_factor,
        runtime=settings.engine_runtime,
    )
    return Subject(engine, checkpoint.stage, checkpoint.digest[:16], template_hash(folder))


@stage(version=2 + GRADER_VERSION)  # scores of another judge are not reused
def evaluate(
    out: Path, checkpoint: Artifact, benchmarks: Artifact, *, settings: EvaluateSettings
) -> Metrics:
    """avg@k of one checkpoint on every benchmark, with all that makes the figures comparable.

    Writes problems.parquet (what was asked), samples.parquet, scores.parquet and results.json.
    """
    everything = read_table(benchmarks.file("kept.parquet"), Problem)
    results, costs = run_benchmarks(out, subject_of(checkpoint, settings), everything, settings)
    return {**metrics_of(results), **costs}
