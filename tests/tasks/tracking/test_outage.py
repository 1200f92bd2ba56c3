"""The MLflow server goes away in mid-run: the run goes on, and nothing is missing afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from configs.settings.base import Settings
from tasks.stage.progress import report
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact, Store
from tasks.tracking import log_queue
from tasks.tracking.run_tracker import Tracker

STEPS = 40
PATIENCE_S = 240


class Knobs(Settings):
    value: int = 1


class Server:
    """An MLflow server on a free port that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.folder = folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1",
            "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(log_queue, "PAUSE_S", 0.5)
    one = Server(tmp_path)
    one.start()
    yield one
    one.stop()


def test_a_server_that_goes_away_and_comes_back_misses_nothing(server: Server, tmp_path: Path):
    @stage(version=1)
    def collect(out: Path, *, settings: Knobs) -> Metrics:
        (out / "rows").write_text("rows")
        return {"rows": 1}

    @stage(version=1)
    def sft(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
        path = out / "logs" / "metrics.jsonl"
        path.parent.mkdir()
        (out / "checkpoint").mkdir()
        (out / "checkpoint" / "model.safetensors").write_bytes(b"w")
        for step in range(STEPS):
            if step == STEPS // 2:
                server.stop()
            line = {"step": step, "time": 1e9 + step, "metrics": {"loss": 1.0}}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            report(step, STEPS)
        return {"loss": 1.0}

    @stage(version=1)
    def evaluate_sft(out: Path, model: Artifact, *, settings: Knobs) -> Metrics:
        (out / "scores").write_text("1")
        return {"sums/avg": 1.0}

    tracker = Tracker(server.uri, "klear-tiny")
    parent = tracker.start_pipeline("tiny", {})
    with active(Run(store=Store(tmp_path / "store"), run_id=parent, tracker=tracker)):
        model = sft(collect(settings=Knobs()), settings=Knobs())
        scores = evaluate_sft(model, settings=Knobs())  # computed while nobody listens
    assert scores.mlflow_run == ""

    server.start()
    tracker.finish(parent, "FINISHED")

    assert tracker.queue.refused == 0
    client = MlflowClient(tracking_uri=server.uri, registry_uri=server.uri)
    store = Store(tmp_path / "store")
    trained, scored = (client.get_run(store.manifest(a).mlflow_run) for a in (model, scores))
    history = client.get_metric_history(trained.info.run_id, "loss")
    assert sorted(m.step for m in history) == list(range(STEPS))
    assert (trained.info.status, scored.info.status) == ("FINISHED", "FINISHED")
    assert client.get_run(parent).info.status == "FINISHED"
    (output,) = trained.outputs.model_outputs
    assert [m.model_id for m in scored.inputs.model_inputs] == [output.model_id]
    assert client.get_registered_model("klear-tiny").aliases["sft"]
