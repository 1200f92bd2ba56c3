"""What MLflow is told of a run, and when: experiment = profile, parent run = pipeline, child run =
stage.

One thread sends it, so that no stage waits for the server. What it sends is not a queue of lines:
of each stage, the folder is compared with what the server has (`StageRun.sync`), as often as
something has happened. So a server that was unreachable misses nothing, and a killed run is
continued, never doubled: the pipeline's run is found again by its id in the run state, a stage's by
(parent, stage, key). (MLflow's own asynchronous logging covers metrics alone, and drops a batch
whose retries are used up.)
"""

import json
import logging
import re
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import requests

from ...configs.settings.base import first_few, flat
from ...configs.settings.pipeline import group_of_stage
from ..engine.events import Event, Failed, Progress, Published, Sealing, Started, Task
from .mlflow_client import NOTE_TAG, Mlflow, metric
from .stage_run import StageRun

PATIENCE_AT_THE_END_S = {"FINISHED": 900.0, "FAILED": 20.0, "SCHEDULED": 2.0, "KILLED": 2.0}
"""How long the end of a run waits for what is still to be told, by how the run ended."""
LONGEST_NOTE = 7_900  # a tag of MLflow holds 8,000 characters
SECONDS_BETWEEN_SYNCS = 2.0
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
"""What stands on an experiment's page, and the views saved in it beside those of people."""
PAGE = VIEWS["page"]  # in which {id} is the experiment's
CHARTS = PAGE["runs"] + PAGE["charts"]
LINKS = {n: PAGE["runs"] + PAGE[n] for n in ("accuracy", "charts", "scores")}
LINKS["runs"] = PAGE["runs"]
ABOUT = reduce(lambda text, name: text.replace(f"{{{name}}}", LINKS[name]), LINKS, PAGE["about"])
RL = ("rl_math", "rl_code")


class NotLogged(RuntimeError):
    """The run is done, but MLflow was unreachable for too long to log all of it."""


def tags_of(name: str) -> dict[str, str]:
    """By which a view lists the run of a stage, or any that is "scored"."""
    return VIEWS["tags"].get(name.partition("_")[0], {})


def state_of_view(name: str, benchmarks: Sequence[str]) -> dict[str, Any]:
    """The state of the experiment's page in a view: "scores" of runs, or "learning" of stages."""
    sections = {
        title: [
            list(dict.fromkeys(n.replace("{rl}", stage) for stage in RL for n in names))
            for names in charts
        ]
        for title, charts in VIEWS["sections"][name].items()
    }
    if name == "scores" and len(benchmarks) > 2:  # else each is its domain
        sections["Accuracy by stage"] += [[f"{benchmark}/avg"] for benchmark in benchmarks]
    charts = [
        {**VIEWS["chart"], "uuid": metrics[0], "metricSectionId": title}
        | {"metricKey": metrics[0], "selectedMetricKeys": metrics}
        for title, wanted in sections.items()
        for metrics in wanted
    ]
    folded = [{"uuid": n, "name": n, "display": bool(sections[n])} for n in sections]
    return VIEWS[name] | {"compareRunCharts": charts, "compareRunSections": folded}


class Tracker:
    """An MLflow server, and the run of a pipeline there; without a `uri` nobody listens.

    `changed` are the settings that differ from the profile: the runs of their stages name them.
    """

    def __init__(
        self, uri: str = "", experiment: str = "", changed: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.uri, self.name, self.experiment = uri, experiment, ""
        self.run_id, self.changed = "", changed
        self.refused = 0
        """What the server answered with an error."""
        self._stages: dict[str, StageRun] = {}
        self._unsent: dict[str, Send] = {}
        """By name; each says all there is to say when it is sent, and may be sent again."""
        self._changed = threading.Condition()
        if uri:
            self.server = Mlflow(uri)
            self.experiment = self.server.experiment(experiment, ABOUT)
            # A daemon: a run that is cancelled ends at once, whatever is left to send.
            threading.Thread(target=self._work, name="mlflow", daemon=True).start()

    def on(self, event: Event) -> None:
        """What has happened to a stage makes its run be compared with its folder."""
        if not self.uri:
            return
        match event:
            case Started(task, folder=folder):
                self._sync(self._begin(task, folder))
            case Progress(stage) if stage_run := self._stages.get(stage):
                if time.monotonic() >= stage_run.due:
                    stage_run.due = time.monotonic() + SECONDS_BETWEEN_SYNCS
                    self._sync(stage_run)
            case Sealing(task, links=links):
                links["mlflow_run"] = self._stages[task.stage].wait_id(SECONDS_FOR_AN_ID)
            case Published(task, artifact, manifest, action):
                reused = action == "reused"
                if reused and manifest.pipeline_run != self.run_id:
                    return
                # An earlier attempt made it, and may have been killed before all was logged.
                stage_run = self._begin(task, artifact.folder) if reused else None
                stage_run = stage_run or self._stages[task.stage]
                stage_run.only_unfinished = reused
                stage_run.publish(artifact, manifest)
                self._sync(stage_run)
            case Failed(task) if stage_run := self._stages.get(task.stage):
                stage_run.status = "KILLED" if event.interrupted else "FAILED"
                self._sync(stage_run)

    def _begin(self, task: Task, folder: Path) -> StageRun:
        # Under the names of the pipeline's own settings: what is equal compares as equal.
        parameters = as_params({group_of_stage(task.stage): task.settings.model_dump(mode="json")})
        tags = tags_of(task.stage)
        begun = StageRun(self, self.run_id, task, parameters, folder, self.label(task.stage), tags)
        self._stages[task.stage] = begun
        return begun

    def _sync(self, stage_run: StageRun) -> None:
        task = stage_run.task
        self.put(f"the run of {task.stage} {task.key}", stage_run.sync)

    def label(self, stage: str) -> str:
        """A stage and what differs in its settings: `sft · epochs=0.2`."""
        own = f"{group_of_stage(stage)}."
        changed = [(n.removeprefix(own), v) for n, v in self.changed if n.startswith(own)]
        words = first_few([f"{name}={value}" for name, value in changed])
        return f"{stage} · {', '.join(words)}" if words else stage

    def put(self, name: str, send: Send) -> None:
        """Call `send(server)` after all that was put before; one of the same name that was not sent
        yet is replaced. It may be called again."""
        if self.uri:
            with self._changed:
                self._unsent[name] = send
                self._changed.notify_all()

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until everything has arrived; False if it has not within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unsent, seconds)

    def start_pipeline(
        self, name: str, tags: Mapping[str, str], resume: str = "", same: Sequence[str] = ()
    ) -> str:
        """The run of a pipeline: `resume` continued if it still exists, else the one whose tags
        named by `same` are those of `tags`, else a new one."""
        if not self.uri:
            self.run_id = resume or f"untracked-{time.time_ns()}"
            return self.run_id
        server, run = self.server, self.server.active_run(resume) if resume else None
        if not run and same:
            run = server.find_run(self.experiment, {n: tags[n] for n in same})
        if run:
            server.set_status(run.info.run_id, "RUNNING")
            server.tag(run.info.run_id, tags)
        else:
            run = server.create_run(self.experiment, run_name=name, tags=dict(tags))
        self.run_id = run.info.run_id
        return self.run_id

    def log(
        self,
        run_id: str,
        metrics: Mapping[str, float | Mapping[int, float]],
        logged_at: float = 0.0,
    ) -> None:
        """Values, or short curves of a value by step. `logged_at`: when, in Unix seconds; what is
        logged again with it is there once."""
        at = logged_at or time.time()
        curves = {n: v if isinstance(v, Mapping) else {0: v} for n, v in metrics.items()}
        points = [
            metric(n, v, at, step) for n, curve in curves.items() for step, v in curve.items()
        ]
        name = f"metrics {', '.join(metrics)}"
        self.put(name, lambda server: server.log_batch(run_id, points))

    def note(self, run_id: str, markdown: str) -> None:
        """The text on top of the run's page; one that is too long loses whole lines."""
        if len(markdown) > LONGEST_NOTE:
            markdown = markdown[:LONGEST_NOTE].rpartition("\n")[0]
        self.put(f"the note of {run_id}", lambda server: server.tag(run_id, {NOTE_TAG: markdown}))

    def run_url(self, run_id: str) -> str:
        """The run's page in the MLflow UI; '' without a server."""
        page = f"{self.uri}/#/experiments/{self.experiment}/runs/{run_id}"
        # Else MLflow opens it in its mode for LLM applications.
        return f"{page}?workflowType=machine_learning" if run_id and self.uri[:4] == "http" else ""

    def stage_url(self, stage: str) -> str:
        """The page of a stage of this run; '' before its run is there."""
        begun = self._stages.get(stage)
        return self.run_url(begun.run_id) if begun else ""

    def save_views(self, benchmarks: Sequence[str]) -> None:
        """The experiment's views: curves of its stages, which `view_url` opens, and its scores."""
        for name in VIEWS["sections"]:
            view = (f"klear-{name}", name.capitalize(), state_of_view(name, benchmarks))
            self.put(
                f"the view {name}",
                lambda server, view=view: server.save_view(self.experiment, *view),
            )

    def view_url(self) -> str:
        """The experiment's runs as charts in the MLflow UI; '' without a server."""
        page = CHARTS.format(id=self.experiment)
        return f"{self.uri}/{page}" if self.uri[:4] == "http" else ""

    def finish(self, run_id: str, status: str) -> None:
        """The end of a pipeline's run: FINISHED, FAILED, KILLED, SCHEDULED while it is suspended.
        Raises NotLogged when it is FINISHED and the server has not heard all of it."""
        self.put(f"the end of {run_id}", lambda server: server.set_status(run_id, status))
        if not self.flush(PATIENCE_AT_THE_END_S[status]) and status == "FINISHED":
            raise NotLogged(
                f"every stage is done and in the store, but MLflow at {self.uri} has not answered "
                f"for {PATIENCE_AT_THE_END_S[status] / 60:.0f} minutes: start it (`klear up`), "
                "then the same command logs the rest"
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent)
                name, send = next(iter(self._unsent.items()))
            with suppress(FileNotFoundError):
                self.attempt(name, send)
            with self._changed:
                if self._unsent[name] is send:
                    del self._unsent[name]
                else:  # more has happened since: it goes behind the others
                    self._unsent[name] = self._unsent.pop(name)
                self._changed.notify_all()

    def attempt(self, name: str, send: Send) -> bool:
        """Send it, once the server is reachable; False where it refuses. Raises FileNotFoundError
        where a file is gone."""
        warned = False
        while True:
            try:
                send(self.server)
                return True
            except FileNotFoundError:
                raise
            except Exception as error:  # of any kind: it must never end the thread
                line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
                if not is_unreachable(error):
                    self.refused += 1
                    _LOG.warning("MLflow refused %s: %s", name, line)
                    return False
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


def as_params(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as MLflow's parameters: one a leaf, lists of plain values with commas."""
    params = {}
    for name, value in flat(settings).items():
        values = value if isinstance(value, list) else [value]
        params[name] = ", ".join(v if isinstance(v, str) else json.dumps(v) for v in values)
    return params
