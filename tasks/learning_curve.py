"""Accuracy over training: the scores of the models that RL kept along the way (Figures 2 and 5)."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from configs.evaluate_stage import LEARNING_CURVE, EvaluateSettings
from eval.benchmarks import RESULTS
from eval.kept import kept_model, kept_models
from eval.learning import ACCURACY, accuracy, answers_of
from eval.records import Problem
from eval.tables import column, count_rows
from tasks.benchmarking import Subject, run_benchmarks
from tasks.store import SCRATCH, Artifact
from training.engines.figures import cost_of
from training.progress_files import StepLines

_RESULTS, _SAMPLES = "results.json", "samples.parquet"
_FILES = (_RESULTS, _SAMPLES, "problems.parquet", "scores.parquet")


def score_kept_models(
    out: Path,
    checkpoint: Artifact,
    everything: Sequence[Problem],
    settings: EvaluateSettings,
    subject: Callable[[Path, str], Subject],
) -> dict[str, float]:
    """Score every kept model of `checkpoint`, whose own scores are in `out`: answers, tokens, cost.

    Files of each in `out/kept/step-N/`, and avg@k by benchmark as a line at its rollout step in
    `logs/learning_curve.jsonl`; the last line is the checkpoint's own, of as many of its answers.
    `subject` makes who answers of a folder and a name. A killed evaluation goes on at the model,
    the answer and the verdict where it was. Nothing is done without a learning curve in the
    settings; with one, a checkpoint that kept nothing raises ValueError.
    """
    asked = settings.along_the_way()
    if asked is None:
        return {}
    kept = kept_models(checkpoint.folder)
    if not kept:
        raise ValueError(
            f"evaluate.learning_curve: {checkpoint.stage} kept no model along the way; run it with "
            "keep_every, or evaluate without a learning curve"
        )
    curve = StepLines(out / LEARNING_CURVE, after_step=0)
    told: Counter[str] = Counter()
    for step, folder in kept:
        target = kept_model(out, step)
        if not target.exists():
            work = out / SCRATCH / folder.name
            work.mkdir(parents=True, exist_ok=True)
            answering = subject(folder, f"{checkpoint.stage}, rollout step {step}")
            run_benchmarks(work, answering, everything, asked)
            _move(work, target)
        for name in ("prompt_tokens", "completion_tokens"):
            told[name] += sum(column(target / _SAMPLES, name))
        told["answers"] += count_rows(target / _SAMPLES)
        results = RESULTS.validate_json((target / _RESULTS).read_bytes())
        _draw(curve, step, {r.name: r.avg for r in results if r.avg is not None})
    k, names = max(p.k for p in asked.protocols), {p.name for p in asked.protocols}
    own = {n: accuracy(a) for n, a in answers_of(out, below=k).items() if a and n in names}
    _draw(curve, int(checkpoint.metrics["rollout_steps"]), own)
    cost = cost_of(settings.engine_runtime, told["prompt_tokens"], told["completion_tokens"])
    found = {name: float(told[name]) for name in ("answers", "completion_tokens")}
    return found if cost is None else {**found, "cost": cost}


def _move(work: Path, target: Path) -> None:
    """The files that stay: all or none."""
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in _FILES:
        shutil.copy2(work / name, partial / name)
    os.replace(partial, target)


def _draw(curve: StepLines, step: int, scores: Mapping[str, float]) -> None:
    metrics = {ACCURACY + name: score for name, score in scores.items()}
    curve.write({"step": step, "time": time.time(), "metrics": metrics})
