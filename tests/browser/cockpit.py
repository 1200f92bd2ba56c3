"""One klear home with real servers, whose `tiny` profile takes a minute or two instead of nine."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from mlflow import MlflowClient
from processes import below

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("configs", "eval", "training", "tasks", "flows", "deployments")
# The same stages with fewer rows and steps. SFT is long enough to be met while it runs.
SMALL = """
extends: ../whole_tiny.yaml
collect:
  sources:
    - {name: countdown_rl, domain: math, kind: generated, family: countdown, size: 24}
    - {name: by_example_rl, domain: code, kind: generated, family: by_example, size: 24}
    - {name: countdown, domain: math, kind: generated, family: countdown, size: 60}
    - {name: by_example, domain: code, kind: generated, family: by_example, size: 60,
       duplicate_share: 0.1, contaminated_share: 0.1, contaminated_seed: 2024}
benchmarks:
  sources:
    - {name: countdown_test, domain: math, kind: generated, family: countdown, size: 16,
       split_part: test, fixed_seed: 2024}
    - {name: by_example_test, domain: code, kind: generated, family: by_example, size: 16,
       split_part: test, fixed_seed: 2024}
sft: {epochs: 8, batch_tokens: 1000, checkpoint_steps: 5}
rl_math: &rl {steps: 3, prompts_per_step: 8, rollouts_per_prompt: 4, mini_batch_prompts: 4,
              max_tokens: 48, checkpoint_steps: 1}
rl_code: *rl
evaluate:
  sampling: {max_tokens: 48}
  protocols: [{name: countdown_test, k: 2}, {name: by_example_test, k: 2}]
"""
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
SAVE_SECRET = """
import os, sys
from configs.machine import load_machine
os.environ.update(load_machine().environment())
from prefect.blocks.system import Secret
Secret(value=sys.argv[2]).save(sys.argv[1], overwrite=True)
"""
PATIENCE_S = 600.0  # for a whole run on a machine that does other things too
Json = Any


class Cockpit:
    """`klear up` of a copy of the product: its own home, ports and, in the copy, its own `tiny`."""

    def __init__(self, folder: Path, secrets: Mapping[str, str]) -> None:
        self.folder, self.home, self.code = folder, folder / "home", folder / "code"
        self.store, self.logs = self.home / "store", self.home / "logs"
        for name in PRODUCT:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.code / name, ignore=ignore)
        (self.code / "configs" / "tiny.yaml").rename(self.code / "whole_tiny.yaml")
        (self.code / "configs" / "tiny.yaml").write_text(SMALL)
        prefect, mlflow = free_ports(2)
        self.prefect = f"http://127.0.0.1:{prefect}"
        self.mlflow = f"http://127.0.0.1:{mlflow}"
        self.tracking = MlflowClient(tracking_uri=self.mlflow)
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("KLEAR_", "PREFECT_"))},
            **secrets,
            "PYTHONPATH": str(self.code),
            "KLEAR_HOME": str(self.home),
            "KLEAR_PREFECT_PORT": str(prefect),
            "KLEAR_MLFLOW_PORT": str(mlflow),
        }

    def python(self, *arguments: str) -> str:
        """What a Python process of this home printed; it must have succeeded."""
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(
            command, env=self._environment, cwd=self.folder, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def klear(self, *arguments: str) -> str:
        return self.python("-m", "flows.cli", *arguments)

    def api(self, path: str, body: Json = None) -> Json:
        """Prefect's answer to GET, or to POST with a body. SQLite may be busy: asked again."""
        request = urllib.request.Request(
            f"{self.prefect}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        for pause_s in (0.5, 1, 2, 4, 8, 16, None):
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                if error.code < 500 or pause_s is None:
                    raise
            time.sleep(pause_s)

    def deployment(self, name: str) -> Json:
        return next(d for d in self.api("deployments/filter", {"limit": 200}) if d["name"] == name)

    def runs(self) -> list[Json]:
        """All flow runs, the latest first."""
        return self.api("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC"})

    def state(self, flow_run: str) -> str:
        """`Completed`, `Cancelled`, …"""
        return self.api(f"flow_runs/{flow_run}")["state"]["name"]

    def has_ended(self, flow_run: str) -> bool:
        return self.api(f"flow_runs/{flow_run}")["state"]["type"] in FINAL

    def ends(self, flow_run: str) -> str:
        """The state a run ends in."""
        eventually(lambda: self.has_ended(flow_run))
        return self.state(flow_run)

    def meanwhile(self, flow_run: str, condition: Callable[[], object]) -> None:
        """Until the condition holds, which must be before the run ends."""
        eventually(lambda: condition() or self.has_ended(flow_run))
        assert condition(), f"{self.state(flow_run)} before that: {self.logs_of(flow_run)}"

    def start(self, deployment: str, parameters: Json) -> str:
        """The id of a run with other parameters than the form's."""
        made = f"deployments/{self.deployment(deployment)['id']}/create_flow_run"
        return self.api(made, {"parameters": parameters, "state": {"type": "SCHEDULED"}})["id"]

    def save_secret(self, block: str, value: str) -> None:
        """As a person does in the UI under Blocks."""
        self.python("-c", SAVE_SECRET, block, value)

    def logs_of(self, flow_run: str) -> str:
        only = {"logs": {"flow_run_id": {"any_": [flow_run]}}}
        pages = (
            self.api(
                "logs/filter", {**only, "limit": 200, "offset": offset, "sort": "TIMESTAMP_ASC"}
            )
            for offset in range(0, 2_000, 200)
        )
        return "\n".join(line["message"] for page in pages for line in page)

    def tasks_of(self, flow_run: str) -> list[Json]:
        """Its task runs."""
        only = {"flow_runs": {"id": {"any_": [flow_run]}}}
        return self.api("task_runs/filter", {**only, "limit": 200})

    def stages_of(self, flow_run: str) -> list[str]:
        """Names of its task runs."""
        return [task["name"] for task in self.tasks_of(flow_run)]

    @property
    def experiment(self) -> str:
        """The id of the profile's experiment in MLflow."""
        found = self.tracking.get_experiment_by_name("klear-tiny")
        assert found is not None
        return found.experiment_id

    def tracked(self, tag: str, value: str) -> list[str]:
        """Ids of the MLflow runs with this tag."""
        query = f"tags.`{tag}` = '{value}'"
        return [r.info.run_id for r in self.tracking.search_runs([self.experiment], query)]

    def results(self) -> set[Path]:
        """Folders of all that is published."""
        return {m.parent for m in self.store.glob("*/*/manifest.json")}

    def checkpoints(self, stage: str) -> set[Path]:
        """Those of unfinished work."""
        return set(self.store.glob(f".work/{stage}/*/.resume/checkpoints/checkpoint-*"))

    def processes_of_runs(self) -> list[psutil.Process]:
        """All that the worker has started and that lives: engine, supervisor, child."""
        servers = json.loads((self.home / "servers.json").read_text())
        (worker,) = [p["pid"] for p in servers if p["name"] == "worker"]
        return below(worker)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def eventually(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.2)
