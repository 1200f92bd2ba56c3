"""One stage's child run: opened, followed while it computes, and told what came out."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracked import Point

if TYPE_CHECKING:
    from tasks.tracker import Tracker
    from tasks.tracking import Mlflow

STEP_METRIC = "step"  # logged with every line of metrics.jsonl; its history says what is there
TABLES_TAG = "mlflow.loggedArtifacts"  # which JSON artifacts the UI displays as tables
TABLES_LISTED = 40  # the latest ones; a tag holds few thousand characters
SECONDS_FOR_AN_ID = 3.0


class StageLog:
    """What a stage tells about itself; its files are in `work`, once published in `target`."""

    def __init__(
        self,
        tracker: Tracker,
        parent: str,
        stage: str,
        key: str,
        params: Mapping[str, str],
        work: Path,
        target: Path,
        only_unfinished: bool = False,
    ) -> None:
        self.tracker, self.work, self._target = tracker, work, target
        self._only_unfinished = only_unfinished
        self.run_id = ""
        """Empty until the server has given one, or if it refused to."""
        self._tags = {"mlflow.parentRunId": parent, "klear.stage": stage, "klear.key": key}
        self._params = params
        self._opened = threading.Event()
        self._last: dict[str, int] = {}
        tracker.put(f"the run of {stage}", self._open, soon=True)  # its id goes into a manifest

    def wait_id(self, seconds: float = SECONDS_FOR_AN_ID) -> str:
        """The run's id; '' when the server is away or there is none."""
        if self.tracker.uri:
            self._opened.wait(seconds)
        return self.run_id

    def put(self, what: str, tell: _Tell) -> None:
        """Call `tell(server, run_id)` in its turn, once the run is open."""
        self.tracker.put(what, lambda server: tell(server, self.run_id) if self.run_id else None)

    def steps(self, lines: Sequence[Mapping], marker: str = STEP_METRIC) -> None:
        """Curves: each line is {"step": int, "time": seconds, "metrics": {name: value}}."""

        def tell(server: Mlflow, run_id: str) -> None:
            if marker not in self._last:
                self._last[marker] = server.last_step(run_id, marker)
            fresh = [line for line in lines if line["step"] > self._last[marker]]
            points = [
                Point(name, float(value), line["time"], line["step"])
                for line in fresh
                for name, value in _with_marker(line, marker).items()
            ]
            server.points(run_id, points)
            self._last[marker] = max((line["step"] for line in fresh), default=self._last[marker])

        self.put("curves", tell)

    def show(self, root: Path, name: Path, tables: Sequence[str]) -> None:
        """One file below `root` of the stage's folder, and which artifacts are tables."""

        def tell(server: Mlflow, run_id: str) -> None:
            place = "" if name.parent == Path() else str(name.parent)
            self._file(server, root / name, place)
            listed = [{"path": t, "type": "table"} for t in tables[-TABLES_LISTED:]]
            if listed:
                server.tag(run_id, {TABLES_TAG: json.dumps(listed)})

        self.put(str(name), tell)

    def file(self, name: Path, place: str = "") -> None:
        """One file of the stage's folder, put into the folder `place` of the run."""
        self.put(str(name), lambda server, _: self._file(server, name, place))

    def _file(self, server: Mlflow, name: Path, place: str) -> None:
        try:
            server.file(self.run_id, self.work / name, place)
        except FileNotFoundError:  # published meanwhile: one rename moved everything
            server.file(self.run_id, self._target / name, place)

    def finish(self, status: str) -> None:
        """FINISHED, FAILED, KILLED, or SCHEDULED while it waits for a person."""
        self.put("the end of a stage", lambda server, run_id: server.set_status(run_id, status))

    def sign(self, manifest: Path) -> None:
        """Write the run's id into a manifest that was published while the server was away."""

        def tell(_: Mlflow, run_id: str) -> None:
            text = json.loads(manifest.read_text())
            if text["mlflow_run"] != run_id:
                part = manifest.with_suffix(".part")
                part.write_text(json.dumps({**text, "mlflow_run": run_id}, indent=1))
                os.replace(part, manifest)

        self.put("the manifest's run", tell)

    def _open(self, server: Mlflow) -> None:
        experiment = self.tracker.experiment
        run_id = server.find_run(experiment, self._tags)
        if run_id and self._only_unfinished and server.is_finished(run_id):
            self._opened.set()
            return
        if run_id:
            server.set_status(run_id, "RUNNING")
        else:
            run_id = server.create_run(experiment, self._tags["klear.stage"], self._tags)
            self._last = {STEP_METRIC: -1}
        if self._params:
            server.params(run_id, self._params)
        self.run_id = run_id
        self._opened.set()


def _with_marker(line: Mapping, marker: str) -> dict[str, float]:
    return {**line["metrics"], marker: line["metrics"].get(marker, line["step"])}


if TYPE_CHECKING:
    from collections.abc import Callable

    _Tell = Callable[[Mlflow, str], object]
