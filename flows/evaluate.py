"""Every checkpoint on every benchmark: avg@k with a confidence interval (§4)."""

from configs.settings import Pipeline
from flows.data import Data
from flows.train import Checkpoints
from tasks.evaluate import evaluate
from tasks.store import Artifact


def evaluate_all(models: Checkpoints, data: Data, s: Pipeline) -> tuple[Artifact, ...]:
    """One evaluation a checkpoint, in training order, all under the same protocol."""
    return tuple(
        evaluate.named(f"evaluate_{name}")(model, data.benchmarks, settings=s.evaluate)
        for name, model in models.named
    )
