"""Which rows and models a complete run came to: on its page, and as aliases of its checkpoints."""

from collections.abc import Mapping
from statistics import fmean

from ..store.store import Artifact
from .mlflow_client import ARTIFACT_TAG, DIGEST_TAG, MODEL_TAG, Mlflow
from .stage_run import dataset_of
from .tracker import Tracker

ALIASES = {"rl_math": "math_rl", "rl_code": "code_rl"}
"""Of a model's version, where it is not the name of its stage."""
BEST = "best"
READ = {"select": "training", "filter_rl": "training", "benchmarks": "eval"}
"""The rows that a pipeline is known by, with their context in MLflow."""


def log_complete(tracker: Tracker, run_id: str, results: Mapping[str, Artifact]) -> None:
    """The rows and models of a complete run on its page, and the aliases to its checkpoints: `best`
    is the one whose benchmarks have the highest mean, at equal means the earlier."""
    means = {
        n: fmean([v for name, v in scores.metrics.items() if name.endswith("/avg")] or [0.0])
        for n in results
        if (scores := results.get(f"evaluate_{n}"))
    }
    score = {results[n].digest: f"{mean:.6f}" for n, mean in means.items()}
    aliases = {ALIASES.get(stage, stage): results[stage] for stage in means}
    if means:
        aliases[BEST] = results[max(means, key=lambda n: means[n])]

    rows = [(d, READ[n]) for n, a in results.items() if n in READ and (d := dataset_of(a))]

    def send(server: Mlflow) -> None:
        models: dict[str, str] = {}
        versions = server.version_tags(tracker.name)
        by_digest = {(t.get(ARTIFACT_TAG), t.get(DIGEST_TAG)): v for v, t in versions.items()}
        assigned = server.get_registered_model(tracker.name).aliases if by_digest else {}
        for alias, model in aliases.items():
            # A checkpoint of another machine's store may never have been registered here.
            if version := by_digest.get((f"{model.stage}/{model.key}", model.digest)):
                # Two requests each, for what is there already when nothing was computed.
                if assigned.get(alias) != version:
                    server.set_registered_model_alias(tracker.name, alias, version)
                if versions[version].get("score") != score[model.digest]:
                    server.set_model_version_tag(
                        tracker.name, version, "score", score[model.digest]
                    )
                models[alias] = versions[version][MODEL_TAG]
        server.inputs(run_id, rows, models.values())

    tracker.put("the rows, models and aliases", send)
