"""Experiment = profile, parent run = pipeline, child run = stage: what is told, and when.

Everything but the first word of a run goes through a queue, so that no stage waits for the server
and a server that is away for a while misses nothing. A run that was killed is continued, never
doubled: the pipeline's run is found again by its id in the run ledger, a stage's run by
(parent, stage, key), and metric steps that are already there are not told twice.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tasks.delivery import Delivery
from tasks.out_of_reach import has_stumbled, is_away, may_pass
from tasks.stage_log import StageLog
from tasks.store import Artifact
from tasks.tracked import Point
from tasks.tracking import Mlflow

PATIENCE_AT_START_S = 120.0
PATIENCE_WITH_FAILURES_S = 10.0  # of a server that answers with 500
PATIENCE_AT_THE_END_S = {"FINISHED": 900.0, "FAILED": 20.0, "KILLED": 2.0}
"""How long the end of a run waits for what is still to be told, by how the run ended."""
REUSED_TAG = "klear.reused"
"""On a pipeline's run: JSON, stage → the run that made the result which was not computed again."""
Found = TypeVar("Found")


class NotTold(RuntimeError):
    """The run is done, but the tracking server has been away for too long to hear of it."""


class Tracker:
    """One pipeline's view of an MLflow server (or an absolute sqlite URI)."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri, self.name = uri, experiment
        self.delivery = Delivery(is_away, has_stumbled)
        self._reused: dict[str, str] = {}
        self._reused_told: dict[str, str] = {}
        self._lock = threading.Lock()
        self.experiments: dict[str, str] = {}
        """The experiment of every run that was looked up; '' for one that is gone."""
        self.server = Mlflow(uri)
        self.experiment = self._patiently(lambda: self.server.experiment(experiment))

    def put(self, what: str, tell: Callable[[Mlflow], object], *, soon: bool = False) -> None:
        """Call `tell(server)` when its turn comes, again and again while the server is away."""
        self.delivery.put(what, lambda: tell(self.server), soon=soon)

    def start_pipeline(
        self, name: str, tags: Mapping[str, str], resume: str = "", same: Sequence[str] = ()
    ) -> str:
        """The run of a pipeline: `resume` continued if it still exists, else the one whose tags
        named by `same` are those of `tags`, else a new one."""

        def start() -> str:
            found = resume if resume and self.server.is_there(resume) else ""
            if not found and same:
                found = self.server.find_run(self.experiment, {n: tags[n] for n in same})
            if not found:
                return self.server.create_run(self.experiment, name, tags)
            self.server.set_status(found, "RUNNING")
            self.server.tag(found, tags)
            return found

        return self._patiently(start)

    def stage(
        self,
        parent: str,
        stage: str,
        key: str,
        params: Mapping[str, str],
        work: Path,
        target: Path,
        only_unfinished: bool = False,
    ) -> StageLog:
        """The child run of (parent, stage, key), reopened if an earlier attempt left it.

        With `only_unfinished` a run that is FINISHED is left alone and nothing is told.
        """
        return StageLog(self, parent, stage, key, params, work, target, only_unfinished)

    def reused(self, parent: str, artifact: Artifact) -> None:
        """Say on the parent which run made a result that was not computed again."""
        with self._lock:
            self._reused[artifact.stage] = artifact.mlflow_run or "-"
        self.put("reused results", lambda server: self._tell_reused(server, parent))

    def _tell_reused(self, server: Mlflow, parent: str) -> None:
        """All that is known by now in one tag; the messages behind it find nothing new to say."""
        with self._lock:
            known = dict(self._reused)
        if known != self._reused_told:
            server.tag(parent, {REUSED_TAG: json.dumps(known)})
            self._reused_told = known

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        """The settings of a run; those that a run which is continued has are not told again."""
        self.put("parameters", lambda server: server.params(run_id, params))

    def log(self, run_id: str, metrics: Mapping[str, float]) -> None:
        now = time.time()
        points = [Point(name, float(value), now) for name, value in metrics.items()]
        self.put("metrics", lambda server: server.points(run_id, points))

    def log_files(self, run_id: str, *paths: Path, folder: str = "") -> None:
        for path in paths:
            if path.exists():
                self.put(path.name, lambda server, path=path: server.file(run_id, path, folder))

    def log_text(self, run_id: str, text: str, name: str) -> None:
        self.put(name, lambda server: server.text(run_id, text, name))

    def note(self, run_id: str, markdown: str) -> None:
        """The text on top of the run's page."""
        tags = {"mlflow.note.content": markdown}
        self.put("the note", lambda server: server.tag(run_id, tags))

    def run_url(self, run_id: str, experiment: str = "") -> str:
        """The run's page in the MLflow UI; '' without a server."""
        if not run_id or not self.uri.startswith("http"):
            return ""
        page = f"#/experiments/{experiment or self.experiment}/runs/{run_id}"
        # Else MLflow opens the page in its mode for LLM applications.
        return f"{self.uri}/{page}?workflowType=machine_learning"

    def finish(self, run_id: str, status: str) -> None:
        """The end of a pipeline's run: FINISHED, FAILED or KILLED.

        Raises NotTold when the run finished and the server has not heard all of it.
        """
        self.put("the end", lambda server: server.set_status(run_id, status))
        self.delivery.close()
        if not self.flush(PATIENCE_AT_THE_END_S[status]) and status == "FINISHED":
            raise NotTold(
                f"every stage is done and in the store, but MLflow at {self.uri} has not answered "
                f"for {PATIENCE_AT_THE_END_S[status] / 60:.0f} minutes: start it (`klear up`), "
                "then the same command tells it the rest"
            )

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until the server knows everything; False if it does not within `seconds`."""
        return self.delivery.flush(seconds)

    def _patiently(self, call: Callable[[], Found]) -> Found:
        """The answer to the first question of a run, which cannot go on without it."""
        began, told = time.monotonic(), False
        while True:
            try:
                return call()
            except Exception as error:
                patience = PATIENCE_AT_START_S if is_away(error) else PATIENCE_WITH_FAILURES_S
                if not may_pass(error) or time.monotonic() - began > patience:
                    raise
                if not told:
                    logging.getLogger("klear").warning(
                        "MLflow at %s does not answer: trying for %.0f s", self.uri, patience
                    )
                    told = True
                time.sleep(1.0)


class Untracked(Tracker):
    """The same calls without a server: unit tests and stages called from plain Python."""

    def __init__(self) -> None:
        self.uri, self.name, self.experiment = "", "", ""

    def put(self, what: str, tell: Callable[[Mlflow], object], *, soon: bool = False) -> None:
        """Nobody listens."""

    def start_pipeline(
        self, name: str, tags: Mapping[str, str], resume: str = "", same: Sequence[str] = ()
    ) -> str:
        return resume or f"untracked-{time.time_ns()}"

    def reused(self, parent: str, artifact: Artifact) -> None:
        """Nobody listens."""

    def finish(self, run_id: str, status: str) -> None:
        """Nobody listens."""

    def flush(self, seconds: float = 60.0) -> bool:
        return True
