"""A Prefect server that is killed under a run forgets none of its stages."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from home import eventually
from processes import free_ports

ROOT = Path(__file__).resolve().parents[2]
TASKS = 24
AWAY_S = 4.0
RUN = '''
import os, time
from configs.machine import load_machine
os.environ.update(load_machine().environment())
from prefect import Task, flow
from prefect.events.clients import PrefectEventsClient
from prefect.runtime import flow_run, task_run
from prefect.states import Completed
from tasks.tracking.prefect_states import settle_task_runs

connect = PrefectEventsClient._reconnect

async def forgetful(client):
    """As if the server had confirmed what it had not written yet: Prefect's own memory is empty."""
    client._unconfirmed_events.clear()
    await connect(client)

PrefectEventsClient._reconnect = forgetful
ended = {{}}

@flow(name="much")
def much():
    for number in range({tasks}):
        def work():
            time.sleep(0.2)
            ended[str(task_run.id)] = (task, Completed())
        task = Task(fn=work, name=f"task{{number}}")
        task()
        print(number, flush=True)
    settle_task_runs(str(flow_run.id), ended)

much()
'''


class PrefectAlone:
    """`klear serve prefect` in a home of its own."""

    def __init__(self, home: Path, port: int) -> None:
        ports = {"KLEAR_PREFECT_PORT": str(port), "PYTHONPATH": str(ROOT)}
        self.environment = {**os.environ, "KLEAR_HOME": str(home), **ports}
        self.api, self._log = f"http://127.0.0.1:{port}/api", home / "prefect.log"
        home.mkdir()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "serve", "prefect"],
                env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """All of it, without a word."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()

    def call(self, path: str, body: object) -> object:
        content = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.api}/{path}", json.dumps(body).encode(), content)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.api}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def states(self) -> Counter[str]:
        """Of all task runs."""
        found = self.call("task_runs/filter", {"limit": 200})
        assert isinstance(found, list)
        return Counter(run["state_name"] for run in found)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrefectAlone]:
    place = PrefectAlone(tmp_path / "home", *free_ports(1))
    place.start()
    yield place
    place.kill()


@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_under_a_run_knows_all_its_stages_in_the_end(server, tmp_path):
    assert eventually(server.answers)
    with (tmp_path / "err").open("wb") as errors:
        run = subprocess.Popen(
            [sys.executable, "-c", RUN.format(tasks=TASKS)],
            env=server.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert run.stdout is not None
        for line in run.stdout:
            if int(line) == TASKS // 2:
                break
        server.kill()
        time.sleep(AWAY_S)
        server.start()
        assert run.wait(600) == 0, (tmp_path / "err").read_text()
    finally:
        run.kill()
        run.communicate()
    everything = Counter({"Completed": TASKS})
    assert eventually(lambda: server.states() == everything, 60), server.states()
