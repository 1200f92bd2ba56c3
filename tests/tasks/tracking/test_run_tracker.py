"""Killed and resumed runs stay one MLflow run, and every step of a curve is there exactly once."""

import json
import os
import threading
from pathlib import Path

import pytest
import requests
from mlflow import MlflowClient

from tasks.store.store import Artifact
from tasks.tracking import log_queue
from tasks.tracking.mlflow_client import PARAMS_A_BATCH, Mlflow
from tasks.tracking.run_tracker import (
    REUSED_TAG,
    STEP_METRIC,
    TABLES_TAG,
    StageLog,
    Tracker,
    Untracked,
)
from tasks.tracking.stream_logs import CurveTail, ShownFiles


@pytest.fixture
def tracker(mlflow_uri: str) -> Tracker:
    return Tracker(mlflow_uri, "klear-test")


@pytest.fixture
def client(mlflow_uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=mlflow_uri)


def stage(tracker: Tracker, parent: str, work: Path = Path("work"), **params: str) -> StageLog:
    log = tracker.stage(parent, "rl", "key", params, work, Path("published").absolute())
    assert tracker.flush()
    return log


def write_lines(path: Path, steps: range) -> None:
    with path.open("a") as file:
        for step in steps:
            line = {"step": step, "time": 1000.0 + step, "metrics": {"loss": 1.0, "a(b)": 2.0}}
            file.write(json.dumps(line) + "\n")


def test_a_pipeline_continues_its_run_unless_that_was_deleted_by_hand(tracker, client) -> None:
    first = tracker.start_pipeline("tiny", {"klear.kind": "pipeline"})
    tracker.finish(first, "KILLED")
    assert client.get_run(first).info.status == "KILLED"
    assert tracker.start_pipeline("tiny", {"klear.seed": "0"}, resume=first) == first
    assert client.get_run(first).info.status == "RUNNING"
    assert client.get_run(first).data.tags["klear.seed"] == "0"
    client.delete_run(first)
    assert tracker.start_pipeline("tiny", {}, resume=first) != first
    assert Mlflow(tracker.uri).run("0" * 32) is None  # another server's


def test_a_retried_stage_continues_its_run_and_tells_the_parameters_that_are_missing(
    tracker, client
) -> None:
    parent = tracker.start_pipeline("tiny", {})
    wanted = {f"p{i}": str(i) for i in range(2 * PARAMS_A_BATCH + 1)}
    some = dict(list(wanted.items())[:PARAMS_A_BATCH])
    first = stage(tracker, parent, **some)  # killed after its first batch
    tracker.params(parent, some)
    first.finish("FAILED")
    assert tracker.flush()
    again = stage(tracker, parent, **wanted)
    tracker.params(parent, wanted)
    assert tracker.flush()
    assert again.run_id == first.run_id
    assert client.get_run(again.run_id).info.status == "RUNNING"
    assert tracker.queue.refused == 0
    for run_id in (parent, again.run_id):
        assert client.get_run(run_id).data.params == wanted
    assert tracker.stage(parent, "rl", "other", {}, Path(), Path()).wait_id() != first.run_id


def test_each_step_is_logged_once_across_a_kill_and_a_resume(tracker, client, tmp_path) -> None:
    parent = tracker.start_pipeline("tiny", {})
    log = stage(tracker, parent)
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(8))
    CurveTail(log, path, STEP_METRIC).poll()
    assert tracker.flush()
    # Killed after step 7; the checkpoint is at step 5: the child cuts what follows and redoes it.
    kept = path.read_text().splitlines(keepends=True)[:6]
    path.write_text("".join(kept))
    resumed = CurveTail(stage(tracker, parent), path, STEP_METRIC)
    resumed.poll()
    write_lines(path, range(6, 12))
    whole = path.read_text()
    path.write_text(whole[:-10])  # a torn last line waits for its end
    resumed.poll()
    path.write_text(whole)
    resumed.poll()
    assert tracker.flush()
    for name in ("loss", "a_b_"):  # MLflow refuses brackets
        history = client.get_metric_history(log.run_id, name)
        assert sorted(m.step for m in history) == list(range(12))


def test_more_metrics_than_one_request_takes_arrive_all(tracker, client) -> None:
    run_id = tracker.start_pipeline("tiny", {})
    tracker.log(run_id, {f"m{i}": i for i in range(2_001)})
    assert tracker.flush()
    assert len(client.get_run(run_id).data.metrics) == 2_001


def test_reused_results_are_named_on_the_parent_also_when_the_server_was_away(
    tracker, client, tmp_path, monkeypatch
):
    monkeypatch.setattr(log_queue, "PAUSE_S", 0.01)
    parent = tracker.start_pipeline("tiny", {})
    tag, told = tracker.server.tag, []

    def away_once(run_id: str, tags: dict[str, str]) -> None:
        told.append(sorted(json.loads(tags[REUSED_TAG])))
        if len(told) == 1:
            tracker.reused(parent, Artifact.of_folder(tmp_path, "select"))
            raise requests.exceptions.ConnectionError
        tag(run_id, tags)

    monkeypatch.setattr(tracker.server, "tag", away_once)
    made = Artifact.of_folder(tmp_path, "dedup").model_copy(update={"mlflow_run": "its run"})
    tracker.reused(parent, made)
    assert tracker.flush()
    assert told == [["dedup"], ["dedup", "select"]]
    found = json.loads(client.get_run(parent).data.tags[REUSED_TAG])
    assert found == {"dedup": "its run", "select": "-"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shown = tmp_path / "work" / "logs" / "shown"
    (shown / "rollouts").mkdir(parents=True)
    (shown / "rollouts/step_00001.json").write_text('{"columns": ["text"], "data": [["a"]]}')
    (shown / "histograms.html").write_text("<p>")
    (shown / "histograms.partial").write_text("half")
    return tmp_path / "work"


def test_a_page_is_shown_once_and_again_when_it_changes(folder, tracker, client, tmp_path):
    log = stage(tracker, tracker.start_pipeline("tiny", {}), folder)
    files, shown = ShownFiles(log), []
    show = log.show
    log.show = lambda root, name, tables: (shown.append(str(name)), show(root, name, tables))
    files.poll()
    files.poll()
    assert shown == ["histograms.html", "rollouts/step_00001.json"]
    (folder / "logs/shown/histograms.html").write_text("<p>2")
    os.utime(folder / "logs/shown/histograms.html", ns=(1, 1))
    files.poll()
    assert shown[2:] == ["histograms.html"]
    assert tracker.flush()
    assert [a.path for a in client.list_artifacts(log.run_id)] == ["histograms.html", "rollouts"]
    (listed,) = json.loads(client.get_run(log.run_id).data.tags[TABLES_TAG])
    assert listed == {"path": "rollouts/step_00001.json", "type": "table"}
    stored = client.download_artifacts(log.run_id, "rollouts/step_00001.json", str(tmp_path))
    assert json.loads(Path(stored).read_text()) == {"columns": ["text"], "data": [["a"]]}


def test_a_file_that_is_published_before_it_is_told_is_found_where_it_went(
    folder, tracker, client, tmp_path
):
    log = stage(tracker, tracker.start_pipeline("tiny", {}), folder)
    polled = threading.Event()

    def publish(_: object) -> None:
        assert polled.wait(60)
        os.replace(folder, tmp_path / "published")

    tracker.put("a pause", publish)
    ShownFiles(log).poll()
    polled.set()
    assert tracker.flush()
    assert [a.path for a in client.list_artifacts(log.run_id)] == ["histograms.html", "rollouts"]


def test_without_a_server_nothing_is_logged_and_nothing_fails(tmp_path: Path) -> None:
    untracked = Untracked()
    parent = untracked.start_pipeline("x", {})
    log = stage(untracked, parent)
    untracked.log(parent, {"a": 1.0})
    untracked.reused(parent, Artifact.of_folder(tmp_path, "dedup"))
    write_lines(tmp_path / "metrics.jsonl", range(2))
    CurveTail(log, tmp_path / "metrics.jsonl", STEP_METRIC).poll()
    untracked.finish(parent, "FINISHED")
    assert (log.wait_id(), untracked.run_url(parent)) == ("", "")
