"""A Prefect server that is killed under a run forgets none of its stages."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from home import KLEAR, Home, eventually
from processes import below

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


class Server:
    """`klear serve prefect`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.start()

    def start(self) -> None:
        with (self._home.folder / "prefect.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*KLEAR, "serve", "prefect"],
                env=self._home.environment, cwd=ROOT, stdout=log, stderr=log,
            )  # fmt: skip
        self._home.call("health")

    def kill(self) -> None:
        """All of it, without a word."""
        for process in below(self._process.pid):
            process.kill()
        self._process.kill()
        self._process.wait()

    def states(self) -> Counter[str]:
        """Of all task runs."""
        found = self._home.call("task_runs/filter", {"limit": 200})
        return Counter(run["state_name"] for run in found)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def server(home: Home) -> Iterator[Server]:
    running = Server(home)
    yield running
    running.kill()


@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_under_a_run_knows_all_its_stages_in_the_end(
    home: Home, server: Server, tmp_path: Path
):
    with (tmp_path / "err").open("wb") as errors:
        run = subprocess.Popen(
            [sys.executable, "-c", RUN.format(tasks=TASKS)],
            env=home.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
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
