"""Evaluate: a checkpoint answers every benchmark k times, the judge scores it: avg@k (§4).

With a learning curve the models that RL kept along the way are scored too (Figures 2 and 5).
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from configs.settings.engines import EngineSettings
from configs.settings.evaluation import LEARNING_CURVE, EvaluateSettings
from eval.benchmarks.benchmarks import GRADER_VERSION, template_hash
from eval.records import Problem
from eval.tables import column, count_rows, read_table
from tasks.models.benchmarking import Subject, metrics_of, run_benchmarks
from tasks.report.results import ACCURACY, accuracy, answers_of, read_results
from tasks.stage.stage import Metrics, stage
from tasks.store.store import SCRATCH, Artifact
from training.engines.journal import cost_of
from training.layout import StepLines, kept_model, kept_models

_FILES = ("results.json", "samples.parquet", "problems.parquet", "scores.parquet")


@stage(version=2 + GRADER_VERSION)  # scores of another judge are not reused
def evaluate(
    out: Path, checkpoint: Artifact, benchmarks: Artifact, *, settings: EvaluateSettings
) -> Metrics:
    """avg@k of one checkpoint on every benchmark, with all that makes the figures comparable.

    Writes problems.parquet (what was asked), samples.parquet, scores.parquet and results.json, and
    with `learning_curve` the same below `kept/` for every model that RL kept along the way.
    """

    def subject(folder: Path, name: str) -> Subject:
        engine = EngineSettings(
            kind=settings.engine,
            model=str(folder),
            yarn_factor=settings.yarn_factor,
            runtime=settings.engine_runtime,
        )
        return Subject(engine, name, checkpoint.digest[:16], template_hash(folder))

    everything = list(read_table(benchmarks.file("kept.parquet"), Problem))
    itself = subject(checkpoint.file("checkpoint"), checkpoint.stage)
    results, costs = run_benchmarks(out, itself, everything, settings)
    costs["answers"] = float(count_rows(out / "samples.parquet"))
    for name, more in score_kept_models(out, checkpoint, everything, settings, subject).items():
        costs[name] = costs.get(name, 0.0) + more
    return {**metrics_of(results), **costs}


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

    def draw(step: int, scores: Mapping[str, float | None]) -> None:
        metrics = {ACCURACY + name: s for name, s in scores.items() if s is not None}
        curve.write({"step": step, "time": time.time(), "metrics": metrics})

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
            told[name] += sum(column(target / "samples.parquet", name))
        told["answers"] += count_rows(target / "samples.parquet")
        draw(step, {r.name: r.avg for r in read_results(target)})
    k, names = max(p.k for p in asked.protocols), {p.name for p in asked.protocols}
    own = {n: accuracy(a) for n, a in answers_of(out, below=k).items() if a and n in names}
    draw(int(checkpoint.metrics["rollout_steps"]), own)
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
