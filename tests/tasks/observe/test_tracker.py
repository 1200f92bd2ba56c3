"""What is logged arrives in order and once, whatever the server does and whoever is killed."""

import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import requests
import responses
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from pydantic import Field

from klear.configs.settings.base import Settings
from klear.tasks.engine.events import Failed, Started, Task
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.observe import tracker as tracker_module
from klear.tasks.observe.mlflow_client import Mlflow
from klear.tasks.observe.stage_run import TABLES_TAG, StageRun
from klear.tasks.observe.tracker import Tracker, is_unreachable
from klear.tasks.store.store import Artifact, Store
from klear.training.launch.result_files import METRICS, SHOWN


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "PAUSE_S", 0.01)


@pytest.fixture
def tracker(mlflow_uri: str) -> Tracker:
    return Tracker(mlflow_uri, "klear-test")


@pytest.fixture
def client(mlflow_uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=mlflow_uri)


class Knobs(Settings):
    value: int = 1
    values: dict[str, int] = Field(default_factory=dict)


def started(tracker: Tracker, work: Path, key: str = "key", **values: int) -> StageRun:
    """The run of a stage that has begun."""
    task = Task("rl", 1, key, (), Knobs(values=values))
    tracker.on(Started(task, "new", work))
    assert tracker.flush()
    return tracker._stages["rl"]


def synchronized(tracker: Tracker, run: StageRun) -> None:
    tracker._sync(run)
    assert tracker.flush()


def test_a_refused_message_is_a_warning_and_holds_up_no_other(caplog, tmp_path):
    heard: list[str] = []
    with patch.object(tracker_module, "Mlflow"):  # its messages do not look at their server
        queue = Tracker("somewhere")
    with caplog.at_level(logging.WARNING, "klear"):
        queue.put("the note", Mock(side_effect=ValueError("no such column")))
        queue.put("next", lambda _: heard.append("next"))
        assert queue.flush()
    assert (heard, queue.refused) == (["next"], 1)
    assert "refused the note: no such column" in caplog.text
    untracked = Tracker()  # without a server nothing is logged and nothing fails
    parent = untracked.start_pipeline("x", {})
    untracked.on(Started(Task("rl", 1, "key", (), Knobs()), "new", tmp_path))
    untracked.log(parent, {"a": 1.0})
    untracked.finish(parent, "FINISHED")
    assert untracked.run_url(parent) == ""


@pytest.mark.parametrize(("status", "unreachable"), [(500, False), (502, True), (503, True)])
@responses.activate
def test_runs_of_a_server_that_failed_are_not_taken_for_missing(monkeypatch, status, unreachable):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    responses.get(re.compile("http://sick/.*"), "<html>", status=status)
    with pytest.raises(MlflowException) as caught:
        Mlflow("http://sick").active_run("a" * 32)
    assert is_unreachable(caught.value) == unreachable
    error = MlflowException("API request failed")
    error.__context__ = requests.exceptions.ChunkedEncodingError("2 more")
    assert is_unreachable(error)


def test_a_stage_that_always_has_more_to_say_holds_up_no_other(tracker):
    """Its message is replaced while it is sent, again and again."""
    arrived, left = threading.Event(), iter(range(1_000))

    def busy(_: Mlflow) -> None:
        if not arrived.is_set() and next(left, None) is not None:
            tracker.put("the run of sft", lambda server: busy(server))

    tracker.put("the run of sft", busy)
    tracker.put("the run of judge", lambda _: arrived.set())
    assert tracker.flush(60)
    assert next(left) < 10


def test_an_experiment_that_was_deleted_by_hand_is_restored(tracker, client, mlflow_uri):
    run = tracker.start_pipeline("first", {})
    client.delete_experiment(client.get_run(run).info.experiment_id)
    again = Tracker(mlflow_uri, "klear-test").start_pipeline("again", {})
    assert client.get_run(again).info.experiment_id == client.get_run(run).info.experiment_id


def test_a_pipeline_continues_its_run_unless_that_was_deleted_by_hand(tracker, client):
    first = tracker.start_pipeline("tiny", {"klear.kind": "pipeline"})
    tracker.finish(first, "KILLED")
    assert client.get_run(first).info.status == "KILLED"
    assert tracker.start_pipeline("tiny", {"klear.seed": "0"}, resume=first) == first
    assert client.get_run(first).info.status == "RUNNING"
    assert client.get_run(first).data.tags["klear.seed"] == "0"
    client.delete_run(first)
    assert tracker.start_pipeline("tiny", {}, resume=first) != first
    assert Mlflow(tracker.uri).active_run("0" * 32) is None  # another server's


def test_a_retried_stage_continues_its_run_and_logs_missing_parameters(tracker, client, tmp_path):
    tracker.start_pipeline("tiny", {})
    values = {f"p{i}": i for i in range(201)}
    first = started(tracker, tmp_path, **dict(list(values.items())[:100]))  # killed after a batch
    tracker.on(Failed(first.task, RuntimeError("killed"), 1.0))
    assert tracker.flush()
    assert client.get_run(first.run_id).info.status == "FAILED"
    again = started(tracker, tmp_path, **values)
    assert again.run_id == first.run_id
    assert client.get_run(again.run_id).info.status == "RUNNING"
    params = {"rl.value": "1", **{f"rl.values.{n}": str(v) for n, v in values.items()}}
    assert client.get_run(again.run_id).data.params == params
    assert tracker.refused == 0
    assert started(tracker, tmp_path, "other").run_id != first.run_id


def write_lines(path: Path, steps: range) -> None:
    with path.open("a") as file:
        for step in steps:
            line = {"step": step, "time": 1000.0 + step, "metrics": {"loss": 1.0, "a(b)": 2.0}}
            file.write(json.dumps(line) + "\n")


def test_each_step_is_logged_once_across_a_kill_and_a_resume(tracker, client, tmp_path):
    tracker.start_pipeline("tiny", {})
    run = started(tracker, tmp_path)
    path = tmp_path / METRICS
    path.parent.mkdir()
    write_lines(path, range(8))
    synchronized(tracker, run)
    # Killed after step 7; the checkpoint is at step 5: the child cuts what follows and redoes it.
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:6]))
    resumed = started(tracker, tmp_path)
    write_lines(path, range(6, 12))
    text = path.read_text()
    path.write_text(text[:-10])  # a torn last line waits for its end
    synchronized(tracker, resumed)
    path.write_text(text)
    synchronized(tracker, resumed)
    for name in ("rl/loss", "rl/a_b_"):  # MLflow refuses brackets
        history = client.get_metric_history(run.run_id, name)
        assert sorted(m.step for m in history) == list(range(12))


def test_a_table_is_logged_once_and_again_when_it_changes(tracker, client, tmp_path):
    shown = tmp_path / "work" / SHOWN
    (shown / "rollouts").mkdir(parents=True)
    for name in ("one.json", "rollouts/step_00001.json"):
        (shown / name).write_text('{"columns": ["text"], "data": [["a"]]}')
    (shown / "one.part").write_text("half")
    tracker.start_pipeline("tiny", {})
    server = tracker.server = Mock(wraps=tracker.server)
    run = started(tracker, tmp_path / "work")
    synchronized(tracker, run)
    names = ["one.json", "rollouts/step_00001.json"]
    assert [call.args[2] for call in server.log_text.call_args_list] == names
    (shown / "one.json").write_text('{"columns": ["text"], "data": [["b"]]}')
    os.utime(shown / "one.json", ns=(1, 1))
    synchronized(tracker, run)
    assert [call.args[2] for call in server.log_text.call_args_list[2:]] == ["one.json"]
    os.replace(tmp_path / "work", tmp_path / "published")  # before anybody hears of it
    synchronized(tracker, run)
    assert tracker.refused == 0
    assert [a.path for a in client.list_artifacts(run.run_id)] == ["one.json", "rollouts"]
    listed = json.loads(client.get_run(run.run_id).data.tags[TABLES_TAG])
    assert listed == [{"path": name, "type": "table"} for name in names]


class Unreachable:
    """A server as a client sees it that nobody answers while `away` is set."""

    def __init__(self, server: Mlflow) -> None:
        self._server, self.away = server, threading.Event()

    def __getattr__(self, name: str) -> Any:
        if self.away.is_set():
            raise requests.exceptions.ConnectionError("refused")
        return getattr(self._server, name)


def test_a_server_that_goes_away_and_comes_back_misses_nothing(
    tracker, client, tmp_path, monkeypatch
):
    monkeypatch.setattr(tracker_module, "SECONDS_FOR_AN_ID", 0.1)
    server = tracker.server = Unreachable(tracker.server)

    @stage(version=1)
    def sft(out: Path, *, settings: Knobs) -> Metrics:
        (out / METRICS).parent.mkdir()
        (out / "checkpoint").mkdir()
        (out / "checkpoint" / "model.safetensors").write_bytes(b"w")
        write_lines(out / METRICS, range(20))
        assert tracker.flush()
        server.away.set()
        write_lines(out / METRICS, range(20, 40))
        return {"loss": 1.0}

    @stage(version=1)
    def evaluate_sft(out: Path, model: Artifact, *, settings: Knobs) -> Metrics:
        (out / "scores").write_text("1")
        return {"sums/avg": 1.0}

    parent, store = tracker.start_pipeline("tiny", {}), Store(tmp_path / "store")
    with active(Run(store=store, run_id=parent, observers=(tracker,))):
        model = sft(settings=Knobs())
        scores = evaluate_sft(model, settings=Knobs())  # computed while nobody listens
    assert scores.mlflow_run == ""
    server.away.clear()
    tracker.finish(parent, "FINISHED")

    assert tracker.refused == 0
    trained, scored = (client.get_run(store.manifest(a).mlflow_run) for a in (model, scores))
    history = client.get_metric_history(trained.info.run_id, "sft/loss")
    assert sorted(m.step for m in history) == list(range(40))
    for run in (trained, scored, client.get_run(parent)):
        assert run.info.status == "FINISHED"
    (output,) = trained.outputs.model_outputs
    assert [m.model_id for m in scored.inputs.model_inputs] == [output.model_id]
    assert client.search_model_versions("name='klear-test'")
