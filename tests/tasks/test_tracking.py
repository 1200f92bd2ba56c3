"""Killed and resumed runs stay one MLflow run, and every step of a curve is there exactly once."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.store import Artifact
from tasks.tracking import CurveTail, Tracker, Untracked


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    MlflowClient(tracking_uri=uri).create_experiment("klear-test", str(folder / "artifacts"))
    return Tracker(uri, "klear-test")


def write_lines(path: Path, steps: range, value: float = 1.0) -> None:
    with path.open("a") as file:
        for step in steps:
            line = {"step": step, "time": 1000.0 + step, "metrics": {"loss": value, "a(b)": 2.0}}
            file.write(json.dumps(line) + "\n")


def test_a_resumed_pipeline_continues_its_run(tracker: Tracker) -> None:
    first = tracker.start_pipeline("tiny", {"klear.kind": "pipeline"})
    tracker.finish(first, "KILLED")
    assert tracker.start_pipeline("tiny", {"klear.seed": "0"}, resume=first) == first
    client = MlflowClient(tracking_uri=tracker.uri)
    assert client.get_run(first).info.status == "RUNNING"
    assert client.get_run(first).data.tags["klear.seed"] == "0"


def test_a_run_deleted_by_hand_is_started_anew(tracker: Tracker) -> None:
    first = tracker.start_pipeline("tiny", {})
    MlflowClient(tracking_uri=tracker.uri).delete_run(first)
    assert tracker.start_pipeline("tiny", {}, resume=first) != first


def test_a_retried_stage_continues_its_child_run(tracker: Tracker) -> None:
    parent = tracker.start_pipeline("tiny", {})
    first = tracker.start_stage(parent, "sft", "k1", {"epochs": "4"})
    tracker.finish(first, "FAILED")
    assert tracker.start_stage(parent, "sft", "k1", {"epochs": "4"}) == first
    assert tracker.start_stage(parent, "sft", "k2", {"epochs": "5"}) != first


def test_each_step_is_logged_once_across_a_kill_and_a_resume(
    tracker: Tracker, tmp_path: Path
) -> None:
    run_id = tracker.start_stage(tracker.start_pipeline("tiny", {}), "rl", "k", {})
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(0, 8))
    CurveTail(tracker, run_id, path).poll()
    # Killed after step 7; the checkpoint is at step 5: the child cuts what follows and redoes it.
    kept = path.read_text().splitlines(keepends=True)[:6]
    path.write_text("".join(kept))
    resumed = CurveTail(tracker, run_id, path)
    resumed.poll()
    write_lines(path, range(6, 12))
    resumed.poll()
    history = MlflowClient(tracking_uri=tracker.uri).get_metric_history(run_id, "loss")
    assert sorted(m.step for m in history) == list(range(12))


def test_a_torn_last_line_waits_for_its_end(tracker: Tracker, tmp_path: Path) -> None:
    run_id = tracker.start_stage(tracker.start_pipeline("tiny", {}), "rl", "k", {})
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(2))
    whole = path.read_text()
    path.write_text(whole[:-10])
    tail = CurveTail(tracker, run_id, path)
    tail.poll()
    assert tracker.last_step(run_id) == 0
    path.write_text(whole)
    tail.poll()
    assert tracker.last_step(run_id) == 1


def test_metric_names_mlflow_refuses_are_made_legal(tracker: Tracker, tmp_path: Path) -> None:
    run_id = tracker.start_stage(tracker.start_pipeline("tiny", {}), "rl", "k", {})
    tracker.log(run_id, {"rewards/(math)": 1.0})
    data = MlflowClient(tracking_uri=tracker.uri).get_run(run_id).data
    assert data.metrics == {"rewards/_math_": 1.0}


def test_more_metrics_than_one_request_takes_arrive_all(tracker: Tracker) -> None:
    run_id = tracker.start_stage(tracker.start_pipeline("tiny", {}), "rl", "k", {})
    tracker.log(run_id, {f"m{i}": i for i in range(2_001)})
    assert len(MlflowClient(tracking_uri=tracker.uri).get_run(run_id).data.metrics) == 2_001


def test_a_reused_result_is_named_on_the_parent(tracker: Tracker, tmp_path: Path) -> None:
    parent = tracker.start_pipeline("tiny", {})
    made = Artifact.of_folder(tmp_path, "dedup").model_copy(update={"mlflow_run": "abc"})
    tracker.reused(parent, made)
    tags = MlflowClient(tracking_uri=tracker.uri).get_run(parent).data.tags
    assert tags["klear.reused.dedup"] == "abc"


def test_without_a_server_nothing_is_logged_and_nothing_fails(tmp_path: Path) -> None:
    untracked = Untracked()
    run_id = untracked.start_stage(untracked.start_pipeline("x", {}), "s", "k", {})
    untracked.log(run_id, {"a": 1.0})
    path = tmp_path / "metrics.jsonl"
    write_lines(path, range(2))
    CurveTail(untracked, run_id, path).poll()
    assert untracked.last_step(run_id) == -1
