"""The only MLflow code: its client, and the requests that take more than one of its calls.

Whatever may be sent again after a kill (datasets, models, traces, points) is there once then.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mlflow import MlflowClient, entities
from mlflow.entities.span import Span as MlflowSpan
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracing.client import TracingClient

METRICS_A_BATCH = 900  # the server takes at most 1,000 a request
PARAMS_A_BATCH = 90
LONGEST_PARAM = 500
PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
MODEL_TAG = "klear.model"
ARTIFACT_TAG = "klear.artifact"
PREVIEW = 1_000  # characters of a trace in lists


class Point(NamedTuple):
    """One value of a metric; `time` in Unix seconds."""

    name: str
    value: float
    time: float
    step: int = 0


def dataset(
    name: str, digest: str, source: Mapping[str, str], profile: Mapping[str, float]
) -> entities.Dataset:
    """The rows of one artifact without the rows: where they are and how many."""
    about = json.dumps(dict(source)), None, json.dumps(dict(profile))
    return entities.Dataset(name, digest, "local", *about)


class Mlflow(MlflowClient):
    """One tracking server (http URL) or database (absolute sqlite URI)."""

    def __init__(self, uri: str) -> None:
        super().__init__(tracking_uri=uri, registry_uri=uri)

    def experiment(self, name: str) -> str:
        """The id of an experiment, created if it is new."""
        found = self.get_experiment_by_name(name)
        if found is None:
            try:
                return self.create_experiment(name)
            except MlflowException:  # another run created it in the meantime
                found = self.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def new_run(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        return self.create_run(experiment, run_name=name, tags=dict(tags)).info.run_id

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> str:
        """The id of a run that has all of `tags`; '' if there is none."""
        runs = self.search_runs([experiment], _with_tags(tags), max_results=1)
        return runs[0].info.run_id if runs else ""

    def active_run(self, run_id: str) -> entities.Run | None:
        """None: deleted by hand, never made, or on another server. A server that fails raises."""
        try:
            found = self.get_run(run_id)
        except MlflowException as error:
            if 400 <= error.get_http_status_code() < 500:
                return None
            raise
        return found if found.info.lifecycle_stage == "active" else None

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
            for found in (run, *stages):
                if found.info.status in ("RUNNING", "SCHEDULED"):
                    self.set_terminated(found.info.run_id, "KILLED")

    def system_metrics(self, run_id: str) -> SystemMetricsMonitor:
        """A thread that logs CPU, memory, disk, network and GPUs of this machine to the run."""
        monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=self.tracking_uri)
        monitor.start()
        return monitor

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.log_batch(run_id, tags=[entities.RunTag(k, v) for k, v in tags.items()])

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Those that the run has not yet: it may have been killed between two batches."""
        there = self.get_run(run_id).data.params if params else {}
        given = {n[:250]: v[:LONGEST_PARAM] for n, v in params.items()}
        every = [entities.Param(n, v) for n, v in given.items() if n not in there]
        for i in range(0, len(every), PARAMS_A_BATCH):
            self.log_batch(run_id, params=every[i : i + PARAMS_A_BATCH])

    def points(self, run_id: str, points: Iterable[Point]) -> None:
        every = [
            entities.Metric(_legal(p.name), p.value, int(p.time * 1000), p.step) for p in points
        ]
        for i in range(0, len(every), METRICS_A_BATCH):
            self.log_batch(run_id, metrics=every[i : i + METRICS_A_BATCH])

    def last_step(self, run_id: str, metric: str) -> int:
        """The last step that a metric has; -1 if none."""
        history = self.get_metric_history(run_id, _legal(metric))
        return max((m.step for m in history), default=-1)

    def inputs(
        self, run_id: str, data: Iterable[tuple[entities.Dataset, str]], models: Iterable[str]
    ) -> None:
        """Datasets with their context (training, eval, output, …), and models that a run read."""
        there = self.get_run(run_id).inputs
        known = {m.model_id for m in there.model_inputs} if there else set()
        new = [entities.LoggedModelInput(m) for m in dict.fromkeys(models) if m not in known]
        tagged = [
            entities.DatasetInput(d, [entities.InputTag("mlflow.data.context", context)])
            for d, context in data
        ]
        self.log_inputs(run_id, tagged, new)

    def model(self, experiment: str, run_id: str, name: str, tags: Mapping[str, str]) -> str:
        """The id of the model with these tags, recorded as made by the run if it is new.

        Nothing is uploaded: weights stay where they are.
        """
        same = {n: tags[n] for n in (ARTIFACT_TAG, "klear.digest")}
        found = self.search_logged_models([experiment], _with_tags(same), max_results=1)
        made = found[0] if found else self.create_logged_model(experiment, name, run_id, dict(tags))
        if made.status != entities.LoggedModelStatus.READY:
            self.finalize_logged_model(made.model_id, "READY")
        there = self.get_run(run_id).outputs
        if there is None or made.model_id not in {m.model_id for m in there.model_outputs}:
            self.log_outputs(run_id, [entities.LoggedModelOutput(made.model_id, 0)])
        self.tag(run_id, {MODEL_TAG: made.model_id})
        return made.model_id

    def version(self, name: str, model: str, run_id: str, tags: Mapping[str, str]) -> str:
        """The version of a registered model that is `model`, registered if it is new."""
        for version, known in self.version_tags(name).items():
            if known.get(MODEL_TAG) == model:
                return version
        try:
            self.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        made = self.create_model_version(
            name,
            self.get_logged_model(model).artifact_location,
            run_id,
            {**tags, MODEL_TAG: model},
            await_creation_for=0,
            model_id=model,
        )
        return str(made.version)

    def version_tags(self, name: str) -> dict[str, dict[str, str]]:
        """The tags of every version of a registered model; `MODEL_TAG` is the model's id."""
        found = self.search_model_versions(f"name='{name}'")
        return {str(v.version): dict(v.tags) for v in found}

    def trace(
        self,
        experiment: str,
        key: str,
        time: float,
        asked: Mapping[str, Any],
        answered: Mapping[str, Any],
        about: Mapping[str, str],
        tags: Mapping[str, str],
    ) -> None:
        """A trace of one span whose id is made of its key: MLflow's own tracing gives every trace
        a new id, so that a message sent twice would be two. `about`: its metadata."""
        seed = hashlib.sha256(key.encode()).digest()
        trace_id, start_ns = f"tr-{seed[:16].hex()}", int(time * 1e9)
        info = entities.TraceInfo(
            trace_id,
            entities.TraceLocation.from_experiment_id(experiment),
            int(time * 1000),
            entities.TraceState.OK,
            request_preview=json.dumps(asked)[:PREVIEW],
            response_preview=json.dumps(answered)[:PREVIEW],
            trace_metadata=dict(about),
            tags=dict(tags),
        )
        attributes = {
            "mlflow.traceRequestId": trace_id,
            "mlflow.spanType": "EVALUATOR",
            "mlflow.spanInputs": asked,
            "mlflow.spanOutputs": answered,
        }
        span = MlflowSpan.from_dict(
            {
                "trace_id": base64.b64encode(seed[:16]).decode(),
                "span_id": base64.b64encode(seed[16:24]).decode(),
                "parent_span_id": None,
                "name": tags["mlflow.traceName"],
                "start_time_unix_nano": start_ns,
                "end_time_unix_nano": start_ns + 1,
                "status": {"code": "STATUS_CODE_OK", "message": ""},
                "attributes": {name: json.dumps(value) for name, value in attributes.items()},
                "events": [],
            }
        )
        client = TracingClient(self.tracking_uri)
        client.start_trace(info)
        client.log_spans(experiment, [span])


def _with_tags(tags: Mapping[str, str]) -> str:
    return " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())


def _legal(name: str) -> str:
    """MLflow allows letters, digits, _ - . space : and / in metric names."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
