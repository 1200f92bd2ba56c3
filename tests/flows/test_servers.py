"""`klear up` and `klear down`: what is ours is started, found again and ended; nothing else is."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from processes import free_ports

from configs.loading import load_profile, profiles
from configs.machine import Machine
from flows.servers import process as server_process
from flows.servers import servers
from flows.servers.commands import ROOT, registration_is_current
from flows.servers.prefect_api import ServersError, answers, post
from flows.servers.process import ServerProcess, launch, stop
from flows.servers.servers import alive, down, up
from flows.stages import calls


def machine_in(folder: Path) -> Machine:
    prefect, mlflow = free_ports(2)
    home = folder / "home"
    return Machine(home=home, store=home / "store", prefect_port=prefect, mlflow_port=mlflow)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return machine_in(tmp_path)


def silent(_: str) -> None: ...


def started(tmp_path: Path, script: str) -> ServerProcess:
    """A shell script as one of our processes; returns when it has printed its first line."""
    command, log = ["sh", "-c", script], tmp_path / "test.log"
    process = launch("test", command, environment=os.environ, log=log, cwd=tmp_path)
    while not process.log_tail():
        assert process.alive()
    return process


def test_a_pid_that_now_belongs_to_somebody_else_is_not_ours(
    machine: Machine, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "300"]) as theirs:
        ours = ServerProcess(name="prefect", pid=theirs.pid, mark="of ours", log=tmp_path / "log")
        machine.home.mkdir(parents=True)
        machine.state_file.write_text(f"[{ours.model_dump_json()}]")
        said: list[str] = []
        assert alive(machine) == {}
        down(machine, said.append)
        assert theirs.poll() is None
        assert said == ["nothing is running"]
        theirs.kill()


@pytest.mark.parametrize("killed", [False, True])
def test_the_whole_family_ends_also_behind_a_server_that_was_killed(
    tmp_path: Path, killed: bool
) -> None:
    process = started(tmp_path, "sleep 300 & setsid sleep 300 & echo $!; wait")
    child = psutil.Process(int(process.log_tail()))
    if killed:
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        assert child.is_running()
    stop([process])
    assert not process.alive()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_ignores_signals_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = {signal.SIGTERM: 0.2, signal.SIGINT: 0.2, signal.SIGKILL: 10.0}
    monkeypatch.setattr(server_process, "PATIENCE_S", patience)
    process = started(tmp_path, "trap '' TERM INT; echo ready; while :; do sleep 1; done")
    stop([process])
    assert not process.alive()


@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_a_taken_port_is_one_line_with_the_fix(machine: Machine, name: str) -> None:
    port = getattr(machine, f"{name}_port")
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServersError) as caught:
        up(machine, silent)
    assert str(caught.value).startswith(f"port {port} is in use by ")
    assert f"(pid {os.getpid()}); set KLEAR_{name.upper()}_PORT" in str(caught.value)
    assert alive(machine) == {}


def test_a_failed_start_leaves_nothing_running(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {"prefect": ["sh", "-c", "echo no database; exit 3"], "mlflow": ["sleep", "300"]}
    monkeypatch.setattr(servers, "server_command", lambda _, name: commands[name])
    begun: list[ServerProcess] = []

    def remembered(*args: Any, **kwargs: Any) -> ServerProcess:
        begun.append(launch(*args, **kwargs))
        return begun[-1]

    monkeypatch.setattr(servers, "launch", remembered)
    with pytest.raises(ServersError, match=r"prefect ended while starting(.|\n)*no database"):
        up(machine, silent)
    assert [p.name for p in begun] == ["prefect", "mlflow"]
    assert not any(p.alive() for p in begun)
    assert alive(machine) == {}


def test_a_server_with_other_settings_than_now_is_named_and_left_alone(
    machine: Machine, tmp_path: Path
) -> None:
    old = started(tmp_path, "echo ready; sleep 300")
    machine.home.mkdir()
    state = old.model_copy(update={"name": "mlflow", "settings": "of yesterday"})
    machine.state_file.write_text(f"[{state.model_dump_json()}]")
    with pytest.raises(ServersError, match="since mlflow started: first `klear down`"):
        up(machine, silent)
    assert old.alive()
    down(machine, silent)
    assert not old.alive()


class Klear(NamedTuple):
    """Real servers in a home of their own; `run` is the command line."""

    machine: Machine
    environment: dict[str, str]
    said: str

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return klear(self.environment, *words)


def klear(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Klear]:
    folder = tmp_path_factory.mktemp("klear")
    machine = machine_in(folder)
    environment = {"HOME": str(folder), **machine.environment()}
    begun = klear(environment, "up")
    try:
        assert begun.returncode == 0, begun.stderr
        yield Klear(machine, environment, begun.stdout)
    finally:
        klear(environment, "down")


class TestRealServers:
    def test_both_servers_answer_and_write_nothing_outside_of_home(self, running: Klear) -> None:
        for url in servers.health_urls(running.machine).values():
            assert answers(url)
        assert running.machine.prefect_url in running.said
        assert running.machine.mlflow_uri in running.said
        beside = {p.name for p in running.machine.home.parent.iterdir()}
        assert beside.isdisjoint({".prefect", ".mlflow", "mlruns", "mlflow.db"})

    def test_every_profile_has_a_form_with_all_its_settings(self, running: Klear) -> None:
        deployments = {d["name"]: d for d in post(running.machine, "deployments/filter", {})}
        others = {f"tiny-{stage}" for stage in calls(load_profile("tiny"))} | {"ablation"}
        assert set(deployments) == set(profiles()) | others
        for name in profiles():
            form = deployments[name]
            assert form["parameters"]["settings"] == load_profile(name).model_dump(mode="json")
            assert form["enforce_parameter_schema"]
            assert form["concurrency_options"]["collision_strategy"] == "ENQUEUE"
            assert form["global_concurrency_limit"]["limit"] == 1

    def test_up_again_changes_nothing_and_status_shows_it(self, running: Klear) -> None:
        before = running.machine.state_file.read_text()
        again = running.run("up")
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith("already up")
        assert running.machine.state_file.read_text() == before
        shown = running.run("status").stdout
        assert f"✓ prefect  {running.machine.prefect_url}" in shown
        assert f"✓ mlflow   {running.machine.mlflow_uri}" in shown
        assert "no runs yet" in shown

    def test_another_home_on_these_ports_is_refused(self, running: Klear, tmp_path: Path) -> None:
        other = {**running.environment, "KLEAR_HOME": str(tmp_path / "other")}
        refused = klear(other, "up")
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert f"port {running.machine.prefect_port} is in use" in line
        assert klear(other, "down").stdout == "nothing is running\n"
        assert answers(f"{running.machine.prefect_api_url}/health")

    def test_up_starts_only_what_is_missing_and_frees_what_it_held(self, running: Klear) -> None:
        before = alive(running.machine)
        form = post(running.machine, "deployments/filter", {"limit": 1})[0]["id"]
        state = {"state": {"type": "RUNNING", "name": "Running"}}
        run = post(running.machine, f"deployments/{form}/create_flow_run", state)["id"]
        os.kill(before["worker"].pid, signal.SIGKILL)
        again = running.run("up")
        assert again.returncode == 0, again.stderr
        assert "started worker in" in again.stdout
        after = alive(running.machine)
        assert after["prefect"] == before["prefect"]
        assert after["mlflow"] == before["mlflow"]
        assert after["worker"].pid != before["worker"].pid
        only = {"flow_runs": {"id": {"any_": [run]}}}
        (orphan,) = post(running.machine, "flow_runs/filter", only)
        assert orphan["state_type"] == "CRASHED"

    def test_forms_that_are_no_longer_made_go_and_those_of_others_stay(
        self, running: Klear
    ) -> None:
        def forms() -> set[str]:
            return {d["name"] for d in post(running.machine, "deployments/filter", {})}

        flow = post(running.machine, "flows/", {"name": "klear-stage"})["id"]
        theirs = {"name": "small-of-somebody-else", "flow_id": flow}
        for form in (theirs, {"name": "of-yesterday", "flow_id": flow, "tags": ["klear"]}):
            post(running.machine, "deployments/", form)
        before = forms()
        register = [sys.executable, "-P", "-m", "flows.servers.registration"]
        subprocess.run(register, env={**os.environ, **running.environment}, cwd=ROOT, check=True)
        assert before - forms() == {"of-yesterday"}

    def test_down_ends_them_all_and_can_be_repeated(self, running: Klear) -> None:
        assert registration_is_current(running.machine)  # a second `up` need not register again
        ours = alive(running.machine)
        assert set(ours) == {"prefect", "mlflow", "worker"}
        ended = running.run("down")
        assert ended.returncode == 0, ended.stderr
        assert sorted(ended.stdout.splitlines()) == sorted(
            f"ended {name} (pid {process.pid})" for name, process in ours.items()
        )
        assert not any(process.alive() for process in ours.values())
        assert running.run("down").stdout == "nothing is running\n"
