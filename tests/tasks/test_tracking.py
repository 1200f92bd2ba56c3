"""Killed and resumed runs stay one MLflow run, and every step of a curve is there exactly once."""

import json
from pathlib import Path

import pytest
import requests
from mlflow import MlflowClient

from tasks import delivery
from tasks.curves import CurveTail
from tasks.stage_log import STEP_METRIC, StageLog
from tasks.store import Artifact
from tasks.tracker import REUSED_TAG, Tracker, Untracked
from tasks.tracking import PARAMS_A_BATCH, Mlflow


@pytest.fixture
def tracker(mlflow_uri: str) -> Tracker:
    return Tracker(mlflow_uri, "klear-test")


@pytest.fixture
def client(mlflow_uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=mlflow_uri)


def stage(tracker: Tracker, parent: str, key: str = "k", **params: str) -> StageLog:
    log = tracker.stage(parent, "rl", key, params, Path("work"), Path("published"))
    assert tracker.flush()
    return log


def tail(log: StageLog, path: Path) -> CurveTail:
    return CurveTail(log, path, STEP_METRIC)


def write_lines(path: Path, steps: range, value: float = 1.0) -> None:
    with path.open("a") as file:
        for step in steps:
            line = {"step": step, "time": 1000.0 + step, "metrics": {"loss": value, "a(b)": 2.0}}
            file.write(json.dumps(line) + "\n")


def steps_of(client: MlflowClient, log: StageLog) -> list[int]:
    return sorted(m.step for m in client.get_metric_history(log.run_id, "loss"))


def test_a_resumed_pipeline_continues_its_run(tracker, client) -> None:
    first = tracker.start_pipeline("tiny", {"klear.kind": "pipeline"})
    tracker.finish(first, "KILLED")
    assert tracker.flush()
    assert client.get_run(first).info.status == "KILLED"
    assert tracker.start_pipeline("tiny", {"klear.seed": "0"}, resume=first) == first
    assert client.get_run(first).info.status == "RUNNING"
    assert client.get_run(first).data.tags["klear.seed"] == "0"


def test_a_run_deleted_by_hand_is_started_anew(tracker, client) -> None:
    first = tracker.start_pipeline("tiny", {})
    client.delete_run(first)
    assert tracker.start_pipeline("tiny", {}, resume=first) != first


def test_a_retried_stage_continues_its_child_run(tracker, client) -> None:
    parent = tracker.start_pipeline("tiny", {})
    first = stage(tracker, parent, "k1", epochs="4")
    first.finish("FAILED")
    again = stage(tracker, parent, "k1", epochs="4")
    assert again.run_id == first.run_id
    assert client.get_run(again.run_id).info.status == "RUNNING"
    assert client.get_run(again.run_id).data.params == {"epochs": "4"}
    assert stage(tracker, parent, "k2", epochs="5").run_id != first.run_id


def test_each_step_is_logged_once_across_a_kill_and_a_resume(tracker, client, tmp_path) -> None:
    parent = tracker.start_pipeline("tiny", {})
    log = stage(tracker, parent)
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(0, 8))
    tail(log, path).poll()
    assert tracker.flush()
    # Killed after step 7; the checkpoint is at step 5: the child cuts what follows and redoes it.
    kept = path.read_text().splitlines(keepends=True)[:6]
    path.write_text("".join(kept))
    resumed = tail(stage(tracker, parent), path)
    resumed.poll()
    write_lines(path, range(6, 12))
    resumed.poll()
    assert tracker.flush()
    assert steps_of(client, log) == list(range(12))


def test_a_torn_last_line_waits_for_its_end(tracker, client, tmp_path) -> None:
    log = stage(tracker, tracker.start_pipeline("tiny", {}))
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(2))
    whole = path.read_text()
    path.write_text(whole[:-10])
    follower = tail(log, path)
    follower.poll()
    assert tracker.flush()
    assert steps_of(client, log) == [0]
    path.write_text(whole)
    follower.poll()
    assert tracker.flush()
    assert steps_of(client, log) == [0, 1]


def test_metric_names_mlflow_refuses_are_made_legal(tracker, client) -> None:
    run_id = tracker.start_pipeline("tiny", {})
    tracker.log(run_id, {"rewards/(math)": 1.0})
    assert tracker.flush()
    assert client.get_run(run_id).data.metrics == {"rewards/_math_": 1.0}


def test_more_metrics_than_one_request_takes_arrive_all(tracker, client) -> None:
    run_id = tracker.start_pipeline("tiny", {})
    tracker.log(run_id, {f"m{i}": i for i in range(2_001)})
    assert tracker.flush()
    assert len(client.get_run(run_id).data.metrics) == 2_001


def test_reused_results_are_named_on_the_parent(tracker, client, tmp_path) -> None:
    parent = tracker.start_pipeline("tiny", {})
    for name in ("dedup", "select"):
        made = Artifact.of_folder(tmp_path, name).model_copy(update={"mlflow_run": f"of {name}"})
        tracker.reused(parent, made)
    assert tracker.flush()
    assert reused_of(client, parent) == {"dedup": "of dedup", "select": "of select"}


def reused_of(client, run_id: str) -> dict[str, str]:
    return json.loads(client.get_run(run_id).data.tags[REUSED_TAG])


def test_parameters_that_a_killed_run_did_not_tell_are_told_by_the_next(tracker, client) -> None:
    parent = tracker.start_pipeline("tiny", {})
    wanted = {f"p{i}": str(i) for i in range(2 * PARAMS_A_BATCH + 1)}
    some = dict(list(wanted.items())[:PARAMS_A_BATCH])
    log = stage(tracker, parent, **some)  # killed after its first batch
    tracker.params(parent, some)
    assert stage(tracker, parent, **wanted).run_id == log.run_id
    tracker.params(parent, wanted)
    assert tracker.flush()
    assert tracker.delivery.refused == 0
    for run_id in (parent, log.run_id):
        assert client.get_run(run_id).data.params == wanted


def test_what_was_refused_is_told_with_the_next(tracker, client, tmp_path) -> None:
    parent = tracker.start_pipeline("tiny", {})
    made = Artifact.of_folder(tmp_path, "dedup")
    client.delete_run(parent)
    tracker.reused(parent, made)
    assert tracker.flush()
    assert tracker.delivery.refused == 1
    client.restore_run(parent)
    tracker.reused(parent, Artifact.of_folder(tmp_path, "select"))
    assert tracker.flush()
    assert set(reused_of(client, parent)) == {"dedup", "select"}


def test_a_tag_that_was_not_heard_is_told_with_the_next(tracker, client, tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "FIRST_PAUSE_S", 0.01)
    parent = tracker.start_pipeline("tiny", {})
    tag, told = tracker.server.tag, []

    def away_once(run_id: str, tags: dict[str, str]) -> None:
        told.append(sorted(json.loads(tags[REUSED_TAG])))
        if len(told) == 1:
            tracker.reused(parent, Artifact.of_folder(tmp_path, "select"))
            raise requests.exceptions.ConnectionError
        tag(run_id, tags)

    monkeypatch.setattr(tracker.server, "tag", away_once)
    tracker.reused(parent, Artifact.of_folder(tmp_path, "dedup"))
    assert tracker.flush()
    assert told == [["dedup"], ["dedup", "select"]]
    assert set(reused_of(client, parent)) == {"dedup", "select"}


def test_a_run_that_another_server_has_has_no_tags_here(mlflow_uri: str) -> None:
    assert Mlflow(mlflow_uri).tags_of("0" * 32) == {}


def test_a_finished_run_leaves_no_thread(tracker) -> None:
    parent = tracker.start_pipeline("tiny", {})
    tracker.log(parent, {"a": 1.0})
    thread = tracker.delivery._thread
    tracker.finish(parent, "FINISHED")
    thread.join(60)
    assert not thread.is_alive()


def test_without_a_server_nothing_is_logged_and_nothing_fails(tmp_path: Path) -> None:
    untracked = Untracked()
    parent = untracked.start_pipeline("x", {})
    log = stage(untracked, parent)
    untracked.log(parent, {"a": 1.0})
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(2))
    tail(log, path).poll()
    untracked.finish(parent, "FINISHED")
    assert log.wait_id() == ""
    assert untracked.run_url(parent) == ""
