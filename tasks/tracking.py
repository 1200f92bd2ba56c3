"""The only MLflow code: every call to the tracking server, plain data in and ids out."""

import base64
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient, entities
from mlflow.entities.span import Span
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient

from tasks.out_of_reach import may_pass
from tasks.tracked import Dataset, Model, Point, Trace
from tasks.tracked import Span as PlainSpan

METRICS_A_BATCH = 900  # the server takes at most 1,000 a request
PARAMS_A_BATCH = 90
LONGEST_PARAM = 500
MODEL_TYPE = "checkpoint"
MODEL_TAG = "klear.model"
ARTIFACT_TAG = "klear.artifact"
PREVIEW = 1_000  # characters of a trace in lists
CONTEXT = "mlflow.data.context"


class Mlflow:
    """One tracking server (http URL) or database (absolute sqlite URI)."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def experiment(self, name: str) -> str:
        """The id of an experiment, created if it is new."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return self._client.create_experiment(name)
            except MlflowException:  # another run created it in the meantime
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return found.experiment_id

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        return self._client.create_run(experiment, run_name=name, tags=dict(tags)).info.run_id

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> str:
        """The id of a run that has all of `tags`; '' if there is none."""
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        runs = self._client.search_runs([experiment], query, max_results=1)
        return runs[0].info.run_id if runs else ""

    def is_there(self, run_id: str) -> bool:
        """False: deleted by hand, or never made."""
        try:
            return self._client.get_run(run_id).info.lifecycle_stage == "active"
        except MlflowException as error:
            if may_pass(error):
                raise
            return False

    def is_finished(self, run_id: str) -> bool:
        return self._client.get_run(run_id).info.status == "FINISHED"

    def set_status(self, run_id: str, status: str) -> None:
        """RUNNING, FINISHED, FAILED, KILLED or SCHEDULED."""
        if status == "RUNNING":
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status)

    def bury(self, run_id: str) -> None:
        """A run that died, and the stages below it: what still runs or waits is KILLED."""
        experiment = self.experiment_of(run_id)
        its = (f"attributes.run_id = '{run_id}'", f"tags.`mlflow.parentRunId` = '{run_id}'")
        for query in its if experiment else ():
            for status in ("RUNNING", "SCHEDULED"):
                living = f"attributes.status = '{status}' and {query}"
                for run in self._client.search_runs([experiment], living):
                    self._client.set_terminated(run.info.run_id, "KILLED")

    def experiment_of(self, run_id: str) -> str:
        """'' for a run that was deleted, or that another server has."""
        try:
            return self._client.get_run(run_id).info.experiment_id
        except MlflowException as error:
            if may_pass(error):
                raise
            return ""

    def tags_of(self, run_id: str) -> dict[str, str]:
        """Empty for a run that was deleted for good, or that another server has."""
        try:
            return self._client.get_run(run_id).data.tags
        except MlflowException as error:
            if may_pass(error):
                raise
            return {}

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self._client.log_batch(run_id, tags=[entities.RunTag(k, v) for k, v in tags.items()])

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Those that the run has not yet: it may have been killed between two batches."""
        there = self._client.get_run(run_id).data.params
        given = {n[:250]: v[:LONGEST_PARAM] for n, v in params.items()}
        every = [entities.Param(n, v) for n, v in given.items() if n not in there]
        for i in range(0, len(every), PARAMS_A_BATCH):
            self._client.log_batch(run_id, params=every[i : i + PARAMS_A_BATCH])

    def points(
        self, run_id: str, points: Sequence[Point], model: str = "", data: Dataset | None = None
    ) -> None:
        """Metrics, tied to the model and the dataset that they are about, if they are."""
        every = [
            entities.Metric(
                legal(p.name), p.value, int(p.time * 1000), p.step, model_id=model or None,
                dataset_name=data.name if data else None,
                dataset_digest=data.digest if data else None,
            )
            for p in points
        ]  # fmt: skip
        for i in range(0, len(every), METRICS_A_BATCH):
            self._client.log_batch(run_id, metrics=every[i : i + METRICS_A_BATCH])

    def last_step(self, run_id: str, metric: str) -> int:
        """The last step that a metric has; -1 if none."""
        history = self._client.get_metric_history(run_id, legal(metric))
        return max((m.step for m in history), default=-1)

    def file(self, run_id: str, path: Path, folder: str = "") -> None:
        self._client.log_artifact(run_id, str(path), folder or None)

    def text(self, run_id: str, text: str, name: str) -> None:
        self._client.log_text(run_id, text, name)

    def inputs(
        self, run_id: str, data: Iterable[tuple[Dataset, str]], models: Iterable[str]
    ) -> None:
        """Datasets with their context, and models, that a run read or made; twice is once."""
        there = self._client.get_run(run_id).inputs
        known = {m.model_id for m in there.model_inputs} if there else set()
        new = [entities.LoggedModelInput(m) for m in dict.fromkeys(models) if m not in known]
        tagged = [
            entities.DatasetInput(_dataset(d), [entities.InputTag(CONTEXT, context)])
            for d, context in data
        ]
        self._client.log_inputs(run_id, tagged, new)

    def output(self, run_id: str, model: str, step: int) -> None:
        """Say that a run made a model; twice is once."""
        there = self._client.get_run(run_id).outputs
        if there is None or model not in {m.model_id for m in there.model_outputs}:
            self._client.log_outputs(run_id, [entities.LoggedModelOutput(model, step)])

    def model(self, experiment: str, run_id: str, model: Model, same: Sequence[str]) -> str:
        """The id of the model with the tags named by `same`, recorded if it is new."""
        query = " and ".join(f"tags.`{name}` = '{model.tags[name]}'" for name in same)
        found = self._client.search_logged_models([experiment], query, max_results=1)
        if found:
            made = found[0]
        else:
            made = self._client.create_logged_model(
                experiment, model.name, run_id, dict(model.tags), dict(model.params), MODEL_TYPE
            )
        if made.status != entities.LoggedModelStatus.READY:
            with tempfile.TemporaryDirectory() as folder:
                for name, text in model.files.items():
                    Path(folder, name).write_text(text, encoding="utf-8")
                self._client.log_model_artifacts(made.model_id, folder)
            self._client.finalize_logged_model(made.model_id, "READY")
        return made.model_id

    def version(
        self, name: str, model: str, run_id: str, tags: Mapping[str, str], about: str
    ) -> str:
        """The version of a registered model that is `model`, registered if it is new."""
        for version, known in self.version_tags(name).items():
            if known.get(MODEL_TAG) == model:
                return version
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        source = self._client.get_logged_model(model).artifact_location
        made = self._client.create_model_version(
            name,
            source,
            run_id,
            {**tags, MODEL_TAG: model},
            description=about,
            await_creation_for=0,
            model_id=model,
        )
        return str(made.version)

    def artifact_of(self, model: str) -> str:
        """stage/key behind `m-…` or `models:/NAME@ALIAS` or `models:/NAME/VERSION`; '' if none."""
        try:
            if model.startswith("models:/"):
                name, at, alias = model.removeprefix("models:/").partition("@")
                name, _, version = (name, "", alias) if at else name.partition("/")
                found = (
                    self._client.get_model_version_by_alias(name, alias)
                    if at
                    else self._client.get_model_version(name, version)
                )
                return found.tags.get(ARTIFACT_TAG, "")
            return self._client.get_logged_model(model).tags.get(ARTIFACT_TAG, "")
        except MlflowException as error:
            if may_pass(error):
                raise
            return ""

    def version_tags(self, name: str) -> dict[str, dict[str, str]]:
        """The tags of every version of a registered model; `MODEL_TAG` is the model's id."""
        found = self._client.search_model_versions(f"name='{name}'")
        return {str(v.version): dict(v.tags) for v in found}

    def tag_version(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        for tag, value in tags.items():
            self._client.set_model_version_tag(name, version, tag, value)

    def alias(self, name: str, alias: str, version: str) -> None:
        self._client.set_registered_model_alias(name, alias, version)

    def trace(self, experiment: str, run_id: str, trace: Trace, model: str = "") -> None:
        """One graded answer; its id is made of its key, so that twice is once."""
        seed = hashlib.sha256(f"{run_id}/{trace.key}".encode()).digest()
        trace_id = f"tr-{seed[:16].hex()}"
        about = {"mlflow.sourceRun": run_id, **({"mlflow.modelId": model} if model else {})}
        client = TracingClient(self.uri)
        client.start_trace(
            entities.TraceInfo(
                trace_id,
                entities.TraceLocation.from_experiment_id(experiment),
                int(trace.time * 1000),
                entities.TraceState.OK,
                request_preview=trace.request[:PREVIEW],
                response_preview=trace.response[:PREVIEW],
                execution_duration=0,
                trace_metadata=about,
                tags=dict(trace.tags),
            )
        )
        spans = [_span(s, i, seed, trace_id, trace.time) for i, s in enumerate(trace.spans)]
        client.log_spans(experiment, spans)


def _dataset(data: Dataset) -> entities.Dataset:
    columns = [{"name": n, "type": t, "required": False} for n, t in data.columns]
    return entities.Dataset(
        name=data.name,
        digest=data.digest,
        source_type="local",
        source=json.dumps(dict(data.source)),
        schema=json.dumps({"mlflow_colspec": columns}) if columns else None,
        profile=json.dumps(dict(data.profile)),
    )


def _span(span: PlainSpan, number: int, seed: bytes, trace_id: str, time: float) -> Span:
    def ident(of: int) -> str:
        return base64.b64encode(hashlib.sha256(seed + of.to_bytes(4)).digest()[:8]).decode()

    start = int(time * 1e9) + number
    attributes: dict[str, Any] = {
        "mlflow.traceRequestId": trace_id,
        "mlflow.spanType": span.kind,
        "mlflow.spanInputs": dict(span.inputs),
        "mlflow.spanOutputs": dict(span.outputs),
    }
    return Span.from_dict(
        {
            "trace_id": base64.b64encode(seed[:16]).decode(),
            "span_id": ident(number),
            "parent_span_id": ident(0) if number else None,
            "name": span.name,
            "start_time_unix_nano": start,
            "end_time_unix_nano": start + 1,
            "status": {"code": f"STATUS_CODE_{'ERROR' if span.is_error else 'OK'}", "message": ""},
            "attributes": {name: json.dumps(value) for name, value in attributes.items()},
            "events": [],
        }
    )


def legal(name: str) -> str:
    """MLflow allows letters, digits, _ - . space : and / in metric names."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
