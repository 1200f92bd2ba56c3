"""Every checkpoint on every benchmark: avg@k with a confidence interval (§4)."""

from configs.settings import Pipeline
from flows.data import Data
from flows.train import Checkpoints
from tasks.evaluate import evaluate
from tasks.store import Artifact


def evaluate_all(models: Checkpoints, data: Data, s: Pipeline) -> tuple[Artifact, ...]:
    """One evaluation a checkpoint, in training order, all under the same protocol.

    A learning curve is asked of those that kept models alone: it is part of a result's key.
    """
    keeps = {"rl_math": s.rl_math.keep_every, "rl_code": s.rl_code.keep_every}
    plain = s.evaluate.model_copy(update={"learning_curve": None})
    return tuple(
        evaluate.named(f"evaluate_{name}")(
            model, data.benchmarks, settings=s.evaluate if keeps.get(name) else plain
        )
        for name, model in models.named
    )
