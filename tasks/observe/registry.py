"""What a run came to, where one looks for it: rows and models on its page; words, scores and
aliases on the versions of its checkpoints."""

import hashlib
import json
from collections.abc import Mapping
from statistics import fmean

from ...configs.settings.base import first_few, key_of
from ...configs.settings.judging import GRADER_VERSION
from ...configs.settings.pipeline import STAGES, Pipeline, group_of_stage
from ...training.launch.result_files import CHECKPOINT
from ..report.lineage_page import lineage_page
from ..store.lineage import ancestry
from ..store.store import Artifact, Store
from .mlflow_client import ARTIFACT_TAG, DIGEST_TAG, MODEL_TAG, Mlflow
from .stage_run import dataset_of
from .tracker import Tracker

ALIASES = {"rl_math": "math_rl", "rl_code": "code_rl"}
"""Of a model's version, where it is not the name of its stage."""
BEST, LAST = "best", "last"
SCORE_TAG, PROTOCOL_TAG = "score", "klear.protocol"
LINEAGE = "lineage.html"
READ = {"select": "training", "filter_rl": "training", "benchmarks": "eval"}
"""The rows that a pipeline is known by, with their context in MLflow."""


def accuracy(metrics: Mapping[str, float], settings: Pipeline) -> dict[str, float]:
    """Mean accuracy over the benchmarks of each domain; none of a domain of which one lacks."""
    domains = {source.name: source.domain for source in settings.benchmarks.sources}
    values: dict[str, list[float | None]] = {}
    for p in settings.evaluate.protocols:
        domain = domains.get(p.source or p.name, "other")
        values.setdefault(domain, []).append(metrics.get(f"{p.name}/avg"))
    scored = {domain: [v for v in some if v is not None] for domain, some in values.items()}
    return {d: fmean(some) for d, some in scored.items() if len(some) == len(values[d])}


def mean_score(metrics: Mapping[str, float]) -> float | None:
    """Over all benchmarks of an evaluation; None where one was not scored."""
    names = [n.removesuffix("/unscored") for n in metrics if n.endswith("/unscored")]
    values = [v for n, v in metrics.items() if n.endswith("/avg")]
    return fmean(values) if values and len(values) >= len(names) else None


def protocol_of(settings: Pipeline, benchmarks: str) -> str:
    """16 hex digits of how a run measures: scores of equal ones can be compared. `benchmarks`: the
    digest of their rows."""
    measures = settings.evaluate.model_copy(update={"learning_curve": None})
    text = json.dumps([key_of(measures), benchmarks, GRADER_VERSION])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def log_origins(
    tracker: Tracker,
    run_id: str,
    results: Mapping[str, Artifact],
    store: Store,
    contexts: Mapping[str, str] = READ,
) -> None:
    """What a run, however far it came, was made from, on its page: rows, by stage what for, and a
    picture of all that lies behind its last result."""
    last = results[max(results.keys() - {"report"}, key=STAGES.index)]

    def send_rows(server: Mlflow) -> None:
        shown = contexts if contexts.keys() & results.keys() else {last.stage: "output"}
        read = {n: a for n, a in results.items() if n in shown}
        rows = [(d, shown[n]) for n, a in read.items() if (d := dataset_of(a))]
        server.inputs(run_id, rows, ())

    def send_lineage(server: Mlflow) -> None:
        page = lineage_page(store, store.manifest(last), tracker.run_url)
        server.log_text(run_id, page, LINEAGE)

    tracker.put("the rows", send_rows)
    tracker.put("lineage", send_lineage)


def log_complete(
    tracker: Tracker, run_id: str, results: Mapping[str, Artifact], settings: Pipeline, store: Store
) -> None:
    """The models of a complete run on its page; what each is in words, how it scored, and aliases.

    Those of stages and `last` are of this run. `best` has the highest mean over the benchmarks of
    all versions that were measured as the profile says; a run that measures otherwise leaves it.
    """
    evaluated = [n for n in STAGES if n in results and f"evaluate_{n}" in results]
    scores = {n: results[f"evaluate_{n}"].metrics for n in evaluated}
    aliases = {ALIASES.get(stage, stage): results[stage] for stage in evaluated}
    if evaluated:
        aliases[LAST] = results[evaluated[-1]]
    as_profile = not [n for n, _ in tracker.changed if n.startswith(("evaluate.", "benchmarks."))]
    rows = results.get("benchmarks")
    protocol = protocol_of(settings, rows.digest if rows else "")

    def send(server: Mlflow) -> None:
        versions = {str(v.version): v for v in server.versions(tracker.name)}
        by_result = {
            (v.tags.get(ARTIFACT_TAG), v.tags.get(DIGEST_TAG)): n for n, v in versions.items()
        }
        measured = {
            n: float(v.tags[SCORE_TAG])
            for n, v in versions.items()
            if v.tags.get(PROTOCOL_TAG) == protocol
        }
        models = []
        for stage in evaluated:
            model, mean = results[stage], mean_score(scores[stage])
            text = words(model, scores[stage], tracker, settings, store)
            # A checkpoint of another machine's store may never have been registered here.
            if version := by_result.get((f"{model.stage}/{model.key}", model.digest)):
                entry = versions[version]
                models.append(entry.tags[MODEL_TAG])
                server.point(models[-1], model.folder / CHECKPOINT, model.digest)  # an old one
                if mean is None or (not as_profile and SCORE_TAG in entry.tags):
                    continue
                score = f"{mean:.6f}"
                measured[version] = float(score)
                for tag, value in ((SCORE_TAG, score), (PROTOCOL_TAG, protocol)):
                    if entry.tags.get(tag) != value:  # else a request for what is there
                        server.set_model_version_tag(tracker.name, version, tag, value)
                if entry.description != text:
                    server.update_model_version(tracker.name, version, text)
        wanted = {
            alias: version
            for alias, model in aliases.items()
            if (version := by_result.get((f"{model.stage}/{model.key}", model.digest)))
        }
        if as_profile and measured:
            wanted[BEST] = max(measured, key=lambda n: (measured[n], -int(n)))
        assigned = server.get_registered_model(tracker.name).aliases if wanted else {}
        for alias, version in wanted.items():
            if str(assigned.get(alias)) != version:  # a number, from a database
                server.set_registered_model_alias(tracker.name, alias, version)
        server.inputs(run_id, (), models)

    tracker.put("the models and aliases", send)


def words(
    model: Artifact,
    metrics: Mapping[str, float],
    tracker: Tracker,
    settings: Pipeline,
    store: Store,
) -> str:
    """`rl_code · loss=cispo, steps=4 · math 58.8, code 49.8`: what differs from the profile in the
    model's stage and those that it is made from, and how it scored."""
    behind = {group_of_stage(stage) for stage in ancestry(store, store.manifest(model))}
    own = group_of_stage(model.stage)
    changes = [
        f"{name.removeprefix(f'{own}.')}={value}"
        for name, value in tracker.changed
        if name.partition(".")[0] in behind
    ]
    scores = [f"{d} {100 * share:.1f}" for d, share in accuracy(metrics, settings).items()]
    return " · ".join(filter(None, (model.stage, ", ".join(first_few(changes)), ", ".join(scores))))
