"""The only MLflow code: its client, and the requests that take more than one of its calls.

Whatever may be sent again after a kill (datasets, models, traces, points) is there once then.
"""

import base64
import getpass
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from mlflow import MlflowClient, entities
from mlflow.entities.span import Span as MlflowSpan
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracing.client import TracingClient

PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
MODEL_TAG = "klear.model"
ARTIFACT_TAG = "klear.artifact"
DIGEST_TAG = "klear.digest"
PREVIEW = 1_000  # characters of a trace in lists


def made_by(commit: str) -> dict[str, str]:
    """Tags that say who runs which code; a `+` at the commit: with changes."""
    return {
        "klear.git_commit": commit,
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": "klear",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": commit.rstrip("+"),
    }


def metric(name: str, value: float, time: float, step: int = 0) -> entities.Metric:
    """One value; `time` in Unix seconds. Names keep letters, digits, _ - . space : and /."""
    legal = "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
    return entities.Metric(legal, float(value), int(time * 1000), step)


class Mlflow(MlflowClient):
    """One tracking server (http URL) or database (absolute sqlite URI)."""

    def __init__(self, uri: str) -> None:
        super().__init__(tracking_uri=uri, registry_uri=uri)

    def experiment(self, name: str, about: str) -> str:
        """The id of an experiment, created if it is new, with this description; `{id}`: its id."""
        if not (found := self.get_experiment_by_name(name)):
            with suppress(MlflowException):  # it is there since this moment
                self.create_experiment(name, tags=EXPERIMENT_KIND)
            found = self.get_experiment_by_name(name)
        assert found is not None
        tags = {NOTE_TAG: about.format(id=found.experiment_id), **EXPERIMENT_KIND}
        for tag in tags.keys() - found.tags.keys():  # a person's own text stays
            self.set_experiment_tag(found.experiment_id, tag, tags[tag])
        return found.experiment_id

    def save_view(self, experiment: str, key: str, name: str, state: Mapping[str, Any]) -> None:
        """A named view of the runs list, as the UI saves one: `?viewStateShareKey=KEY` opens it."""
        made, there = f"mlflow.sharedViewState.{key}", self.get_experiment(experiment)
        packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
        about = {"name": name, "createdAt": there.creation_time, "state": f"deflate;{packed}"}
        if there.tags.get(made) != (text := json.dumps(about)):
            self.set_experiment_tag(experiment, made, text)

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> entities.Run | None:
        """A run that has all of `tags`."""
        return next(iter(self.search_runs([experiment], _with_tags(tags), max_results=1)), None)

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
        """Those that the run has not yet: what changes no key may differ in a later attempt."""
        there = self.get_run(run_id).data.params if params else {}
        new = [entities.Param(n[:250], v) for n, v in params.items() if n[:250] not in there]
        self.log_batch(run_id, params=new)

    def last_step(self, run_id: str, name: str) -> int:
        """The last step that a metric has; -1 if none."""
        return max((m.step for m in self.get_metric_history(run_id, name)), default=-1)

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

    def register(
        self, experiment: str, registered: str, run_id: str, tags: Mapping[str, str]
    ) -> str:
        """The id of the model with these tags, made by the run, with a version of `registered`;
        each is made if it is new, and nothing is uploaded."""
        same = {n: tags[n] for n in (ARTIFACT_TAG, DIGEST_TAG)}
        found = self.search_logged_models([experiment], _with_tags(same), max_results=1)
        name = tags[ARTIFACT_TAG].replace("/", "-")
        made = found[0] if found else self.create_logged_model(experiment, name, run_id, dict(tags))
        model = made.model_id
        if made.status != entities.LoggedModelStatus.READY:
            self.finalize_logged_model(model, "READY")
        there = self.get_run(run_id).outputs
        if there is None or model not in {m.model_id for m in there.model_outputs}:
            self.log_outputs(run_id, [entities.LoggedModelOutput(model, 0)])
        self.tag(run_id, {MODEL_TAG: model})
        versions = self.version_tags(registered)
        if all(known.get(MODEL_TAG) != model for known in versions.values()):
            with suppress(MlflowException):  # it is there
                self.create_registered_model(registered)
            about = {**tags, MODEL_TAG: model}
            source = made.artifact_location
            self.create_model_version(
                registered, source, run_id, about, await_creation_for=0, model_id=model
            )
        return model

    def version_tags(self, name: str) -> dict[str, dict[str, str]]:
        """The tags of every version of a registered model; `MODEL_TAG` is the model's id."""
        found = self.search_model_versions(f"name='{name}'")
        return {str(v.version): dict(v.tags) for v in found}

    def trace(
        self,
        experiment: str,
        key: str,
        time: tuple[float, float],
        asked: Mapping[str, Any],
        answered: Mapping[str, Any],
        about: Mapping[str, str],
        tags: Mapping[str, str],
        correct: bool | None,
        reason: str,
        expected: str,
    ) -> None:
        """A trace of one span, with the judge's verdict on the answer (None: unscored) and the
        answer it should have been. Their ids are made of its key: MLflow gives new ones, so that a
        message sent twice would be two. `time`: start and end, in Unix seconds. `about`: metadata.
        """
        seed = hashlib.sha256(key.encode()).digest()
        trace_id, (start, end) = f"tr-{seed[:16].hex()}", time
        request, response = json.dumps(asked), json.dumps(answered)
        judge = entities.AssessmentSource(entities.AssessmentSourceType.CODE, "klear judge")
        run = {"mlflow.assessment.sourceRunId": about["mlflow.sourceRun"]}
        more: Any = {"source": judge, "metadata": run, "trace_id": trace_id}
        found: list[entities.Assessment] = []
        if correct is not None:
            found.append(entities.Feedback("correct", correct, rationale=reason or None, **more))
        if expected:
            found.append(entities.Expectation("expected_response", expected, **more))
        for assessment in found:
            name = f"{key}/{assessment.name}".encode()
            assessment.assessment_id = f"a-{hashlib.sha256(name).hexdigest()[:32]}"
        info = entities.TraceInfo(
            trace_id,
            entities.TraceLocation.from_experiment_id(experiment),
            int(start * 1000),
            entities.TraceState.OK,
            execution_duration=int((end - start) * 1000),
            request_preview=request[:PREVIEW],
            response_preview=response[:PREVIEW],
            trace_metadata=dict(about),
            tags=dict(tags),
            assessments=found,
        )
        span = {
            "trace_id": base64.b64encode(seed[:16]).decode(),
            "span_id": base64.b64encode(seed[16:24]).decode(),
            "parent_span_id": None,
            "name": tags["mlflow.traceName"],
            "start_time_unix_nano": int(start * 1e9),
            "end_time_unix_nano": int(end * 1e9),
            "status": {"code": "STATUS_CODE_OK"},
            "attributes": {
                "mlflow.traceRequestId": json.dumps(trace_id),
                "mlflow.spanType": json.dumps("EVALUATOR"),
                "mlflow.spanInputs": request,
                "mlflow.spanOutputs": response,
            },
        }
        client = TracingClient(self.tracking_uri)
        client.start_trace(info)
        client.log_spans(experiment, [MlflowSpan.from_dict(span)])


def _with_tags(tags: Mapping[str, str]) -> str:
    return " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
