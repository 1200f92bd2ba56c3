"""`klear up` and `klear down`: what is ours is started, found again and ended; nothing else is."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.load import load_profile, profiles
from configs.machine import Machine
from flows import server_process, servers
from flows.prefect_api import answers, post
from flows.registration import ROOT, registration_is_current
from flows.server_process import ServerProcess, launch, start_mark, stop
from flows.servers import ServersError, alive, down, up
from flows.wiring import calls


def free_ports() -> tuple[int, int]:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        return a.getsockname()[1], b.getsockname()[1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    prefect, mlflow = free_ports()
    home = tmp_path / "home"
    return Machine(home=home, store=home / "store", prefect_port=prefect, mlflow_port=mlflow)


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """Somebody else's process."""
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def started(tmp_path: Path, script: str) -> ServerProcess:
    """A shell script as one of our processes; returns when it has printed its first line."""
    process = launch(
        "test",
        ["sh", "-c", script],
        environment=os.environ,
        log=tmp_path / "test.log",
        cwd=tmp_path,
    )
    deadline = time.monotonic() + 10
    while not process.log_tail() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def record(machine: Machine, *processes: ServerProcess) -> None:
    machine.home.mkdir(parents=True, exist_ok=True)
    machine.state_file.write_text(json.dumps([p.model_dump(mode="json") for p in processes]))


class TestProcesses:
    def test_a_stale_pid_is_not_ours(
        self, machine: Machine, sleeper: "subprocess.Popen[bytes]", tmp_path: Path
    ) -> None:
        """The pid of a dead server now belongs to somebody else."""
        mark = start_mark(sleeper.pid)
        assert mark is not None
        boot, ticks = mark.rsplit(":", 1)
        earlier = f"{boot}:{int(ticks) - 1}"
        log = tmp_path / "log"
        record(machine, ServerProcess(name="prefect", pid=sleeper.pid, started=earlier, log=log))
        said: list[str] = []
        assert alive(machine) == {}
        down(machine, said.append)
        assert sleeper.poll() is None
        assert said == ["nothing is running"]

    def test_a_pid_of_an_earlier_boot_is_not_ours(
        self, sleeper: "subprocess.Popen[bytes]", tmp_path: Path
    ) -> None:
        mark = start_mark(sleeper.pid)
        assert mark is not None
        earlier = f"another-boot:{mark.rsplit(':', 1)[1]}"
        process = ServerProcess(name="mlflow", pid=sleeper.pid, started=earlier, log=tmp_path)
        assert not process.alive()
        stop([process])
        assert sleeper.poll() is None

    def test_the_whole_family_ends(self, tmp_path: Path) -> None:
        process = started(tmp_path, "sleep 300 & setsid sleep 300 & echo $!; wait")
        child_of_own_session = int(process.log_tail())
        stop([process])
        assert not process.alive()
        assert start_mark(child_of_own_session) is None

    def test_what_a_dead_server_left_in_its_session_ends(self, tmp_path: Path) -> None:
        process = started(tmp_path, "sleep 300 & echo $!; wait")
        child = int(process.log_tail())
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)
        assert start_mark(child) is not None
        stop([process])
        assert start_mark(child) is None

    def test_a_process_that_ignores_signals_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        patience = {signal.SIGTERM: 0.2, signal.SIGINT: 0.2, signal.SIGKILL: 10.0}
        monkeypatch.setattr(server_process, "PATIENCE_S", patience)
        process = started(tmp_path, "trap '' TERM INT; echo ready; while :; do sleep 1; done")
        stop([process])
        assert not process.alive()


class TestRefusals:
    @pytest.mark.parametrize("name", ["prefect", "mlflow"])
    def test_a_taken_port_is_one_line_with_the_fix(self, machine: Machine, name: str) -> None:
        port = getattr(machine, f"{name}_port")
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            with pytest.raises(ServersError) as caught:
                up(machine, lambda _: None)
        message = str(caught.value)
        assert "\n" not in message
        assert f"port {port} is in use" in message
        assert f"(pid {os.getpid()})" in message
        assert f"KLEAR_{name.upper()}_PORT=" in message
        assert alive(machine) == {}

    def test_a_failed_start_leaves_nothing_running(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands = {
            "prefect": ["sh", "-c", "echo no database; exit 3"],
            "mlflow": ["sleep", "300"],
            "registration": ["sleep", "300"],
        }
        monkeypatch.setattr(servers, "server_command", lambda _, name: commands[name])
        begun: list[ServerProcess] = []
        original = servers.launch

        def remembered(*args: Any, **kwargs: Any) -> ServerProcess:
            begun.append(original(*args, **kwargs))
            return begun[-1]

        monkeypatch.setattr(servers, "launch", remembered)
        with pytest.raises(ServersError, match=r"prefect ended while starting(.|\n)*no database"):
            up(machine, lambda _: None)
        assert [p.name for p in begun] == ["prefect", "mlflow", "registration"]
        assert not any(p.alive() for p in begun)
        assert alive(machine) == {}

    def test_a_damaged_state_file_is_named(self, machine: Machine) -> None:
        machine.home.mkdir()
        machine.state_file.write_text("{not json")
        with pytest.raises(ServersError, match=r"servers\.json is damaged"):
            alive(machine)


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
    prefect, mlflow = free_ports()
    home = folder / "home"
    machine = Machine(home=home, store=home / "store", prefect_port=prefect, mlflow_port=mlflow)
    environment = {"HOME": str(folder), **machine.environment()}
    begun = klear(environment, "up")
    try:
        assert begun.returncode == 0, begun.stderr
        yield Klear(machine, environment, begun.stdout)
    finally:
        klear(environment, "down")


class TestRealServers:
    def test_both_servers_answer_and_their_addresses_are_printed(self, running: Klear) -> None:
        assert answers(f"{running.machine.prefect_api_url}/health")
        assert answers(f"{running.machine.mlflow_uri}/health")
        assert running.machine.prefect_url in running.said
        assert running.machine.mlflow_uri in running.said

    def test_every_profile_has_a_form_with_all_its_settings(self, running: Klear) -> None:
        deployments = {d["name"]: d for d in post(running.machine, "deployments/filter", {})}
        others = {f"tiny-{stage}" for stage in calls(load_profile("tiny"))} | {"ablation"}
        assert set(deployments) == set(profiles()) | others
        for name, deployment in deployments.items():
            if name in others:
                continue
            resolved = load_profile(name).model_dump(mode="json")
            assert deployment["parameters"]["settings"] == resolved
            assert deployment["enforce_parameter_schema"]
            assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"
            assert deployment["global_concurrency_limit"]["limit"] == 1

    def test_nothing_is_written_outside_of_home(self, running: Klear) -> None:
        beside = {p.name for p in running.machine.home.parent.iterdir()}
        assert beside.isdisjoint({".prefect", ".mlflow", "mlruns", "mlflow.db"})
        assert (running.machine.prefect_home / "prefect.db").exists()
        assert (running.machine.home / "mlflow" / "mlflow.db").exists()

    def test_up_again_changes_nothing(self, running: Klear) -> None:
        before = running.machine.state_file.read_text()
        again = running.run("up")
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith("already up")
        assert running.machine.state_file.read_text() == before

    def test_status_shows_the_servers(self, running: Klear) -> None:
        shown = running.run("status").stdout
        assert f"✓ prefect  {running.machine.prefect_url}" in shown
        assert f"✓ mlflow   {running.machine.mlflow_uri}" in shown
        assert "no runs yet" in shown
        assert "empty" in shown

    def test_another_home_on_these_ports_is_refused(self, running: Klear, tmp_path: Path) -> None:
        other = {**running.environment, "KLEAR_HOME": str(tmp_path / "other")}
        refused = klear(other, "up")
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        holder = alive(running.machine)["prefect"].pid
        assert f"port {running.machine.prefect_port} is in use" in line
        assert f"(pid {holder})" in line
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
        (orphan,) = post(
            running.machine, "flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}}
        )
        assert orphan["state_type"] == "CRASHED"

    def test_down_ends_them_all_and_can_be_repeated(self, running: Klear) -> None:
        ours = alive(running.machine)
        assert set(ours) == {"prefect", "mlflow", "worker"}
        ended = running.run("down")
        assert ended.returncode == 0, ended.stderr
        assert sorted(ended.stdout.splitlines()) == sorted(
            f"ended {name} (pid {process.pid})" for name, process in ours.items()
        )
        assert not any(process.alive() for process in ours.values())
        assert running.run("down").stdout == "nothing is running\n"
        assert registration_is_current(running.machine)  # a second `up` need not register again
