"""The budget gate as people meet it: a deployment, a worker, a paused run and its Resume form."""

import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.machine import Machine
from eval.records import Problem, Sample
from eval.tables import read_table, write_table
from flows.servers.process import launch, stop
from tests.endpoint.conftest import MODEL, Endpoint, serving

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0
FINAL = ("CRASHED", "FAILED", "CANCELLED", "COMPLETED")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
POOL, PROMPTS, SAMPLES, PILOT = "gate", 12, 2, 4
PROGRESS = "progress-distill"
FIGURES = r"\d+ tok/s, [\d,]+ tokens, cost \d+\.\d\d"
FLOW = f"""
from pathlib import Path

from prefect import flow

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from flows.forms import approval
from tasks.answers.distill import distill
from tasks.stage.run import Run, active
from tasks.store.store import Artifact, Store

approval.POLL_S = 1


@flow(name="gate")
def gate(problems: str, store: str, url: str) -> str:
    runtime = EngineRuntime(concurrency=2, output_price=1000.0, approve_above=0.5,
                            pilot_prompts={PILOT})
    engine = EngineSettings(kind="openai", model="{MODEL}", base_url=url, api_key_env="",
                            runtime=runtime)
    settings = SampleSettings(samples_per_prompt={SAMPLES}, engine=engine)
    with active(Run(store=Store(Path(store)), orchestrated=True)):
        asked = Artifact.of_folder(Path(problems))
        return str(approval.with_approval(distill, asked, settings=settings).folder)
"""


class Servers(NamedTuple):
    """A Prefect server with a worker of its own, and a deployment of `FLOW`."""

    api: str
    deployment: str

    def call(self, path: str, body: Any = None) -> Any:
        """POST `body`, or GET without one."""
        return call(self.api, path, body)

    def start(self, **parameters: str) -> str:
        made = self.call(f"deployments/{self.deployment}/create_flow_run",
                         {"parameters": parameters, "state": {"type": "SCHEDULED"}})  # fmt: skip
        return made["id"]

    def state(self, run: str, *wanted: str) -> dict[str, Any]:
        """The state of `run` once it is one of `wanted`."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            state = self.call(f"flow_runs/{run}")["state"]
            if state["type"] in wanted:
                return state
            assert state["type"] not in FINAL, state
            time.sleep(0.3)
        pytest.fail(f"the run stayed {state['type']}")

    def tasks(self, run: str) -> list[tuple[str, str]]:
        """Name and state of its task runs, oldest first."""
        found = self.call("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return [(t["name"], t["state_name"]) for t in sorted(found, key=lambda t: t["created"])]

    def shows(self, run: str, *states: str) -> None:
        """Until its `distill` tasks are in these states; Prefect tells them in its own time."""
        wanted = [("distill", state) for state in states]
        deadline = time.monotonic() + PATIENCE_S
        while self.tasks(run) != wanted:
            assert time.monotonic() < deadline, self.tasks(run)
            time.sleep(0.3)

    def resume(self, run: str, **answer: object) -> None:
        self.call(f"flow_runs/{run}/resume", {"run_input": answer})

    def form(self, run: str, state: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Fields and description of the form behind the button Resume, as the UI reads them."""
        keys = state["state_details"]["run_input_keyset"]
        read = {n: self.call(f"flow_runs/{run}/input/{key}") for n, key in keys.items()
                if n in ("schema", "description")}  # fmt: skip
        return read["schema"]["properties"], read["description"]


def call(api: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{api}/{path}", data, headers)
    for pause_s in (0.5, 1.0, 2.0, 4.0, None):
        try:
            with OPENER.open(asked, timeout=PATIENCE_S) as answer:
                content = answer.read()
            return json.loads(content) if content else None
        except urllib.error.HTTPError as error:  # SQLite may be busy: 503
            if error.code < 500 or pause_s is None:
                raise
            time.sleep(pause_s)
    return None


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("prefect")
    (folder / "gate_flow.py").write_text(FLOW)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        machine = Machine(home=folder / "home", prefect_port=free.getsockname()[1])
    machine.logs.mkdir(parents=True)
    environment = {
        **os.environ,
        **machine.environment(),
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    app = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    app += ["--host", machine.host, "--port", str(machine.prefect_port)]
    worker = ["-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    processes = []

    def start(name: str, words: list[str]) -> None:
        log = machine.logs / f"{name}.log"
        command = [sys.executable, "-P", *words]
        processes.append(launch(name, command, environment=environment, log=log, cwd=folder))

    def patiently(attempt: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return attempt()
            except OSError:
                logs = "\n".join(p.log_tail() for p in processes)
                assert time.monotonic() < deadline, logs
                assert all(p.alive() for p in processes), logs
                time.sleep(0.3)

    api = machine.prefect_api_url
    try:
        start("server", app)
        patiently(lambda: call(api, "health"))
        start("worker", worker)
        patiently(lambda: call(api, f"work_pools/{POOL}"))  # the worker makes it
        yield Servers(api, _deployed(api, folder))
    finally:
        stop(processes)


def _deployed(api: str, folder: Path) -> str:
    flow = call(api, "flows/", {"name": "gate"})["id"]
    made = {"name": "gate", "flow_id": flow, "work_pool_name": POOL, "path": str(folder),
            "entrypoint": "gate_flow.py:gate"}  # fmt: skip
    return call(api, "deployments/", made)["id"]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(latency_s=0.3) as running:  # long enough for a progress bar
        yield running


@pytest.fixture
def started(servers: Servers, endpoint: Endpoint, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """A run that has come to its pause, and its state."""
    rows = [Problem(domain="math", prompt=f"question {i}", answer="1", source=f"source-{i % 2}")
            for i in range(PROMPTS)]  # fmt: skip
    (tmp_path / "problems").mkdir()
    write_table(tmp_path / "problems" / "kept.parquet", Problem, rows)
    run = servers.start(
        problems=str(tmp_path / "problems"), store=str(tmp_path / "store"), url=endpoint.url
    )
    return run, servers.state(run, "PAUSED")


def test_a_paused_run_goes_on_where_it_was_when_its_form_is_filled_in(
    servers: Servers, endpoint: Endpoint, started: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    run, state = started
    servers.shows(run, "WaitingForApproval")
    assert endpoint.attempts.total() == PILOT  # nothing but the pilot has been paid for
    fields, description = servers.form(run, state)
    titles = {name: field["title"] for name, field in fields.items()}
    assert titles == {"approve": "Spend it", "up_to": "Cost that may be spent by this stage"}
    assert fields["approve"]["default"] is False
    assert "**distill**: 24 answers would cost about" in description
    cost = fields["up_to"]["default"]  # the amount that the form proposes is enough
    servers.resume(run, approve=True, up_to=0.6)
    servers.state(run, "PAUSED")  # too little: it asks again
    assert endpoint.attempts.total() == PILOT
    servers.resume(run, approve=True, up_to=cost)
    servers.state(run, "COMPLETED")
    servers.shows(run, "Approved", "Approved", "Completed")
    asked = Counter(body["messages"][0]["content"] for body in endpoint.bodies)
    assert asked == {f"question {i}": SAMPLES for i in range(PROMPTS)}
    (table,) = (tmp_path / "store" / "distill").glob("*/samples.parquet")
    keys = [(s.problem_id, s.index) for s in read_table(table, Sample)]
    assert len(keys) == len(set(keys)) == PROMPTS * SAMPLES
    progress = servers.call("artifacts/filter", {"artifacts": {"key": {"any_": [PROGRESS]}}})
    said = [a["description"] for a in progress if a["flow_run_id"] == run]
    assert any(re.search(FIGURES, words) for words in said), said


def test_a_refusal_fails_the_run_with_one_line_and_keeps_what_the_pilot_has_paid_for(
    servers: Servers, endpoint: Endpoint, started: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    run, _ = started
    servers.resume(run, approve=False, up_to=0)
    message = servers.state(run, "FAILED")["message"]
    assert "NeedsApproval: 24 answers would cost about" in message
    assert "0.50 may be spent without approval" in message
    assert "\n" not in message
    servers.shows(run, "Refused")
    assert endpoint.attempts.total() == PILOT
    (journal,) = (tmp_path / "store" / ".work" / "distill").glob("*/.resume/samples.jsonl")
    assert len(journal.read_text().splitlines()) == PILOT
