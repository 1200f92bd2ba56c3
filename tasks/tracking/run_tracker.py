"""Experiment = profile, parent run = pipeline, child run = stage: what is logged, and when.

Everything but the first call of a run goes through a queue, so that no stage waits for the server
and a server that is unreachable for a while misses nothing. A killed run is continued, never
doubled: the pipeline's run is found again by its id in the run state, a stage's run by
(parent, stage, key), and metric steps that are already there are not logged twice.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tasks.store.store import Artifact
from tasks.tracking.log_queue import LogQueue
from tasks.tracking.mlflow_client import Mlflow, Point

PATIENCE_AT_THE_END_S = {"FINISHED": 900.0, "FAILED": 20.0, "KILLED": 2.0}
"""How long the end of a run waits for what is still to be told, by how the run ended."""
REUSED_TAG = "klear.reused"
"""On a pipeline's run: JSON, stage → the run that made the result which was not computed again."""
STEP_METRIC = "step"  # logged with every line of metrics.jsonl; its history says what is there
TABLES_TAG = "mlflow.loggedArtifacts"  # which JSON artifacts the UI displays as tables
TABLES_LISTED = 40  # the latest ones; a tag holds few thousand characters
SECONDS_FOR_AN_ID = 3.0
Send = Callable[[Mlflow, str], object]
"""(server, run id) → one message."""


class NotLogged(RuntimeError):
    """The run is done, but MLflow was unreachable for too long to log all of it."""


class Tracker:
    """One pipeline's view of an MLflow server (or an absolute sqlite URI)."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri, self.name = uri, experiment
        self.queue = LogQueue()
        self.server = Mlflow(uri)
        self.experiment = self.server.experiment(experiment)
        self._reused: dict[str, str] = {}
        self._reused_logged: dict[str, str] = {}

    def put(self, what: str, send: Callable[[Mlflow], object], *, soon: bool = False) -> None:
        """Call `send(server)` when its turn comes."""
        self.queue.put(what, lambda: send(self.server), soon=soon)

    def start_pipeline(
        self, name: str, tags: Mapping[str, str], resume: str = "", same: Sequence[str] = ()
    ) -> str:
        """The run of a pipeline: `resume` continued if it still exists, else the one whose tags
        named by `same` are those of `tags`, else a new one."""
        found = resume if resume and self.server.run(resume) else ""
        if not found and same:
            found = self.server.find_run(self.experiment, {n: tags[n] for n in same})
        if not found:
            return self.server.create_run(self.experiment, name, tags)
        self.server.set_status(found, "RUNNING")
        self.server.tag(found, tags)
        return found

    def stage(
        self,
        parent: str,
        stage: str,
        key: str,
        params: Mapping[str, str],
        work: Path,
        target: Path,
        only_unfinished: bool = False,
    ) -> "StageLog":
        """The child run of (parent, stage, key), reopened if an earlier attempt left it.

        With `only_unfinished` a run that is FINISHED is left alone and nothing is logged.
        """
        tags = {"mlflow.parentRunId": parent, "klear.stage": stage, "klear.key": key}
        return StageLog(self, tags, params, work, target, only_unfinished)

    def reused(self, parent: str, artifact: Artifact) -> None:
        """Say on the parent which run made a result that was not computed again."""
        self._reused[artifact.stage] = artifact.mlflow_run or "-"
        self.put("reused results", lambda server: self._log_reused(server, parent))

    def _log_reused(self, server: Mlflow, parent: str) -> None:
        """All that is known by now in one tag; the messages behind it find nothing new to say."""
        known = dict(self._reused)
        if known != self._reused_logged:
            server.tag(parent, {REUSED_TAG: json.dumps(known)})
            self._reused_logged = known

    def params(self, run_id: str, params: Mapping[str, str]) -> None:
        """The settings of a run; those that a run which is continued has are not logged again."""
        self.put("parameters", lambda server: server.params(run_id, params))

    def log(self, run_id: str, metrics: Mapping[str, float]) -> None:
        now = time.time()
        points = [Point(name, float(value), now) for name, value in metrics.items()]
        self.put("metrics", lambda server: server.points(run_id, points))

    def log_files(self, run_id: str, *paths: Path) -> None:
        for path in filter(Path.exists, paths):
            self.put(path.name, lambda server, path=path: server.file(run_id, path))

    def log_text(self, run_id: str, text: str, name: str) -> None:
        self.put(name, lambda server: server.text(run_id, text, name))

    def note(self, run_id: str, markdown: str) -> None:
        """The text on top of the run's page."""
        tags = {"mlflow.note.content": markdown}
        self.put("the note", lambda server: server.tag(run_id, tags))

    def run_url(self, run_id: str) -> str:
        """The run's page in the MLflow UI; '' without a server."""
        if not run_id or not self.uri.startswith("http"):
            return ""
        # Else MLflow opens the page in its mode for LLM applications.
        machine_learning = "?workflowType=machine_learning"
        return f"{self.uri}/#/experiments/{self.experiment}/runs/{run_id}{machine_learning}"

    def finish(self, run_id: str, status: str) -> None:
        """The end of a pipeline's run: FINISHED, FAILED or KILLED.

        Raises NotLogged when the run finished and the server has not heard all of it.
        """
        self.put("the end", lambda server: server.set_status(run_id, status))
        if not self.flush(PATIENCE_AT_THE_END_S[status]) and status == "FINISHED":
            raise NotLogged(
                f"every stage is done and in the store, but MLflow at {self.uri} has not answered "
                f"for {PATIENCE_AT_THE_END_S[status] / 60:.0f} minutes: start it (`klear up`), "
                "then the same command logs the rest"
            )

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until the server knows everything; False if it does not within `seconds`."""
        return self.queue.flush(seconds)


class Untracked(Tracker):
    """The same calls without a server: unit tests and stages called from plain Python."""

    def __init__(self) -> None:
        self.uri, self.name, self.experiment = "", "", ""
        self.queue, self._reused = LogQueue(), {}

    def put(self, what: str, send: Callable[[Mlflow], object], *, soon: bool = False) -> None:
        """Nobody listens."""

    def start_pipeline(
        self, name: str, tags: Mapping[str, str], resume: str = "", same: Sequence[str] = ()
    ) -> str:
        return resume or f"untracked-{time.time_ns()}"


class StageLog:
    """What a stage logs; its files are in `work`, once published in `target`."""

    def __init__(
        self,
        tracker: Tracker,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        work: Path,
        target: Path,
        only_unfinished: bool = False,
    ) -> None:
        self.tracker, self.work, self._target = tracker, work, target
        self._tags, self._params, self._only_unfinished = tags, params, only_unfinished
        self.run_id = ""
        """Empty until the server has given one, or if it refused to."""
        self._opened = threading.Event()
        self._last: dict[str, int] = {}
        what = f"the run of {tags['klear.stage']}"
        tracker.put(what, self._open, soon=True)  # its id goes into a manifest

    def wait_id(self) -> str:
        """The run's id; '' when the server is away or there is none."""
        if self.tracker.uri:
            self._opened.wait(SECONDS_FOR_AN_ID)
        return self.run_id

    def put(self, what: str, send: Send) -> None:
        """Call `send(server, run_id)` in its turn, once the run is open."""
        self.tracker.put(what, lambda server: send(server, self.run_id) if self.run_id else None)

    def steps(self, lines: Sequence[Mapping], marker: str = STEP_METRIC) -> None:
        """Curves: each line is {"step": int, "time": seconds, "metrics": {name: value}}.

        `marker` is the metric whose history says which steps are there; it is added to each line.
        """

        def send(server: Mlflow, run_id: str) -> None:
            if marker not in self._last:
                self._last[marker] = server.last_step(run_id, marker)
            fresh = [line for line in lines if line["step"] > self._last[marker]]
            points = [
                Point(name, float(value), line["time"], line["step"])
                for line in fresh
                for name, value in {marker: line["step"], **line["metrics"]}.items()
            ]
            server.points(run_id, points)
            self._last[marker] = max((line["step"] for line in fresh), default=self._last[marker])

        self.put("curves", send)

    def show(self, root: Path, name: Path, tables: Sequence[str]) -> None:
        """One file below `root` of the stage's folder, and which artifacts are tables."""
        listed = [{"path": t, "type": "table"} for t in tables[-TABLES_LISTED:]]

        def send(server: Mlflow, run_id: str) -> None:
            place = "" if name.parent == Path() else str(name.parent)
            try:
                server.file(run_id, self.work / root / name, place)
            except FileNotFoundError:  # published meanwhile: one rename moved everything
                server.file(run_id, self._target / root / name, place)
            if listed:
                server.tag(run_id, {TABLES_TAG: json.dumps(listed)})

        self.put(str(name), send)

    def finish(self, status: str) -> None:
        """FINISHED, FAILED, KILLED, or SCHEDULED while it waits for a person."""
        self.put("the end of a stage", lambda server, run_id: server.set_status(run_id, status))

    def _open(self, server: Mlflow) -> None:
        run_id = server.find_run(self.tracker.experiment, self._tags)
        if run_id and self._only_unfinished:
            run = server.run(run_id)
            if run and run.info.status == "FINISHED":
                self._opened.set()
                return
        if run_id:
            server.set_status(run_id, "RUNNING")
        else:
            name = self._tags["klear.stage"]
            run_id = server.create_run(self.tracker.experiment, name, self._tags)
            self._last = {STEP_METRIC: -1}
        if self._params:
            server.params(run_id, self._params)
        self.run_id = run_id
        self._opened.set()
