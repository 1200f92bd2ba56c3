"""The only MLflow code: experiment = profile, parent run = pipeline, child run = stage.

A run that was killed is continued, never doubled: the pipeline's run is found again by its id in
the run ledger, a stage's run by (parent, stage, key), and metric steps that are already there are
not logged twice.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException

from tasks.store import Artifact

STEP_METRIC = "step"  # logged with every line of metrics.jsonl; its history says what is there
METRICS_A_BATCH = 900  # the server takes at most 1,000 a request
SECONDS_BETWEEN_POLLS = 2.0


class Tracker:
    """One pipeline's view of an MLflow server (or an absolute sqlite URI)."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri = uri
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        if found is None:
            try:
                self.experiment = self._client.create_experiment(experiment)
            except MlflowException:  # another run created it in the meantime
                found = self._client.get_experiment_by_name(experiment)
                if found is None:
                    raise
                self.experiment = found.experiment_id
        else:
            self.experiment = found.experiment_id

    def start_pipeline(self, name: str, tags: Mapping[str, str], resume: str = "") -> str:
        """The parent run: `resume` continued if it still exists, else a new one."""
        if resume:
            try:
                run = self._client.get_run(resume)
                if run.info.lifecycle_stage == "active":
                    self._client.update_run(resume, status="RUNNING")
                    self._tag(resume, tags)
                    return resume
            except MlflowException:
                pass  # deleted by hand: a new run is what the user expects
        run = self._client.create_run(self.experiment, run_name=name, tags=dict(tags))
        return run.info.run_id

    def start_stage(self, parent: str, stage: str, key: str, params: Mapping[str, str]) -> str:
        """The child run of (parent, stage, key), reopened if an earlier attempt left it."""
        runs = self._client.search_runs(
            [self.experiment],
            f"tags.`mlflow.parentRunId` = '{parent}' and tags.`klear.stage` = '{stage}' "
            f"and tags.`klear.key` = '{key}'",
            max_results=1,
        )
        if runs:
            run_id = runs[0].info.run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        tags = {"mlflow.parentRunId": parent, "klear.stage": stage, "klear.key": key}
        run_id = self._client.create_run(self.experiment, run_name=stage, tags=tags).info.run_id
        for name, value in params.items():
            self._client.log_param(run_id, name[:250], value[:500])
        return run_id

    def reused(self, parent: str, artifact: Artifact) -> None:
        """Say on the parent which run made a result that was not computed again."""
        self._client.set_tag(parent, f"klear.reused.{artifact.stage}", artifact.mlflow_run or "-")

    def log(self, run_id: str, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        batch = [Metric(_legal(n), float(v), now, 0) for n, v in metrics.items()]
        for i in range(0, len(batch), METRICS_A_BATCH):
            self._client.log_batch(run_id, metrics=batch[i : i + METRICS_A_BATCH])

    def log_files(self, run_id: str, *paths: Path) -> None:
        for path in paths:
            if path.exists():
                self._client.log_artifact(run_id, str(path))

    def log_text(self, run_id: str, text: str, name: str) -> None:
        self._client.log_text(run_id, text, name)

    def note(self, run_id: str, markdown: str) -> None:
        """The text on top of the run's page."""
        self._client.set_tag(run_id, "mlflow.note.content", markdown)

    def run_url(self, run_id: str) -> str:
        """The run's page in the MLflow UI."""
        return f"{self.uri}/#/experiments/{self.experiment}/runs/{run_id}"

    def finish(self, run_id: str, status: str) -> None:
        """FINISHED, FAILED or KILLED."""
        self._client.set_terminated(run_id, status)

    def last_step(self, run_id: str) -> int:
        """The last step of metrics.jsonl that the run has; -1 if none."""
        history = self._client.get_metric_history(run_id, STEP_METRIC)
        return max((m.step for m in history), default=-1)

    def log_steps(self, run_id: str, lines: list[dict]) -> None:
        """Curves: each line is {"step": int, "time": seconds, "metrics": {name: value}}."""
        batch: list[Metric] = []
        for line in lines:
            when, step = int(line["time"] * 1000), int(line["step"])
            values = {**line["metrics"], STEP_METRIC: step}
            row = [Metric(_legal(n), float(v), when, step) for n, v in values.items()]
            if len(batch) + len(row) > METRICS_A_BATCH:
                self._client.log_batch(run_id, metrics=batch)
                batch = []
            batch += row
        if batch:
            self._client.log_batch(run_id, metrics=batch)

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self._client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])


class CurveTail:
    """Follows a metrics.jsonl that another process writes, and logs each step exactly once."""

    def __init__(self, tracker: Tracker, run_id: str, path: Path) -> None:
        self._tracker, self._run_id, self._path = tracker, run_id, path
        self._last = tracker.last_step(run_id)
        self._offset = 0
        self._next = 0.0

    def poll_now_and_then(self) -> None:
        """`poll`, but at most every other second: callers report progress far more often."""
        if time.monotonic() >= self._next:
            self.poll()
            self._next = time.monotonic() + SECONDS_BETWEEN_POLLS

    def poll(self) -> None:
        """Log the lines that came since the last poll; a torn last line waits for its end."""
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._offset:
            self._offset = 0  # a resumed child cut the lines after its checkpoint
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = [json.loads(line) for line in complete.splitlines() if line.strip()]
        fresh = [line for line in lines if line["step"] > self._last]
        if fresh:
            self._tracker.log_steps(self._run_id, fresh)
            self._last = max(line["step"] for line in fresh)


def _legal(name: str) -> str:
    """MLflow allows letters, digits, _ - . space : and / in metric names."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)


class _Nobody:
    """Answers every client call with None."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Untracked(Tracker):
    """The same calls without a server: unit tests and stages called from plain Python."""

    def __init__(self) -> None:
        self.uri, self.experiment = "", ""
        self._client = cast(MlflowClient, _Nobody())

    def start_pipeline(self, name: str, tags: Mapping[str, str], resume: str = "") -> str:
        return resume or f"untracked-{time.time_ns()}"

    def start_stage(self, parent: str, stage: str, key: str, params: Mapping[str, str]) -> str:
        return ""

    def last_step(self, run_id: str) -> int:
        return -1
