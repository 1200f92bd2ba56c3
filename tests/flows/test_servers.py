"""`klear up` and `klear down`: what is ours is started, found again and ended; nothing else is. No
secret is on a command line, and who is refused is told what to set."""

import logging
import os
import shlex
import signal
import sqlite3
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from home import PATIENCE_S, Home
from processes import eventually, free_ports
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError

from klear.configs.loading import load_profile, profiles
from klear.configs.machine import DATABASES, Machine
from klear.flows.cockpit import servers
from klear.flows.cockpit.forms import values_of
from klear.flows.cockpit.prefect_log import WorthALine
from klear.flows.cockpit.servers import POOL, ServersError, alive, record, refusal, started
from klear.tasks.engine.supervise import descendants, is_alive

WORD = "twelve-letters-and-more"
DATABASE_WORD = "the-word-of-the-database"


def machine_in(home: Path, prefect: int, mlflow: int) -> Machine:
    return Machine(home=home, store=home / "store", prefect_port=prefect, mlflow_port=mlflow)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """What `up` and `down` of this process meet."""
    own_machine = machine_in(tmp_path / "home", *free_ports(2))
    monkeypatch.setattr(servers, "load_machine", lambda: own_machine)
    return own_machine


def begun(tmp_path: Path, script: str, **more: str) -> psutil.Process:
    """A shell script as one of our processes; returns when it has printed its first line."""
    log = tmp_path / "test.log"
    log.unlink(missing_ok=True)
    process = servers.launch(["sh", "-c", script], {**os.environ, **more}, tmp_path, log)
    while not log.read_text():
        assert is_alive(process)
    return process


def noted(machine: Machine, name: str, process: psutil.Process, seconds: float = 0.0) -> None:
    """As `klear up` notes a server; `seconds` later than it began."""
    record(machine, name).parent.mkdir(parents=True, exist_ok=True)
    record(machine, name).write_text(f"[{process.pid}, {process.create_time() + seconds}]")


@pytest.mark.parametrize("killed", [False, True])
def test_all_that_a_server_started_ends_with_it_also_when_it_was_killed(machine, tmp_path, killed):
    server = begun(tmp_path, "sleep 300 & echo $!; wait", KLEAR_HOME=str(machine.home))
    child = psutil.Process(int((tmp_path / "test.log").read_text()))
    noted(machine, "mlflow", server)
    if killed:
        os.kill(server.pid, signal.SIGKILL)
        os.waitpid(server.pid, 0)
        assert child.is_running()
        assert started(machine, "mlflow") == (server.pid, None)
        elsewhere = machine.model_copy(update={"home": tmp_path / "other"})
        noted(elsewhere, "mlflow", server)
        assert started(elsewhere, "mlflow") == (0, None)  # as if the number were used again
    servers.stop(started(machine, "mlflow")[0])
    assert not is_alive(server)
    assert not is_alive(child)


def test_a_pid_that_is_somebody_elses_by_now_is_left_alone(machine, tmp_path):
    stranger = begun(tmp_path, "echo ready; exec sleep 300")
    noted(machine, "mlflow", stranger, seconds=-3600.0)
    assert started(machine, "mlflow") == (0, None)
    assert servers.members(0) == set()
    servers.down()
    assert is_alive(stranger)
    servers.stop(stranger.pid)


def test_a_process_that_ignores_signals_is_killed(tmp_path, monkeypatch):
    patience = {signal.SIGTERM: 0.2, signal.SIGINT: 0.2, signal.SIGKILL: 10.0}
    monkeypatch.setattr(servers, "PATIENCE_S", patience)
    process = begun(tmp_path, "trap '' TERM INT; echo ready; while :; do sleep 1; done")
    servers.stop(process.pid)
    assert not is_alive(process)


def test_a_failed_start_leaves_nothing_running(machine, monkeypatch):
    commands = {"prefect": ["sh", "-c", "echo no database; exit 3"], "mlflow": ["sleep", "300"]}
    waits = ["sleep", "301"]  # the registration, for Prefect
    monkeypatch.setattr(servers, "server_command", lambda _, name: commands.get(name, waits))
    launched, launch = list[psutil.Process](), servers.launch

    def remembered(*args: Any) -> psutil.Process:
        launched.append(launch(*args))
        return launched[-1]

    monkeypatch.setattr(servers, "launch", remembered)
    with pytest.raises(ServersError, match=r"prefect ended while starting(.|\n)*no database"):
        servers.up()
    assert len(launched) == len(commands)
    assert not any(map(is_alive, launched))
    assert waits not in [p.cmdline() for p in descendants(os.getpid())]
    assert alive(machine) == {}


def test_a_server_with_other_settings_than_now_is_named_and_left_alone(
    machine, tmp_path, monkeypatch, capsys
):
    (tmp_path / "mlflow.py").write_text("import time; print('ready', flush=True); time.sleep(300)")
    environment = {**servers.process_environment(machine, "mlflow"), "PYTHONPATH": str(tmp_path)}
    command = shlex.join(servers.server_command(machine, "mlflow"))
    old = begun(tmp_path, f"exec {command}", **environment)
    noted(machine, "mlflow", old)
    assert alive(machine) == {"mlflow": old}
    monkeypatch.setenv("NO_PROXY", "another-shell")
    assert not servers.is_outdated(machine, "mlflow", old)
    for changed in ({"zombie_minutes": 7.0}, {"mlflow_port": 1}):
        assert servers.is_outdated(machine.model_copy(update=changed), "mlflow", old)
    monkeypatch.setattr(servers, "is_outdated", lambda *_: True)
    with pytest.raises(ServersError, match="since mlflow started: first `klear down`"):
        servers.up()
    assert is_alive(old)
    servers.down()
    assert capsys.readouterr().out == f"ended mlflow (pid {old.pid})\n"
    assert not is_alive(old)


def test_no_command_line_holds_a_secret_and_no_worker_the_way_into_the_database(
    monkeypatch, tmp_path
):
    secrets = {"password": SecretStr(WORD), "database_password": SecretStr(DATABASE_WORD)}
    guarded = Machine(home=tmp_path, store=tmp_path / "store", **secrets)
    words = " ".join(
        word for name in servers.NAMES for word in servers.server_command(guarded, name)
    )
    assert WORD not in words
    assert DATABASE_WORD not in words
    address = f"postgresql+psycopg2://klear:{DATABASE_WORD}@db/klear"
    for name in (*DATABASES.values(), "PGPASSWORD", "KLEAR_DATABASE_PASSWORD"):
        monkeypatch.setenv(name, address)
    of_server = servers.process_environment(guarded, "mlflow")
    assert of_server[DATABASES["mlflow"]] == address
    assert of_server["PGPASSWORD"] == DATABASE_WORD
    of_worker = servers.process_environment(guarded, "worker")
    assert not any(DATABASE_WORD in value for value in of_worker.values())
    assert of_worker["KLEAR_PASSWORD"] == WORD  # it talks to the servers


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_who_is_refused_is_told_what_to_set(tmp_path, server, monkeypatch):
    refuse = httpx.MockTransport(lambda _: httpx.Response(HTTPStatus.UNAUTHORIZED))
    monkeypatch.setattr(servers, "_http", lambda *_: httpx.Client(transport=refuse))
    message = refusal(Machine(home=tmp_path, password=SecretStr(WORD)), server)
    assert f"{server} refuses klear and asks for a password: set KLEAR_PASSWORD" in message
    assert WORD not in message


@pytest.mark.parametrize(
    ("status", "crashed"), [("OFFLINE", ["ours", "new"]), ("ONLINE", ["ours"])]
)
def test_runs_of_workers_on_other_machines_are_left_alone(monkeypatch, tmp_path, status, crashed):
    worker_label = "prefect.worker.name"
    runs = [
        {"id": "ours", "labels": {worker_label: servers.WORKER}},
        {"id": "theirs", "labels": {worker_label: "klear-another-machine"}},
        {"id": "new", "labels": {}},  # taken by a worker that has not written its name yet
    ]
    workers = [{"name": "klear-another-machine", "status": status}]
    questions: list[str] = []

    def post(_: Machine, path: str, __: Any) -> Any:
        questions.append(path)
        return workers if "work_pools" in path else runs

    monkeypatch.setattr(servers, "post", post)
    servers.crash_orphans(Machine(home=tmp_path))
    assert questions[2:] == [f"flow_runs/{run}/set_state" for run in crashed]


def test_a_registration_that_hangs_is_ended_and_said(monkeypatch, tmp_path):
    here = Machine(home=tmp_path, prefect_url="http://of.another", mlflow_url="http://of.another")
    for name, answer in (("load_machine", here), ("refusal", ""), ("create_pool", None)):
        monkeypatch.setattr(servers, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(servers, "server_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(servers, "REGISTRATION_S", 0.2)
    with pytest.raises(ServersError, match=r"forms could not be registered.*timed out"):
        servers.up()
    assert servers.alive(here) == {}


class Klear(Home):
    """Real servers in a home of their own, as this process sees them too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder, HOME=str(folder), PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS="10"
        )
        ports = (int(self.environment[f"KLEAR_{name}_PORT"]) for name in ("PREFECT", "MLFLOW"))
        self.machine = machine_in(self.home, *ports)

    def forms(self) -> dict[str, dict[str, Any]]:
        return {d["name"]: d for d in self.call("deployments/filter", {})}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Klear]:
    klear = Klear(tmp_path_factory.mktemp("klear"))
    try:
        klear.klear("up")
        yield klear
    finally:
        klear.command("down")


@pytest.mark.system
class TestRealServers:
    def test_every_profile_has_a_form_that_begins_with_its_values(self, running: Klear) -> None:
        forms = running.forms()
        assert set(forms) == {*profiles(), "stage", "ablation"}
        for name in profiles():
            parameters = forms[name]["parameters"]
            assert {**values_of(load_profile(name)), "profile": name}.items() <= parameters.items()
        for form in forms.values():
            assert form["enforce_parameter_schema"]
            assert form["concurrency_options"]["collision_strategy"] == "ENQUEUE"
            assert form["global_concurrency_limit"]["limit"] == 1

    def test_up_again_changes_nothing_and_nothing_lies_outside_of_home(self, running, tmp_path):
        before = alive(running.machine)
        again = running.command("up")
        assert again.stdout.startswith("already up"), again.stderr
        assert alive(running.machine) == before
        beside = {p.name for p in running.machine.home.parent.iterdir()}
        assert beside.isdisjoint({".prefect", ".mlflow", "mlruns", "mlflow.db"})
        shown = running.command("status").stdout
        assert f"✓ prefect  {running.machine.prefect_url}" in shown
        assert f"✓ mlflow   {running.machine.mlflow_url}" in shown
        assert "no runs yet" in shown
        # another home on these ports is refused
        other = {"KLEAR_HOME": str(tmp_path / "other")}
        refused = running.command("up", **other)
        assert refused.returncode == 1
        port = running.machine.prefect_port
        taken = f"port {port} is in use: set KLEAR_PREFECT_PORT to a free one"
        assert refused.stderr.splitlines() == [taken]
        assert running.command("down", **other).stdout == "nothing is running\n"
        assert refusal(running.machine, "prefect") == ""

    def test_up_starts_only_what_is_missing_frees_what_it_held_and_makes_the_forms_anew(
        self, running: Klear
    ) -> None:
        before = alive(running.machine)
        form = running.forms()["paper"]["id"]
        state = {"state": {"type": "RUNNING", "name": "Running"}}
        run = running.call(f"deployments/{form}/create_flow_run", state)["id"]
        flow = running.call("flows/", {"name": "klear-stage"})["id"]
        theirs = {"name": "small-of-somebody-else", "flow_id": flow}
        for form in (theirs, {"name": "of-yesterday", "flow_id": flow, "tags": ["klear"]}):
            running.call("deployments/", form)
        forms = set(running.forms())
        os.kill(before["worker"].pid, signal.SIGKILL)
        again = running.command("up")
        assert "started worker in" in again.stdout, again.stderr
        after = alive(running.machine)
        assert after["prefect"] == before["prefect"]
        assert after["mlflow"] == before["mlflow"]
        assert after["worker"].pid != before["worker"].pid
        assert running.flow_run(run)["state_type"] == "CRASHED"
        assert forms - set(running.forms()) == {"of-yesterday"}

    def test_a_schedule_makes_runs_and_an_idle_server_logs_no_error(self, running: Klear) -> None:
        form = f"deployments/{running.deployment('tiny')['id']}"
        every_minute = {"cron": "* * * * *", "timezone": "UTC"}
        parameters = {"until": "collect"}
        schedule = {"schedule": every_minute, "parameters": parameters, "active": True}
        running.call(f"{form}/schedules", [schedule])
        scheduled = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        assert eventually(lambda: running.call("flow_runs/filter", scheduled), PATIENCE_S)
        (run, *_) = running.call("flow_runs/filter", scheduled)
        assert (run["auto_scheduled"], run["parameters"]["until"]) == (True, "collect")
        running.call(f"{form}/pause_deployment", {})
        assert eventually(lambda: not running.engines(), PATIENCE_S)
        log, polls = running.home / "logs/prefect.log", set[str]()
        busy = log.stat().st_size

        def idle_polls() -> int:
            (queue,) = running.call(f"work_pools/{POOL}/queues/filter", {})
            polls.add(queue["last_polled"])
            return len(polls)

        assert eventually(lambda: idle_polls() > 10, PATIENCE_S)
        lines = log.read_bytes()[busy:].decode()
        assert "ERROR" not in lines, lines[lines.index("ERROR") - 100 :][:5000]

    def test_down_ends_them_all_and_can_be_repeated(self, running: Klear) -> None:
        ours = alive(running.machine)
        assert set(ours) == {"prefect", "mlflow", "worker"}
        ended = running.command("down")
        assert ended.returncode == 0, ended.stderr
        assert sorted(ended.stdout.splitlines()) == sorted(
            f"ended {name} (pid {process.pid})" for name, process in ours.items()
        )
        assert not any(map(is_alive, ours.values()))
        assert running.command("down").stdout == "nothing is running\n"


def failure(error: Exception, task: str) -> logging.LogRecord:
    cause = (type(error), error, None)
    return logging.LogRecord("docket", logging.ERROR, "", 0, "↩ [%s] %s", ("4ms", task), cause)


def test_only_the_race_that_prefect_loses_at_every_poll_is_left_out_of_its_log() -> None:
    locked = OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))
    full = OperationalError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))
    poll, scheduler = "mark_deployments_ready(work_queue_ids=...)", "schedule_deployments()"
    config = yaml.safe_load(servers.PREFECT_LOG.read_text())
    assert config["loggers"]["docket.dependencies"]["filters"] == ["worth_a_line"]
    assert config["filters"]["worth_a_line"]["()"] == f"{WorthALine.__module__}.WorthALine"
    shown = WorthALine().filter
    assert not shown(failure(locked, poll))
    assert shown(failure(locked, scheduler))
    assert shown(failure(full, poll))
    assert shown(failure(ValueError("x"), poll))


def test_the_database_of_an_older_mlflow_is_named_with_the_commands(tmp_path: Path) -> None:
    machine = machine_in(tmp_path, 1, 2)
    log = "Detected out-of-date database schema (found version 758, but expected dc1)."
    file, python = f"{tmp_path}/mlflow/mlflow.db", Path(sys.executable)
    lines = servers.migration(machine, log).splitlines()
    assert lines[0].endswith(f"First cp {file} {file}.old, then:")
    assert lines[1] == f"{python.parent}/mlflow db upgrade sqlite:///{file}"
    assert servers.migration(machine, "address already in use") == ""
