"""One home with real servers and a worker, driven as the Prefect UI does: through its API."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

KLEAR = [sys.executable, "-m", "flows.cli"]
ROOT = Path(__file__).resolve().parents[2]
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
SMALL = """
extends: tiny
collect:
  sources:
    - {name: countdown_rl, domain: math, kind: generated, family: countdown, size: 12}
    - {name: by_example_rl, domain: code, kind: generated, family: by_example, size: 12}
    - {name: countdown, domain: math, kind: generated, family: countdown, size: 60}
    - {name: by_example, domain: code, kind: generated, family: by_example, size: 30}
sft: {epochs: 2, batch_tokens: 600, checkpoint_steps: 4}
"""


class Cockpit:
    """What a person at the browser and the command line has."""

    zombie_minutes = 4  # longer than a test keeps the server away

    def __init__(self, folder: Path, webhook: str) -> None:
        with socket.socket() as a, socket.socket() as b:
            a.bind(("127.0.0.1", 0))
            b.bind(("127.0.0.1", 0))
            prefect, mlflow = a.getsockname()[1], b.getsockname()[1]
        self.home, self.profile = folder / "home", folder / "small.yaml"
        self.profile.write_text(SMALL)
        self.api = f"http://127.0.0.1:{prefect}/api"
        self.mlflow = MlflowClient(tracking_uri=f"http://127.0.0.1:{mlflow}")
        self.environment = {
            **os.environ,
            "KLEAR_HOME": str(self.home),
            "KLEAR_PREFECT_PORT": str(prefect),
            "KLEAR_MLFLOW_PORT": str(mlflow),
            "KLEAR_WORKER_LIMIT": "2",
            "KLEAR_GPU_SLOTS": "1",
            "KLEAR_FORM_PROFILE": str(self.profile),
            "KLEAR_WEBHOOK": webhook,
            "KLEAR_ZOMBIE_MINUTES": str(self.zombie_minutes),
        }

    @property
    def store(self) -> Path:
        return self.home / "store"

    def klear(self, *words: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*KLEAR, *words], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """`klear run` of the small profile in the background."""
        return subprocess.Popen(
            [*KLEAR, "run", str(self.profile), *words],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, path: str, body: Any = None) -> Any:
        """POST `body`, or GET; SQLite may be locked for a moment (503)."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        for _ in range(20):
            try:
                request = urllib.request.Request(f"{self.api}/{path}", data, headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                time.sleep(0.5)
        raise AssertionError(f"{path}: the server stays locked")

    def forms(self) -> set[str]:
        """Names of all deployments."""
        return {found["name"] for found in self.call("deployments/filter", {"limit": 200})}

    def registers(self, form_profile: str) -> None:
        """As `klear up` does, with other values for the forms of stages."""
        environment = {**self.environment, "KLEAR_FORM_PROFILE": form_profile}
        command = [sys.executable, "-P", "deployments/deploy.py"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def form(self, name: str) -> dict[str, Any]:
        """What a form begins with."""
        return self._deployment(name)["parameters"]

    def _deployment(self, name: str) -> dict[str, Any]:
        wanted = {"deployments": {"name": {"any_": [name]}}}
        (found,) = self.call("deployments/filter", wanted)
        return found

    def count(self) -> int:
        """How many flow runs there are."""
        return self.call("flow_runs/count", {})

    def submit(self, form: str, **changed: Any) -> str:
        """The Submit button: every field of the form goes along. Returns the flow run's id."""
        deployment = self._deployment(form)
        parameters = {**deployment["parameters"], **changed}
        path = f"deployments/{deployment['id']}/create_flow_run"
        return self.call(path, {"parameters": parameters, "state": {"type": "SCHEDULED"}})["id"]

    def set_state(self, run: str, kind: str, name: str) -> None:
        """The buttons Retry (SCHEDULED, AwaitingRetry) and Cancel (CANCELLING, Cancelling)."""
        state = {"state": {"type": kind, "name": name}}
        assert self.call(f"flow_runs/{run}/set_state", state)["status"] == "ACCEPT"

    def run(self, run: str) -> dict[str, Any]:
        return self.call(f"flow_runs/{run}")

    def ended(self, run: str, seconds: float = 600) -> dict[str, Any]:
        """The flow run, once it is in a final state."""
        assert eventually(lambda: self.run(run)["state_type"] in FINAL, seconds), self.run(run)
        return self.run(run)

    def named(self, name: str) -> list[dict[str, Any]]:
        return self.call("flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})

    def task_runs(self, run: str) -> dict[str, list[str]]:
        """Task name → state names of its task runs, oldest first."""
        found = self.call("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        states: dict[str, list[str]] = {}
        for task in sorted(found, key=lambda t: t["created"]):
            states.setdefault(task["name"], []).append(task["state_name"])
        return states

    def log(self, run: str) -> str:
        """All lines on the page of a run."""
        only = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}
        lines: list[str] = []
        while page := self.call("logs/filter", {**only, "offset": len(lines)}):
            lines += [line["message"] for line in page]
        return "\n".join(lines)

    def words(self) -> str:
        """What the worker and its runs printed, for a test that fails."""
        return (self.home / "logs" / "worker.log").read_text()[-20_000:]

    def artifacts(self, run: str) -> set[str]:
        """Keys of the artifacts on the page of a run."""
        found = self.call("artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {artifact["key"] for artifact in found}

    def servers(self) -> dict[str, int]:
        """Name → pid of what `klear up` started."""
        state = json.loads((self.home / "servers.json").read_text())
        return {process["name"]: process["pid"] for process in state}

    def pids(self, *words: str, but: str = "\0") -> list[int]:
        """Living processes with all of the words on their command line, and without `but`."""
        found = []
        for entry in filter(lambda e: e.name.isdigit(), Path("/proc").iterdir()):
            try:
                text = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state not in "ZX" and all(word in text for word in words) and but not in text:
                found.append(int(entry.name))
        return found

    def children(self) -> list[int]:
        """Supervisors and what they supervise: processes that train or generate for this home."""
        return self.pids("training.child", str(self.store))

    def jobs(self) -> list[int]:
        """Those of them that do the work."""
        return self.pids("-m training.child", str(self.store), but="supervise.py")

    def engines(self) -> list[int]:
        """Processes in which a worker executes a flow of this home."""
        return [p for p in self.pids("prefect.engine") if self._is_ours(p)]

    def _is_ours(self, pid: int) -> bool:
        try:
            return str(self.home).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


@pytest.fixture(scope="session", name="eventually")
def _eventually() -> Callable[..., bool]:
    """`eventually(condition, seconds)`: whether it holds now, or soon."""
    return eventually


def eventually(condition: Callable[[], object], seconds: float = 300) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return False


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[str, list[str]]]:
    """A receiver of webhooks on loopback: its address, and what was posted to it."""
    posts: list[str] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/secret-token", posts
    server.shutdown()


@pytest.fixture(scope="module")
def cockpit(
    tmp_path_factory: pytest.TempPathFactory, told: tuple[str, list[str]]
) -> Iterator[Cockpit]:
    place = Cockpit(tmp_path_factory.mktemp("cockpit"), webhook=told[0])
    place.klear("up")
    yield place
    place.klear("down")
