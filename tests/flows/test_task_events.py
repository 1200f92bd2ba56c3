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
from types import SimpleNamespace

import psutil
import pytest
from prefect.events import Event, Resource
from prefect.events.worker import EventsWorker
from processes import free_ports

from tasks import prefect_away, task_events

ROOT = Path(__file__).resolve().parents[2]
TASKS = 24
AWAY_S = 4.0
RUN = '''
import os, time
from configs.machine import load_machine
from configs.machine_environment import client_environment
os.environ.update(client_environment(load_machine()))
import tasks.opening  # which makes a process of runs patient
from tasks import task_events
from tasks.task_events import tell_again_if_prefect_was_away
from prefect import flow, task
from prefect.runtime import flow_run

connect = task_events._reconnect

async def forgetful(client):
    """As if the server had confirmed what it had not written yet: Prefect's own memory is empty."""
    client._unconfirmed_events.clear()
    await connect(client)

task_events._reconnect = forgetful

@task
def work():
    time.sleep(0.2)

@flow(name="much")
def much():
    for number in range({tasks}):
        work.with_options(name=f"task{{number}}")()
        print(number, flush=True)
    tell_again_if_prefect_was_away(str(flow_run.id))

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


@pytest.mark.timeout(900)
def test_a_server_that_is_killed_under_a_run_knows_all_its_stages_in_the_end(
    server, eventually, tmp_path
):
    with (tmp_path / "err").open("wb") as errors:
        run = subprocess.Popen(
            [sys.executable, "-c", RUN.format(tasks=TASKS)],
            env=server.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert run.stdout is not None
        for line in run.stdout:  # it waited for the server meanwhile
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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run without a server sends; it has begun with two events."""
    names: list[str] = []
    monkeypatch.setattr(task_events, "_send", lambda _, event: names.append(event.event))
    monkeypatch.setattr(task_events, "_told", [])
    monkeypatch.setattr(task_events, "get_client", _Unused)
    idle = SimpleNamespace(wait_until_empty=lambda: None)
    monkeypatch.setattr(EventsWorker, "instance", lambda: idle)
    monkeypatch.setattr(prefect_away._Wait, "noticed", False)
    for name in ("prefect.task-run.Running", "prefect.flow-run.heartbeat"):
        event = Event(event=name, resource=Resource({"prefect.resource.id": "x"}))
        task_events._remembering(None, event)  # type: ignore[arg-type]
    return names


def test_a_server_that_was_there_is_told_nothing_twice(sent):
    task_events.tell_again_if_prefect_was_away("run")
    assert sent == ["prefect.task-run.Running", "prefect.flow-run.heartbeat"]
    prefect_away.notice()
    task_events.tell_again_if_prefect_was_away("the next run of this process")
    assert len(sent) == 2


def test_a_server_that_was_away_is_told_the_states_of_task_runs_again(sent):
    prefect_away.notice()
    task_events.tell_again_if_prefect_was_away("run")
    assert sent[2:] == ["prefect.task-run.Running"]


class _Unused:
    """A client that is not looked at."""

    def __init__(self, **_: object) -> None: ...

    def __enter__(self) -> "_Unused":
        return self

    def __exit__(self, *_: object) -> None: ...

    def read_flow_run(self, _: str) -> None: ...
