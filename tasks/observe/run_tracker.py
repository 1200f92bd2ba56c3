"""Experiment = profile, parent run = pipeline, child run = stage: what is logged, and when.

Everything but the first call of a run is a message that one thread sends in its turn, so that no
stage waits for the server and a server that is unreachable misses nothing. (MLflow's own
asynchronous logging covers metrics alone, and drops a batch whose retries are used up.)

A killed run is continued, never doubled: the pipeline's run is found again by its id in the run
state, a stage's run by (parent, stage, key), and steps that are there are not logged twice.
"""

import json
import logging
import re
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from ...configs.settings.evaluation import LEARNING_CURVE
from ...training.launch.result_files import METRICS, SHOWN, read_lines
from .mlflow_client import NOTE_TAG, PARENT_TAG, Mlflow, metric

PATIENCE_AT_THE_END_S = {"FINISHED": 900.0, "FAILED": 20.0, "SCHEDULED": 2.0, "KILLED": 2.0}
"""How long the end of a run waits for what is still to be told, by how the run ended."""
STEP_METRIC = "system/step"
CURVES = {METRICS: STEP_METRIC, LEARNING_CURVE: "system/rollout_step"}
"""Files of lines {"step", "time", "metrics"} in a stage's folder, each with a metric logged with
every line: its history says which steps the server has. `system/` keeps it out of the charts."""
LONGEST_NOTE = 7_900  # a tag of MLflow holds 8,000 characters
TABLES_TAG = "mlflow.loggedArtifacts"  # which JSON artifacts the UI displays as tables
TABLES_LISTED = 40  # the latest ones; a tag holds few thousand characters
SECONDS_BETWEEN_POLLS = 2.0
SECONDS_FOR_AN_ID = 3.0
PAUSE_S = 2.0
# What a proxy says for a server that is down, and a server that is starting or too busy.
_UNREACHABLE = re.compile(r"(?:failed with error code |too many |^)50[234]\b")
_BROKEN = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,  # it was killed in the middle of its answer
)
_LOG = logging.getLogger("klear")
Send = Callable[[Mlflow], object]
VIEWS = tomllib.loads(Path(__file__).with_name("views.toml").read_text(encoding="utf-8"))
"""What stands on an experiment's page, and the view saved in it beside those of people."""
PAGE = VIEWS["page"]  # in which {id} is the experiment's
CHARTS = PAGE["charts"].replace("{key}", PAGE["key"])
ABOUT = PAGE["about"].replace("{charts}", CHARTS)


class NotLogged(RuntimeError):
    """The run is done, but MLflow was unreachable for too long to log all of it."""


def tags_of(name: str) -> dict[str, str]:
    """What MLflow's pages tell the run of a stage, or of a "pipeline", by."""
    return VIEWS["tags"].get(name.partition("_")[0], {})


def view(benchmarks: Sequence[str]) -> dict[str, Any]:
    """The state of the experiment's page."""
    sections = VIEWS["sections"] | {"Accuracy by stage": [[f"{name}/avg"] for name in benchmarks]}
    charts = [
        {**VIEWS["chart"], "uuid": of[0], "metricSectionId": name}
        | {"metricKey": of[0], "selectedMetricKeys": of}
        for name, wanted in sections.items()
        for of in wanted
    ]
    folded = [{"uuid": n, "name": n, "display": bool(sections[n])} for n in sections]
    return VIEWS["view"] | {"compareRunCharts": charts, "compareRunSections": folded}


class Tracker:
    """An MLflow server and the messages to it; without a `uri` nobody listens."""

    def __init__(self, uri: str = "", experiment: str = "") -> None:
        self.uri, self.name, self.experiment = uri, experiment, ""
        self.refused = 0
        """Messages that the server answered with an error."""
        self._messages: deque[tuple[str, Send]] = deque()
        self._changed = threading.Condition()
        if uri:
            self.server = Mlflow(uri)
            self.experiment = self.server.experiment(experiment, ABOUT)
            # A daemon: a run that is cancelled ends at once, whatever is left to send.
            threading.Thread(target=self._work, name="mlflow-queue", daemon=True).start()

    def put(self, what: str, send: Send, *, soon: bool = False) -> None:
        """Call `send(server)` after all that was put before, or right after what is being sent;
        `what` names it in warnings."""
        if self.uri:
            with self._changed:
                self._messages.insert(1 if soon else len(self._messages), (what, send))
                self._changed.notify_all()

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until everything has arrived; False if it has not within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._messages, seconds)

    def start_pipeline(
        self, name: str, tags: Mapping[str, str], resume: str = "", same: Sequence[str] = ()
    ) -> str:
        """The run of a pipeline: `resume` continued if it still exists, else the one whose tags
        named by `same` are those of `tags`, else a new one."""
        if not self.uri:
            return resume or f"untracked-{time.time_ns()}"
        server, found = self.server, self.server.active_run(resume) if resume else None
        if not found and same:
            found = server.find_run(self.experiment, {n: tags[n] for n in same})
        if not found:
            return server.create_run(self.experiment, run_name=name, tags=dict(tags)).info.run_id
        server.set_status(found.info.run_id, "RUNNING")
        server.tag(found.info.run_id, tags)
        return found.info.run_id

    def log(
        self, run_id: str, metrics: Mapping[str, float | Mapping[int, float]], made: float = 0.0
    ) -> None:
        """Values, or short curves of a value by step. `made`: when, in Unix seconds; what is logged
        again with it is there once."""
        at = made or time.time()
        curves = {n: v if isinstance(v, Mapping) else {0: v} for n, v in metrics.items()}
        points = [
            metric(n, v, at, step) for n, curve in curves.items() for step, v in curve.items()
        ]
        self.put("metrics", lambda server: server.log_batch(run_id, points))

    def note(self, run_id: str, markdown: str) -> None:
        """The text on top of the run's page; one that is too long loses whole lines."""
        if len(markdown) > LONGEST_NOTE:
            markdown = markdown[:LONGEST_NOTE].rpartition("\n")[0]
        self.put("the note", lambda server: server.tag(run_id, {NOTE_TAG: markdown}))

    def run_url(self, run_id: str) -> str:
        """The run's page in the MLflow UI; '' without a server."""
        page = f"{self.uri}/#/experiments/{self.experiment}/runs/{run_id}"
        # Else MLflow opens it in its mode for LLM applications.
        return f"{page}?workflowType=machine_learning" if run_id and self.uri[:4] == "http" else ""

    def save_view(self, benchmarks: Sequence[str]) -> None:
        """The experiment's view of its runs as charts; `view_url` opens it."""
        saved = (self.experiment, PAGE["key"], PAGE["name"], view(benchmarks))
        self.put("the view", lambda server: server.save_view(*saved))

    def view_url(self) -> str:
        """The experiment's runs as charts in the MLflow UI; '' without a server."""
        page = CHARTS.format(id=self.experiment)
        return f"{self.uri}/{page}" if self.uri[:4] == "http" else ""

    def finish(self, run_id: str, status: str) -> None:
        """The end of a pipeline's run: FINISHED, FAILED, KILLED, SCHEDULED while it is suspended.
        Raises NotLogged when it is FINISHED and the server has not heard all of it."""
        self.put("the end", lambda server: server.set_status(run_id, status))
        if not self.flush(PATIENCE_AT_THE_END_S[status]) and status == "FINISHED":
            raise NotLogged(
                f"every stage is done and in the store, but MLflow at {self.uri} has not answered "
                f"for {PATIENCE_AT_THE_END_S[status] / 60:.0f} minutes: start it (`klear up`), "
                "then the same command logs the rest"
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._messages)
            self._send(*self._messages[0])
            with self._changed:
                self._messages.popleft()
                self._changed.notify_all()

    def _send(self, what: str, send: Send) -> None:
        warned = False
        while True:
            try:
                send(self.server)
                return
            except Exception as error:  # of any kind: a message must never end the thread
                line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
                if not is_unreachable(error):
                    self.refused += 1
                    _LOG.warning("MLflow refused %s: %s", what, line)
                    return
                if not warned:
                    _LOG.warning("MLflow is unreachable; the run goes on and logs later (%s)", line)
                warned = True
                time.sleep(PAUSE_S)


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the server did not answer, as opposed to answering with an error."""
    while error is not None:
        # MLflow gives a status mostly in words.
        if isinstance(error, _BROKEN) or _UNREACHABLE.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


@dataclass
class StageLog:
    """The child run of (parent, stage, key), reopened if an earlier attempt left it.

    `folder` is where its files are; with `only_unfinished` nothing is logged to a run that is
    FINISHED. `run_id` is empty until the server has given one, or if it refused to.
    """

    tracker: Tracker
    parent: str
    stage: str
    key: str
    params: Mapping[str, str]
    folder: Path
    name: str = ""
    only_unfinished: bool = False

    def __post_init__(self) -> None:
        self.run_id = ""
        self._tags = {PARENT_TAG: self.parent, "klear.stage": self.stage, "klear.key": self.key}
        self._opened = threading.Event()
        self._monitor: Any = None
        self._read: dict[str, int] = {}  # file of a curve → lines of it that were put
        self._last: dict[str, int] = {}  # marker of a curve → the last step that the server has
        self._shown: dict[Path, int] = {}  # table → when it was changed last
        self._due = 0.0
        self.tracker.put(f"the run of {self.stage}", self._open, soon=True)  # a manifest has its id

    def wait_id(self) -> str:
        """The run's id; '' when the server is away or there is none."""
        if self.tracker.uri:
            self._opened.wait(SECONDS_FOR_AN_ID)
        return self.run_id

    def put(self, what: str, send: Callable[[Mlflow, str], object]) -> None:
        """Call `send(server, run id)` in its turn, once the run is open."""
        self.tracker.put(what, lambda server: send(server, self.run_id) if self.run_id else None)

    def finish(self, status: str) -> None:
        """FINISHED, FAILED, KILLED, or SCHEDULED while it waits for a person."""

        def send(server: Mlflow, run_id: str) -> None:
            if self._monitor:
                self._monitor.finish()
            server.set_status(run_id, status)

        self.put("the end of a stage", send)

    def poll(self, *, now: bool = True) -> None:
        """Log what is new in the folder: lines of the curves, tables that changed; every
        few seconds at most unless it must be `now`."""
        if not self.tracker.uri or (not now and time.monotonic() < self._due):
            return
        for name, marker in CURVES.items():
            # By their number: a resumed child writes those after its checkpoint again.
            if lines := read_lines(self.folder / name, after=self._read.get(name, 0)):
                self._read[name] = self._read.get(name, 0) + len(lines)
                self.steps(lines, marker)
        root = self.folder / SHOWN
        tables = {str(p.relative_to(root)): p for p in sorted(root.rglob("*.json"))}
        listed = json.dumps([{"path": t, "type": "table"} for t in [*tables][-TABLES_LISTED:]])
        for table, path in tables.items():
            if self._shown.get(path) != (stamp := path.stat().st_mtime_ns):
                self._shown[path] = stamp
                self._show(table, path.read_text(encoding="utf-8"), listed)
        self._due = time.monotonic() + SECONDS_BETWEEN_POLLS

    def steps(self, lines: Sequence[Mapping[str, Any]], marker: str = STEP_METRIC) -> None:
        """Points of a curve, those of each step once whatever is killed and resumed."""

        def send(server: Mlflow, run_id: str) -> None:
            if marker not in self._last:
                self._last[marker] = server.last_step(run_id, marker)
            fresh = [line for line in lines if line["step"] > self._last[marker]]
            points = [
                metric(name, value, line["time"], line["step"])
                for line in fresh
                for name, value in {marker: line["step"], **line["metrics"]}.items()
            ]
            server.log_batch(run_id, points)
            self._last[marker] = max((line["step"] for line in fresh), default=self._last[marker])

        self.put("curves", send)

    def _show(self, name: str, text: str, listed: str) -> None:
        """One table, which replaces its earlier self, and which artifacts are tables."""

        def send(server: Mlflow, run_id: str) -> None:
            server.log_text(run_id, text, name)
            server.tag(run_id, {TABLES_TAG: listed})

        self.put(name, send)

    def _open(self, server: Mlflow) -> None:
        experiment = self.tracker.experiment
        run = server.find_run(experiment, self._tags)
        if run and self.only_unfinished and run.info.status == "FINISHED":
            self._opened.set()
            return
        if run:
            server.set_status(run.info.run_id, "RUNNING")
        else:
            tags = {**self._tags, **tags_of(self.stage)}
            run = server.create_run(experiment, run_name=self.name or self.stage, tags=tags)
            self._last = dict.fromkeys(CURVES.values(), -1)
        server.params(run.info.run_id, self.params)
        if not self.only_unfinished:
            self._monitor = self._monitor or server.system_metrics(run.info.run_id)
        self.run_id = run.info.run_id
        self._opened.set()
