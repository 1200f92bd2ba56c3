"""One klear home with its servers, on a profile whose whole run takes a minute or two."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from mlflow import MlflowClient
from processes import eventually, free_ports

from klear.configs.machine import Machine
from klear.configs.settings.pipeline import STAGES
from klear.flows.cockpit.servers import alive
from klear.tasks.observe.stage_run import STEP_METRIC
from klear.training.launch.result_files import STABLE

KLEAR = [sys.executable, "-m", "klear.flows.cli.main"]
ROOT = Path(__file__).resolve().parents[1]
ZOMBIE_MINUTES = 4  # longer than a test keeps the server away
PATIENCE_S = 900.0  # for anything: the machine may do other things too
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
SMALL = (ROOT / "tests/small.yaml").read_text()
_NOT_IN_TINY = {"rate", "judge_rate", "agreement", "judge_agreement"}
EVERY_STAGE = tuple(s for s in STAGES if s not in _NOT_IN_TINY)


class Home:
    """What a person at the browser and the command line has; all of it lies below `folder`.

    Buttons of the Prefect UI are the API calls that the UI makes.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.home, self.profile = folder, folder / "home", folder / "small.yaml"
        self.profile.write_text(SMALL)
        prefect, mlflow = free_ports(2)
        self.prefect, self.mlflow_url = f"http://127.0.0.1:{prefect}", f"http://127.0.0.1:{mlflow}"
        self.mlflow = MlflowClient(tracking_uri=self.mlflow_url)
        self.environment = {
            **os.environ,
            "KLEAR_HOME": str(self.home),
            "KLEAR_PREFECT_PORT": str(prefect),
            "KLEAR_MLFLOW_PORT": str(mlflow),
            **environment,
        }

    @property
    def store(self) -> Path:
        return Path(self.environment.get("KLEAR_STORE", self.home / "store"))

    def command(self, *words: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """A `klear` command, to its end, whatever that is; `more` are further variables."""
        environment = {**self.environment, **more}
        return subprocess.run(
            [*KLEAR, *words], env=environment, cwd=ROOT, capture_output=True, text=True
        )

    def klear(self, *words: str, **more: str) -> str:
        """What a command printed that must succeed."""
        done = self.command(*words, **more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *words: str, **more: str) -> str:
        """What `klear run` of the small profile printed."""
        return self.klear("run", str(self.profile), *words, **more)

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

    def servers(self) -> dict[str, int]:
        """Name → pid of what `klear up` started and is running."""
        return {name: server.pid for name, server in alive(Machine(home=self.home)).items()}

    def call(self, path: str, body: Any = None) -> Any:
        """POST `body`, or GET; while SQLite is locked or the server starts, again."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        deadline = time.monotonic() + 120
        while True:
            try:
                request = urllib.request.Request(f"{self.prefect}/api/{path}", data, headers)
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.loads(answer.read() or b"null")
            except (urllib.error.URLError, OSError) as error:
                refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if refused or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def deployment(self, name: str) -> dict[str, Any]:
        """A form, with the parameters that it begins with."""
        wanted = {"deployments": {"name": {"any_": [name]}}}
        (deployment,) = self.call("deployments/filter", wanted)
        return deployment

    def submit(self, form: str, *, run_name: str = "quick-fox", **changed: Any) -> str:
        """The Submit button: every field of the form goes along. Returns the flow run's id."""
        deployment = self.deployment(form)
        parameters = {**deployment["parameters"], **changed}
        path, state = f"deployments/{deployment['id']}/create_flow_run", {"type": "SCHEDULED"}
        return self.call(path, {"parameters": parameters, "state": state, "name": run_name})["id"]

    def set_state(self, run: str, kind: str, name: str) -> None:
        """The buttons Retry (SCHEDULED, AwaitingRetry) and Cancel (CANCELLING, Cancelling)."""
        state = {"state": {"type": kind, "name": name}}
        assert self.call(f"flow_runs/{run}/set_state", state)["status"] == "ACCEPT"

    def flow_run(self, run: str) -> dict[str, Any]:
        return self.call(f"flow_runs/{run}")

    def has_ended(self, run: str) -> bool:
        return self.flow_run(run)["state_type"] in FINAL

    def ended(self, run: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """The flow run, once it is in a final state."""
        assert eventually(lambda: self.has_ended(run), seconds), self.flow_run(run)
        return self.flow_run(run)

    def named(self, name: str) -> list[dict[str, Any]]:
        return self.call("flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})

    def tasks_of(self, run: str) -> list[dict[str, Any]]:
        """Its task runs, oldest first."""
        only = {"flow_runs": {"id": {"any_": [run]}}}
        tasks = self.call("task_runs/filter", {**only, "limit": 200})
        return sorted(tasks, key=lambda task: task["created"])

    def log(self, run: str) -> str:
        """All lines on the page of a run."""
        only = {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200, "sort": "TIMESTAMP_ASC"}
        lines: list[str] = []
        while page := self.call("logs/filter", {**only, "offset": len(lines)}):
            lines += [line["message"] for line in page]
        return "\n".join(lines)

    def states(self, run: str) -> dict[str, list[str]]:
        """Stage → state names of its task runs, oldest first."""
        states: dict[str, list[str]] = {}
        for task in self.tasks_of(run):
            states.setdefault(task["name"].rpartition(": ")[2], []).append(task["state_name"])
        return states

    def artifacts(self, run: str) -> set[str]:
        """Keys of the artifacts on the page of a run."""
        artifacts = self.call("artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {artifact["key"] for artifact in artifacts}

    def experiment(self, profile: str) -> str:
        """The id of the profile's experiment in MLflow."""
        experiment = self.mlflow.get_experiment_by_name(f"klear-{profile}")
        assert experiment is not None
        return experiment.experiment_id

    def tracked(self, query: str, profile: str = "small") -> list[Any]:
        """MLflow's runs of the profile's experiment."""
        return list(self.mlflow.search_runs([self.experiment(profile)], query))

    def stages_of(self, parent: str, stage: str = "") -> list[str]:
        """Ids of the MLflow runs below a run: of all its stages, or of one."""
        query = f"tags.`mlflow.parentRunId` = '{parent}'"
        query += f" and tags.`klear.stage` = '{stage}'" if stage else ""
        return [run.info.run_id for run in self.tracked(query)]

    def check_steps(self, run: str) -> None:
        """An MLflow run has every step, and each once."""
        steps = sorted(m.step for m in self.mlflow.get_metric_history(run, STEP_METRIC))
        assert len(steps) == len(set(steps)), "a step was logged twice"
        assert steps == [*range(steps[0], steps[-1] + 1, steps[1] - steps[0])], "one is missing"

    def pids(self, *words: str, but: str = "\0") -> list[int]:
        """Living processes with all of the words on their command line, and without `but`."""
        pids = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it ended
                text = " ".join(process.cmdline())
                if all(word in text for word in words) and but not in text:
                    pids.append(process.pid)
        return pids

    def of_this_home(self, word: str) -> list[int]:
        """Processes of this home with the word on their command line."""
        processes = []
        for pid in self.pids(word):
            with suppress(psutil.Error):
                home = psutil.Process(pid).environ().get("KLEAR_HOME")
                processes += [pid] if home == str(self.home) else []
        return processes

    def engines(self) -> list[int]:
        """Processes in which a worker executes a flow."""
        return self.of_this_home("-m prefect.engine")

    def children(self) -> list[int]:
        """Supervisors and what they supervise: processes that train or generate for this home."""
        return self.pids("klear.training.launch.run_job", str(self.store))

    def jobs(self) -> list[int]:
        """Those of them that do the work."""
        return self.pids("-m klear.training.launch.run_job", str(self.store), but="supervise.py")

    def hold_at_checkpoint(self, stage: str) -> None:
        """Stop the job of a stage as soon as it has a whole checkpoint.

        It runs in slices of a tenth of a second, so that it cannot be over before the look.
        """
        checkpoints = f".work/{stage}/*/.resume/checkpoints/checkpoint-*/{STABLE}"
        assert eventually(lambda: self._stop_jobs_of(stage)), f"{stage} does not start"
        while not any(self.store.glob(checkpoints)):
            assert self.jobs(), f"{stage} ended without a checkpoint"
            self.signal_jobs(signal.SIGCONT)
            time.sleep(0.1)
            self.signal_jobs(signal.SIGSTOP)

    def _stop_jobs_of(self, stage: str) -> bool:
        job = ("-m klear.training.launch.run_job", f"{self.store}/.work/{stage}/")
        if not self.pids(*job, but="supervise.py"):
            return False
        self.signal_jobs(signal.SIGSTOP)
        return True

    def signal_jobs(self, number: signal.Signals) -> None:
        for pid in self.jobs():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def computed(output: str) -> list[str]:
    """Stages that a run computed, by what it printed."""
    return [line.split()[1] for line in output.splitlines() if line.startswith("✓")]


def cached(output: str) -> list[str]:
    return re.findall(r"\w+", " ".join(re.findall(r"= \d+ stages? cached: (.*)", output)))
