"""A klear home whose whole run is as small as can be, on servers of its own."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from processes import free_ports

from configs.stage_names import STAGES

KLEAR = [sys.executable, "-m", "flows.cli"]
ROOT = Path(__file__).resolve().parents[2]
NAME = "miniature"
PROFILE = """
extends: tiny
collect:
  runtime: {workers: 2}
  sources:
    - {name: countdown_rl, domain: math, kind: generated, family: countdown, size: 24}
    - {name: by_example_rl, domain: code, kind: generated, family: by_example, size: 24}
    - {name: countdown, domain: math, kind: generated, family: countdown, size: 60}
    - {name: by_example, domain: code, kind: generated, family: by_example, size: 60,
       duplicate_share: 0.1, contaminated_share: 0.1, contaminated_seed: 2024}
benchmarks:
  sources:
    - {name: countdown_test, domain: math, kind: generated, family: countdown, size: 12,
       split_part: test, fixed_seed: 2024}
    - {name: by_example_test, domain: code, kind: generated, family: by_example, size: 12,
       split_part: test, fixed_seed: 2024}
dedup: {near: true}
judge: {judge: {runtime: {workers: 1}}}
judge_rl: {judge: {runtime: {workers: 1}}}
sft: {epochs: 2, batch_tokens: 1000, checkpoint_steps: 4}
rl_math: &rl {steps: 3, prompts_per_step: 8, rollouts_per_prompt: 4, mini_batch_prompts: 4,
              max_tokens: 48, checkpoint_steps: 1}
rl_code: *rl
evaluate:
  sampling: {max_tokens: 48}
  engine_runtime: {batch_size: 8}
  protocols: [{name: countdown_test, k: 1}, {name: by_example_test, k: 1}]
"""
NOT_IN_TINY = {"rate", "judge_rate", "agreement", "judge_agreement"}
EVERY_STAGE = tuple(s for s in STAGES if s not in NOT_IN_TINY)
PATIENCE_S = 900.0  # for anything: the machine may do other things too
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class Attempt:
    """A run under way: a `klear run`, or a run of the web form that the worker started."""

    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    flow_run: str = ""
    until: str = ""
    """The stage after which it ends."""
    began: float = field(default_factory=time.time)
    offset: int = 0

    def text(self) -> str:
        """What it has said so far."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self.offset)
            return file.read().decode(errors="replace")


class Place:
    """One home, its servers and its stores; everything about it lies below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.store, self.profile = folder / "store", folder / f"{NAME}.yaml"
        self.profile.write_text(PROFILE)
        (folder / "tmp").mkdir(exist_ok=True)
        self.ports = free_ports(2)
        self.api = f"http://127.0.0.1:{self.ports[0]}/api"
        self.mlflow = MlflowClient(tracking_uri=f"http://127.0.0.1:{self.ports[1]}")
        self.environment = {
            **os.environ,
            "KLEAR_HOME": str(self.home),
            "KLEAR_STORE": str(self.store),
            "KLEAR_PREFECT_PORT": str(self.ports[0]),
            "KLEAR_MLFLOW_PORT": str(self.ports[1]),
            "KLEAR_WORKER_LIMIT": "2",
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": "127.0.0.1",
        }
        self._attempts = 0

    def klear(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """A command, to its end; `more` are further variables."""
        environment = {**self.environment, **more}
        return subprocess.run(
            [*KLEAR, *words], env=environment, cwd=ROOT, capture_output=True, text=True
        )

    def up(self) -> None:
        """What the servers need to run again, whichever of them was killed."""
        done = self.klear("up")
        assert done.returncode == 0, f"klear up failed:\n{done.stdout}{done.stderr}"

    def start(self, *words: str, until: str = "report", **more: str) -> Attempt:
        """`klear run` in the background."""
        self._attempts += 1
        log = self.folder / f"run-{self._attempts:03d}.log"
        command = [*KLEAR, "run", str(self.profile), "--until", until, *words]
        environment = {**self.environment, **more}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Attempt(log, process, until=until)

    def submit(self, settings: Mapping[str, Any], until: str = "report") -> Attempt:
        """The Submit button of the profile's web form, with the miniature's values in it."""
        wanted = {"deployments": {"name": {"any_": ["tiny"]}}}
        (form,) = self.call("deployments/filter", wanted)
        given = {**form["parameters"], "settings": dict(settings), "until": until}
        body = {"parameters": given, "state": {"type": "SCHEDULED"}}
        log = self.home / "logs" / "worker.log"
        offset = log.stat().st_size if log.exists() else 0
        made = self.call(f"deployments/{form['id']}/create_flow_run", body)
        return Attempt(log, flow_run=made["id"], until=until, offset=offset)

    def call(self, path: str, body: Any = None) -> Any:
        """POST `body`, or GET; while SQLite is locked or the server starts, again."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        deadline = time.monotonic() + 120
        while True:
            try:
                request = urllib.request.Request(f"{self.api}/{path}", data, headers)
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except (urllib.error.URLError, OSError) as error:
                refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if refused or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def servers(self) -> dict[str, int]:
        """Name → pid of what `klear up` started."""
        recorded = json.loads((self.home / "servers.json").read_text())
        return {entry["name"]: entry["pid"] for entry in recorded}

    def run(self, *words: str, **more: str) -> str:
        """A run that nobody disturbs: what it printed."""
        done = self.klear("run", str(self.profile), *words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    """A place whose servers run inside of the block."""
    place = Place(folder)
    place.up()
    try:
        yield place
    finally:
        place.klear("down")


def eventually(condition: Any, seconds: float = PATIENCE_S, pause_s: float = 0.1) -> bool:
    """Whether it holds now, or soon."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause_s)
    return bool(condition())
