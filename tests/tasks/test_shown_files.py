"""Tables and pages that a stage shows reach its MLflow run once, and again when they change."""

import json
import os
import threading
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.curves import ShownFiles
from tasks.stage_log import TABLES_TAG, StageLog
from tasks.tracker import Tracker, Untracked


class Recorder(StageLog):
    def __init__(self, work: Path) -> None:
        super().__init__(Untracked(), "parent", "rl_math", "key", {}, work, work)
        self.shown: list[tuple[str, list[str]]] = []

    def show(self, root, name, tables):
        self.shown.append((str(name), list(tables)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shown = tmp_path / "work" / "logs" / "shown"
    (shown / "rollouts").mkdir(parents=True)
    (shown / "rollouts/step_00001.json").write_text('{"columns": ["text"], "data": [["a"]]}')
    (shown / "histograms.html").write_text("<p>")
    (shown / "histograms.partial").write_text("half")
    return tmp_path / "work"


def test_a_file_is_shown_once_and_again_when_it_changes(folder):
    log = Recorder(folder)
    files = ShownFiles(log, "logs/shown")
    files.poll()
    files.poll()
    tables = ["rollouts/step_00001.json"]
    assert log.shown == [("histograms.html", tables), ("rollouts/step_00001.json", tables)]
    (folder / "logs/shown/histograms.html").write_text("<p>2")
    os.utime(folder / "logs/shown/histograms.html", ns=(1, 1))
    files.poll()
    assert [name for name, _ in log.shown[2:]] == ["histograms.html"]


def test_mlflow_holds_the_files_and_lists_the_tables(folder, mlflow_uri, tmp_path):
    tracker = Tracker(mlflow_uri, "shown")
    parent = tracker.start_pipeline("tiny", {})
    log = tracker.stage(parent, "rl_math", "key", {}, folder, tmp_path / "published")
    for _ in range(2):  # a retry shows everything again and doubles nothing
        ShownFiles(log, "logs/shown").poll()
    assert tracker.flush()
    client, run = MlflowClient(tracking_uri=mlflow_uri), log.run_id
    assert [a.path for a in client.list_artifacts(run)] == ["histograms.html", "rollouts"]
    assert [a.path for a in client.list_artifacts(run, "rollouts")] == ["rollouts/step_00001.json"]
    (listed,) = json.loads(client.get_run(run).data.tags[TABLES_TAG])
    assert listed == {"path": "rollouts/step_00001.json", "type": "table"}
    stored = client.download_artifacts(run, "rollouts/step_00001.json", str(tmp_path))
    assert json.loads(Path(stored).read_text()) == {"columns": ["text"], "data": [["a"]]}


def test_a_file_that_is_published_before_it_is_told_is_found_where_it_went(
    folder, mlflow_uri, tmp_path
):
    tracker = Tracker(mlflow_uri, "shown")
    parent = tracker.start_pipeline("tiny", {})
    log = tracker.stage(parent, "rl_math", "moved", {}, folder, tmp_path / "published")
    assert tracker.flush()
    polled = threading.Event()

    def publish(_: object) -> None:
        assert polled.wait(60)
        os.replace(folder, tmp_path / "published")

    tracker.put("a pause", publish)
    ShownFiles(log, "logs/shown").poll()
    polled.set()
    assert tracker.flush()
    client = MlflowClient(tracking_uri=mlflow_uri)
    assert [a.path for a in client.list_artifacts(log.run_id)] == ["histograms.html", "rollouts"]
