"""The only MLflow code: its client, and the requests that take more than one of its calls.

Whatever may be sent again after a kill (datasets, models, points) is there once then.
"""

import base64
import getpass
import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient, entities
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
MODEL_TAG = "klear.model"
ARTIFACT_TAG = "klear.artifact"
DIGEST_TAG = "klear.digest"


def made_by(commit: str) -> dict[str, str]:
    """Tags that say who runs which code; a `+` at the commit: with changes."""
    return {
        "klear.git_commit": commit,
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": "klear",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": commit.rstrip("+"),
    }


def metric(
    name: str, value: float, time: float, step: int = 0, measured: Mapping[str, str] = {}
) -> entities.Metric:
    """One value; `time` in Unix seconds. Names keep letters, digits, _ - . space : and /.
    `measured`: on which model (`model_id`) and dataset (`dataset_name`, `dataset_digest`)."""
    legal = "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
    return entities.Metric(legal, float(value), int(time * 1000), step, **measured)  # type: ignore[arg-type]


class Mlflow(MlflowClient):
    """One tracking server (http URL) or database (absolute sqlite URI)."""

    def __init__(self, uri: str) -> None:
        super().__init__(tracking_uri=uri, registry_uri=uri)

    def experiment(self, name: str, description: str) -> str:
        """The id of an experiment, created if it is new, with this description; `{id}`: its id."""
        if not (experiment := self.get_experiment_by_name(name)):
            with suppress(MlflowException):  # it is there since this moment
                self.create_experiment(name, tags=EXPERIMENT_KIND)
            experiment = self.get_experiment_by_name(name)
        assert experiment is not None
        if experiment.lifecycle_stage != "active":  # deleted by hand, and its name stays taken
            self.restore_experiment(experiment.experiment_id)
        tags = {NOTE_TAG: description.format(id=experiment.experiment_id), **EXPERIMENT_KIND}
        for tag in tags.keys() - experiment.tags.keys():  # a person's own text stays
            self.set_experiment_tag(experiment.experiment_id, tag, tags[tag])
        return experiment.experiment_id

    def save_view(self, experiment: str, key: str, name: str, state: Mapping[str, Any]) -> None:
        """A named view of the runs list, as the UI saves one: `?viewStateShareKey=KEY` opens it."""
        tag, entry = f"mlflow.sharedViewState.{key}", self.get_experiment(experiment)
        packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
        view = {"name": name, "createdAt": entry.creation_time, "state": f"deflate;{packed}"}
        if entry.tags.get(tag) != (text := json.dumps(view)):
            self.set_experiment_tag(experiment, tag, text)

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> entities.Run | None:
        """A run that has all of `tags`."""
        return next(iter(self.search_runs([experiment], _with_tags(tags), max_results=1)), None)

    def active_run(self, run_id: str) -> entities.Run | None:
        """None: deleted by hand, never made, or on another server. A server that fails raises."""
        try:
            run = self.get_run(run_id)
        except MlflowException as error:
            if 400 <= error.get_http_status_code() < 500:
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def set_status(self, run_id: str, status: str) -> None:
        """RUNNING, FINISHED, FAILED, KILLED or SCHEDULED."""
        if status == "RUNNING":
            self.update_run(run_id, status=status)
        else:
            self.set_terminated(run_id, status)

    def mark_crashed(self, run_id: str) -> None:
        """A run that died, and the stages below it: what still runs or waits is KILLED."""
        if run := self.active_run(run_id):
            stages = self.search_runs([run.info.experiment_id], _with_tags({PARENT_TAG: run_id}))
            for entry in (run, *stages):
                if entry.info.status in ("RUNNING", "SCHEDULED"):
                    self.set_terminated(entry.info.run_id, "KILLED")

    def system_metrics(self, run_id: str) -> SystemMetricsMonitor:
        """A thread that logs CPU, memory, disk, network and GPUs of this machine to the run."""
        monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=self.tracking_uri)
        monitor.start()
        return monitor

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.log_batch(run_id, tags=[entities.RunTag(k, v) for k, v in tags.items()])

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Those that the run has not yet: what changes no key may differ in a later attempt."""
        logged = self.get_run(run_id).data.params if params else {}
        new = [entities.Param(n[:250], v) for n, v in params.items() if n[:250] not in logged]
        self.log_batch(run_id, params=new)

    def last_step(self, run_id: str, name: str) -> int:
        """The last step that a metric has; -1 if none."""
        return max((m.step for m in self.get_metric_history(run_id, name)), default=-1)

    def inputs(
        self, run_id: str, data: Iterable[tuple[entities.Dataset, str]], models: Iterable[str]
    ) -> None:
        """Datasets with their context (training, eval, output, …), and models that a run read."""
        logged = self.get_run(run_id).inputs
        model_ids = {m.model_id for m in logged.model_inputs} if logged else set()
        new = [entities.LoggedModelInput(m) for m in dict.fromkeys(models) if m not in model_ids]
        tagged = [
            entities.DatasetInput(d, [entities.InputTag("mlflow.data.context", context)])
            for d, context in data
        ]
        self.log_inputs(run_id, tagged, new)

    def register(
        self, experiment: str, registered: str, run_id: str, folder: Path,
        tags: Mapping[str, str], params: Mapping[str, str],
    ) -> str:  # fmt: skip
        """The id of the model with these tags, made by the run, with a version of `registered`;
        each is made if it is new. Of its weights no more is uploaded than where they are."""
        same = {n: tags[n] for n in (ARTIFACT_TAG, DIGEST_TAG)}
        models = self.search_logged_models([experiment], _with_tags(same), max_results=1)
        name = tags[ARTIFACT_TAG].replace("/", "-")
        logged = models[0] if models else self.create_logged_model(
            experiment, name, run_id, dict(tags), dict(params)
        )  # fmt: skip
        model = logged.model_id
        self.point(model, folder, tags[DIGEST_TAG])
        if logged.status != entities.LoggedModelStatus.READY:
            self.finalize_logged_model(model, "READY")
        outputs = self.get_run(run_id).outputs
        if outputs is None or model not in {m.model_id for m in outputs.model_outputs}:
            self.log_outputs(run_id, [entities.LoggedModelOutput(model, 0)])
        self.tag(run_id, {MODEL_TAG: model})
        if all(version.tags.get(MODEL_TAG) != model for version in self.versions(registered)):
            with suppress(MlflowException):  # it is there
                self.create_registered_model(registered)
            version_tags = {**same, MODEL_TAG: model}
            source = logged.artifact_location
            self.create_model_version(
                registered, source, run_id, version_tags, await_creation_for=0, model_id=model
            )
        return model

    def point(self, model: str, folder: Path, digest: str) -> None:
        """Say where the weights of a model are, if it does not say so yet."""
        if not self.list_logged_model_artifacts(model):
            with TemporaryDirectory() as pointer:
                as_mlflow_model(folder, digest).save(f"{pointer}/MLmodel")
                self.log_model_artifacts(model, pointer)

    def versions(self, name: str) -> list[Any]:
        """Every version of a registered model; its tag `MODEL_TAG` is the model's id."""
        return list(self.search_model_versions(f"name='{name}'"))


def as_mlflow_model(folder: Path, digest: str) -> Model:
    """What `mlflow.transformers.load_model` reads: a checkpoint that stays where it is, as one of
    the hub does. Where the folder is gone, transformers says so, with its name."""
    parts = {"components": ["tokenizer"], "tokenizer_type": "AutoTokenizer"}
    where = {"source_model_name": str(folder), "tokenizer_name": str(folder)}
    kind = {"task": "text-generation", "pipeline_model_type": "AutoModelForCausalLM"}
    flavor = {**kind, **parts, **where, "source_model_revision": digest[:16]}
    return Model(metadata={"weights": str(folder)}).add_flavor("transformers", **flavor)


def _with_tags(tags: Mapping[str, str]) -> str:
    return " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
