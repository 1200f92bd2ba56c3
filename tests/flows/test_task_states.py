"""A Prefect server that is killed under a run forgets none of its stages."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from home import KLEAR, ROOT, Home, eventually
from processes import below

TASKS = 24
AWAY_S = 4.0
RUN = '''
import os, time
from pathlib import Path
from klear.configs.machine import load_machine
os.environ.update(load_machine().environment())
from prefect import flow
from prefect.events.clients import PrefectEventsClient
from klear.configs.settings.base import Settings
from klear.tasks.engine.events import Ended, Published, Started, Task
from klear.tasks.observe.prefect import PrefectObserver, this_flow_run
from klear.tasks.store.store import Artifact

connect = PrefectEventsClient._reconnect

async def forgetful(client):
    """As if the server had confirmed what it had not written yet: Prefect's own memory is empty."""
    client._unconfirmed_events.clear()
    await connect(client)

PrefectEventsClient._reconnect = forgetful

@flow(name="much")
def much():
    observer, inputs = PrefectObserver(this_flow_run().id), ()
    for number in range({tasks}):
        task = Task(f"task{{number}}", 1, "k", inputs, Settings())
        observer.on(Started(task, "never computed", Path()))
        time.sleep(0.2)
        result = Artifact(stage=task.stage, key="k", digest="d", folder=Path())
        observer.on(Published(task, result, None, "computed", "new"))
        inputs = (result,)
        print(number, flush=True)
    observer.on(Ended())

much()
'''


@contextmanager
def prefect(home: Home) -> Iterator[None]:
    """`klear serve prefect`, all of which is killed without a word after the block."""
    with (home.folder / "prefect.log").open("ab") as log:
        command, where = [*KLEAR, "serve", "prefect"], {"env": home.environment, "cwd": ROOT}
        server = subprocess.Popen(command, **where, stdout=log, stderr=log)
    try:
        home.call("health")
        yield
    finally:
        for process in (*below(server.pid), server):
            process.kill()
        server.wait()


@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_under_a_run_knows_all_its_stages_in_the_end(tmp_path: Path):
    home = Home(tmp_path)

    def states() -> Counter[str]:
        return Counter(t["state_name"] for t in home.call("task_runs/filter", {"limit": 200}))

    with prefect(home):
        run = subprocess.Popen(
            [sys.executable, "-c", RUN.format(tasks=TASKS)],
            env=home.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        next(line for line in run.stdout if int(line) == TASKS // 2)
    try:
        time.sleep(AWAY_S)
        with prefect(home):
            assert run.wait(600) == 0
            everything = Counter({"Completed": TASKS})
            assert eventually(lambda: states() == everything, 60), states()
    finally:
        run.kill()
