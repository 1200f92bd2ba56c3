"""Accuracy over training: the scores of the models that RL kept along the way (Figures 2 and 5)."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.evaluate_stage import LEARNING_CURVE, EvaluateSettings
from eval.benchmarks import BenchmarkResult
from eval.records import Problem
from eval.tables import column
from tasks.benchmarking import RESULTS, Subject, run_benchmarks
from tasks.store import SCRATCH, Artifact
from training.progress_files import StepLines
from training.stable import KEPT, kept_models

_RESULTS, _SAMPLES = "results.json", "samples.parquet"
_FILES = (_RESULTS, _SAMPLES, "problems.parquet", "scores.parquet")


def score_kept_models(
    out: Path,
    checkpoint: Artifact,
    everything: Sequence[Problem],
    settings: EvaluateSettings,
    subject: Callable[[Path, str], Subject],
    last: Sequence[BenchmarkResult],
) -> tuple[int, int]:
    """Score every kept model of `checkpoint` into `out/kept/step-N/`: answers and tokens.

    Each is a line of `logs/learning_curve.jsonl`: avg@k by benchmark at its rollout step; and so
    are the `last` results, which are the checkpoint's own. `subject` makes who answers of a folder
    and a name. A killed evaluation goes on at the model, the answer and the verdict where it was.
    Without a learning curve in the settings, or without kept models, nothing is done.
    """
    asked = settings.along_the_way()
    kept = kept_models(checkpoint.folder)
    if asked is None or not kept:
        return 0, 0
    curve = StepLines(out / LEARNING_CURVE, after_step=0)
    tokens: list[int] = []
    for step, folder in kept:
        target = out / KEPT / folder.name
        if not target.exists():
            work = out / SCRATCH / folder.name
            work.mkdir(parents=True, exist_ok=True)
            answering = subject(folder, f"{checkpoint.stage}, rollout step {step}")
            run_benchmarks(work, answering, everything, asked)
            _move(work, target)
        tokens += column(target / _SAMPLES, "completion_tokens")
        _draw(curve, step, RESULTS.validate_json((target / _RESULTS).read_bytes()))
    names = {p.name for p in asked.protocols}
    final = int(checkpoint.metrics["rollout_steps"])
    _draw(curve, final, [result for result in last if result.name in names])
    return len(tokens), sum(tokens)


def _move(work: Path, target: Path) -> None:
    """The files that stay: all or none."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in _FILES:
        shutil.copy2(work / name, partial / name)
    os.replace(partial, target)


def _draw(curve: StepLines, step: int, results: Sequence[BenchmarkResult]) -> None:
    scores = {f"accuracy/{r.name}": r.avg for r in results if r.avg is not None}
    curve.write({"step": step, "time": time.time(), "metrics": scores})
