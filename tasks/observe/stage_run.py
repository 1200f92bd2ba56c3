"""What MLflow has of a stage: a child run that is made equal to what lies in the stage's folder.

Curves, tables and, once it is published, its rows, checkpoint, scores and pages. Checkpoints are
recorded by a pointer, registered per profile; weights are never copied.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from ...configs.files import replace_text
from ...configs.settings.evaluation import LEARNING_CURVE
from ...training.launch.result_files import CHECKPOINT, METRICS, ROLLOUTS, SHOWN, read_lines
from ..engine.events import Task
from ..report.plots import rollout_histograms
from ..store.store import CARD, MANIFEST, PLOTS, Artifact, Manifest, read_manifest
from . import rows
from .mlflow_client import (
    ARTIFACT_TAG,
    DIGEST_TAG,
    MODEL_TAG,
    PARENT_TAG,
    Mlflow,
    entities,
    made_by,
    metric,
)

STEP_METRIC = "system/step"
CURVES = {METRICS: STEP_METRIC, LEARNING_CURVE: "system/rollout_step"}
"""Files of lines {"step", "time", "metrics"} in a stage's folder, each with a metric logged with
every line: its history says which steps the server has. `system/` keeps it out of the charts."""
TABLES_TAG = "mlflow.loggedArtifacts"  # which JSON artifacts the UI displays as tables
TABLES_LISTED = 40  # the latest ones; a tag holds few thousand characters
ANSWERS = "answers.json"
FIRST_ROWS = "first_rows.json"
CONTEXTS = {"evaluate": "eval", "sft": "training", "rl": "training"}
"""What rows are read for, by how the name of a stage begins; else they are its input."""


class Server(Protocol):
    """Where a stage's run is, and who sends to it."""

    name: str
    experiment: str

    def attempt(self, name: str, send: Callable[[Mlflow], object]) -> bool: ...


class StageRun:
    """The child run of (parent, stage, key), reopened if an earlier attempt left it.

    `folder` is where its files are; with `only_unfinished` nothing is logged to a run that is
    FINISHED. `run_id` is empty until the server has given one, or if it refused to.
    """

    def __init__(
        self,
        tracker: Server,
        parent: str,
        task: Task,
        parameters: Mapping[str, str],
        folder: Path,
        label: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.tracker, self.task, self.parameters = tracker, task, parameters
        self.folder, self.label, self.tags = folder, label or task.stage, tags or {}
        self.run_id, self.status, self.only_unfinished = "", "", False
        self.manifest: Manifest | None = None
        self.due = 0.0
        """When it may be synchronized again."""
        self._same = {PARENT_TAG: parent, "klear.stage": task.stage, "klear.key": task.key}
        self._opened = threading.Event()
        self._monitor: Any = None
        self._read: dict[str, int] = {}  # file of a curve → lines of it that were sent
        self._last: dict[str, int] = {}  # marker of a curve → the last step that the server has
        self._shown: dict[str, int] = {}  # table → when it was changed last
        self._listed: dict[str, Mapping[str, str]] = {}  # table → its entry in TABLES_TAG
        self._told: set[str] = set()  # what the server has of the result

    def wait_id(self, seconds: float) -> str:
        """The run's id; '' when the server is away."""
        self._opened.wait(seconds)
        return self.run_id

    def publish(self, artifact: Artifact, manifest: Manifest) -> None:
        """From now on there is a result to tell of."""
        self.artifact, self.folder, self.status = artifact, artifact.folder, "FINISHED"
        self.manifest = manifest

    def sync(self, server: Mlflow) -> None:
        """Tell the server what is in the folder that it does not have. Raises where it is away."""
        if not self._opened.is_set():
            self._open(server)
        if not self.run_id:
            return
        with suppress(FileNotFoundError):  # it is being published: that is synchronized, too
            for name, marker in CURVES.items():
                self._part(name, lambda s, n=name, m=marker: self._curve(s, n, m))
            self._part("tables", self._tables)
        if self.manifest:
            parts = self.sign, self.pages, self.checkpoint, self.datasets, self.metrics
            for part in (*parts, self.answers, self.histograms):
                if part.__name__ not in self._told:
                    self._part(part.__name__, part)
                    self._told.add(part.__name__)
        if self.status and self.status not in self._told:
            self._part("end", self._end)
            self._told.add(self.status)

    def _part(self, name: str, send: Callable[[Mlflow], object]) -> None:
        """One that is refused holds up no other."""
        self.tracker.attempt(f"{name} of {self.task.stage}", send)

    def _open(self, server: Mlflow) -> None:
        experiment = self.tracker.experiment
        run = server.find_run(experiment, self._same)
        if run and self.only_unfinished and run.info.status == "FINISHED":
            self._opened.set()
            return
        if run:
            server.set_status(run.info.run_id, "RUNNING")
        else:
            tags = {**self._same, **self.tags}
            run = server.create_run(experiment, run_name=self.label, tags=tags)
            self._last = dict.fromkeys(CURVES.values(), -1)
        server.params(run.info.run_id, self.parameters)
        if not self.only_unfinished:
            self._monitor = self._monitor or server.system_metrics(run.info.run_id)
        self.run_id = run.info.run_id
        self._opened.set()

    def _end(self, server: Mlflow) -> None:
        if self._monitor:
            self._monitor.finish()
        server.set_status(self.run_id, self.status)

    def _curve(self, server: Mlflow, name: str, marker: str) -> None:
        """New points of a curve, those of each step once whatever is killed and resumed."""
        # By their number: a resumed child writes those after its checkpoint again.
        lines = read_lines(self.folder / name, after=self._read.get(name, 0))
        if not lines:
            return
        if marker not in self._last:
            self._last[marker] = server.last_step(self.run_id, marker)
        fresh = [line for line in lines if line["step"] > self._last[marker]]
        points = [
            metric(title, value, line["time"], line["step"])
            for line in fresh
            for title, value in self._titled(name, marker, line).items()
        ]
        server.log_batch(self.run_id, points)
        self._last[marker] = max((line["step"] for line in fresh), default=self._last[marker])
        self._read[name] = self._read.get(name, 0) + len(lines)

    def _titled(self, name: str, marker: str, line: Mapping[str, Any]) -> dict[str, float]:
        """The values of a line by their names in MLflow: `sft/loss` is not `rl_math/loss`."""
        stage = f"{self.task.stage}/" if name == METRICS else ""
        return {marker: line["step"], **{stage + n: v for n, v in line["metrics"].items()}}

    def _tables(self, server: Mlflow) -> None:
        """Tables that are new or changed, and which artifacts are tables."""
        root = self.folder / SHOWN
        tables = {str(path.relative_to(root)): path for path in sorted(root.rglob("*.json"))}
        for name, path in tables.items():
            stamp = path.stat().st_mtime_ns
            if self._shown.get(name) != stamp:
                self._table(server, name, path.read_text(encoding="utf-8"))
                self._shown[name] = stamp

    def _table(self, server: Mlflow, name: str, text: str) -> None:
        """Log a table, and list it among the tables that the UI shows."""
        server.log_text(self.run_id, text, name)
        self._listed[name] = {"path": name, "type": "table"}
        listed = [*self._listed.values()][-TABLES_LISTED:]
        server.tag(self.run_id, {TABLES_TAG: json.dumps(listed)})

    def sign(self, server: Mlflow) -> None:
        """Write the run's id into a manifest that was published while the server was away."""
        assert self.manifest
        path = self.artifact.folder / MANIFEST
        text = json.loads(path.read_text())
        if text["mlflow_run"] == "":
            replace_text(path, json.dumps({**text, "mlflow_run": self.run_id}, indent=1))
        digest = {DIGEST_TAG: self.artifact.digest}
        server.tag(self.run_id, {**digest, **made_by(self.manifest.git_commit)})

    def pages(self, server: Mlflow) -> None:
        """Plots, manifest and card."""
        names = [str(p.relative_to(self.folder)) for p in sorted(self.folder.glob(f"{PLOTS}/**/*"))]
        for name in (*names, MANIFEST):
            path, where = self.folder / name, "figures" if name.startswith(PLOTS) else None
            if path.is_file():
                server.log_artifact(self.run_id, str(path), where)
        if (card := self.folder / CARD).is_file():  # without its head, which is for the hub
            text = re.sub(r"\A---\n.*?\n---\n\s*", "", card.read_text("utf-8"), flags=re.S)
            server.log_text(self.run_id, text, CARD)

    def answers(self, server: Mlflow) -> None:
        """Every problem of an evaluation with the verdicts of its answers, as a table."""
        if table := rows.answers_by_problem(self.folder):
            self._table(server, ANSWERS, json.dumps(table))

    def checkpoint(self, server: Mlflow) -> None:
        """A stage with weights makes a model and a version of it."""
        artifact, tracker = self.artifact, self.tracker
        folder = artifact.folder / CHECKPOINT
        if not folder.exists():
            return
        tags = {
            ARTIFACT_TAG: f"{artifact.stage}/{artifact.key}",
            DIGEST_TAG: artifact.digest,
            "klear.path": str(folder),
            "klear.git_commit": self.manifest.git_commit if self.manifest else "",
        }
        where = tracker.experiment, tracker.name, self.run_id
        server.register(*where, folder, tags, self.parameters)

    def datasets(self, server: Mlflow) -> None:
        """Rows read and rows made, by name and digest; models read."""
        rows_read = [(d, self.context) for a in self.task.inputs if (d := dataset_of(a))]
        written = [(d, "output") for d in [dataset_of(self.artifact)] if d]
        server.inputs(self.run_id, rows_read + written, self._models_read(server))
        if written and (main := rows.main_table(self.folder)):
            self._table(server, FIRST_ROWS, json.dumps(rows.first_rows(main)))

    @property
    def context(self) -> str:
        """What the stage reads rows for."""
        return CONTEXTS.get(self.task.stage.partition("_")[0], "input")

    def metrics(self, server: Mlflow) -> None:
        """Figures of the result; scores are those of the model and the rows, too."""
        assert self.manifest
        values = {**self.manifest.metrics, "seconds": self.manifest.seconds}
        drawn, created = curve_names(self.folder), self.manifest.made
        measured: dict[str, str] = {}
        if self.context == "eval":
            for model in self._models_read(server):
                measured["model_id"] = model
            for data in filter(None, map(dataset_of, self.task.inputs)):
                measured |= {"dataset_name": data.name, "dataset_digest": data.digest}
        # Of a curve the last value is there already.
        points = [
            metric(n, v, created, measured=measured) for n, v in values.items() if n not in drawn
        ]
        server.log_batch(self.run_id, points)

    def histograms(self, server: Mlflow) -> None:
        """The rollouts kept of an RL stage in one picture."""
        path, columns = self.folder / ROLLOUTS, ["step", "tokens", "reward"]
        if path.exists() and (kept := pq.read_table(path, columns=columns).to_pylist()):
            server.log_figure(self.run_id, rollout_histograms(kept), "figures/rollouts.png")

    def _models_read(self, server: Mlflow) -> list[str]:
        """The ids of the inputs that are models; one that nobody recorded is left out."""
        models = [a.folder for a in self.task.inputs if (a.folder / CHECKPOINT).exists()]
        # Not the artifact's: the run may have been signed in after it was handed out.
        runs_of_models = filter(None, (read_manifest(folder).mlflow_run for folder in models))
        runs = filter(None, map(server.active_run, runs_of_models))
        return [run.data.tags[MODEL_TAG] for run in runs if MODEL_TAG in run.data.tags]


def curve_names(folder: Path) -> set[str]:
    """The metrics that a finished stage drew as curves."""
    lines = [*read_lines(folder / METRICS), *read_lines(folder / LEARNING_CURVE)]
    return set().union(*(line["metrics"] for line in lines))


def dataset_of(artifact: Artifact) -> entities.Dataset | None:
    """An artifact's rows: their counts by the parquet footers, schema and first rows; None: a
    checkpoint, or only pages."""
    folder = artifact.folder
    main = rows.main_table(folder)
    if not main or (folder / CHECKPOINT).exists():
        return None
    counts = {p.stem: pq.read_metadata(p).num_rows for p in sorted(folder.glob("*.parquet"))}
    source = {"uri": str(folder), "artifact": f"{artifact.stage}/{artifact.key}"}
    profile = {"num_rows": counts[main.stem], **{f"rows {n}": c for n, c in counts.items()}}
    profile["first_rows"] = rows.first_rows(main)
    facts = json.dumps(source), json.dumps(rows.schema_of(main)), json.dumps(profile)
    return entities.Dataset(artifact.stage, artifact.digest[:16], "local", *facts)
