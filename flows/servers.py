"""`klear up` and `klear down`: a Prefect server, an MLflow server and a worker on this machine.

Everything they own lies below the home folder (databases, results, logs), `servers.json` there says
which processes are ours. `up` starts what is missing and leaves nothing of a failed start behind.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from configs.machine import Machine
from flows.prefect_api import (
    POOL,
    ServerError,
    answers,
    bury_orphans,
    create_pool,
    last_heartbeat,
)
from flows.registration import registration_command, registration_is_current
from flows.server_process import ServerProcess, launch, port_holder, port_is_taken, reap, stop

START_TIMEOUT_S = 180.0
Say = Callable[[str], None]


class ServersError(RuntimeError):
    """The servers could not be started; the message says what to do."""


def read_state(machine: Machine) -> list[ServerProcess]:
    """The processes the last `up` recorded, alive or not."""
    if not machine.state_file.exists():
        return []
    try:
        entries = json.loads(machine.state_file.read_text(encoding="utf-8"))
        return [ServerProcess.model_validate(entry) for entry in entries]
    except ValueError as error:
        raise ServersError(
            f"{machine.state_file} is damaged ({error}); end the servers by hand and delete it"
        ) from error


def alive(machine: Machine) -> dict[str, ServerProcess]:
    """The recorded processes that are running, by name."""
    return {p.name: p for p in read_state(machine) if p.alive()}


def are_up(machine: Machine) -> bool:
    """Whether both servers are ours and answer (another project's may sit on the same ports)."""
    running = alive(machine)
    return all(n in running and answers(url) for n, url in health_urls(machine).items())


def health_urls(machine: Machine) -> dict[str, str]:
    return {
        "prefect": f"{machine.prefect_api_url}/health",
        "mlflow": f"{machine.mlflow_uri}/health",
    }


def up(machine: Machine, say: Say = print) -> None:
    """Start what is missing; raises ServersError after ending all that this call started."""
    for folder in (machine.home, machine.prefect_home, machine.mlflow_artifacts, machine.logs):
        folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(machine):
        running = alive(machine)
        stop([p for p in read_state(machine) if p.name not in running])  # what they left behind
        begun: list[ServerProcess] = []
        since = time.monotonic()
        try:
            _start_missing(machine, running, begun, say)
        except BaseException as error:
            stop(begun)
            _write_state(machine, running.values())
            if isinstance(error, ServerError):
                raise ServersError(str(error)) from error
            raise
        names = ", ".join(p.name for p in begun)
        say(f"started {names} in {time.monotonic() - since:.0f} s" if names else "already up")
        say(f"Prefect  {machine.prefect_url}\nMLflow   {machine.mlflow_uri}")


def down(machine: Machine, say: Say = print) -> None:
    """End the recorded processes and nothing else; safe to repeat."""
    if not machine.home.exists():
        say("nothing is running")
        return
    with _one_at_a_time(machine):
        recorded = read_state(machine)
        running = [p for p in recorded if p.alive()]
        stop([p for p in recorded if p.name == "worker"])  # it needs the server to sign off
        if any(p.name == "prefect" for p in running):
            _bury(machine, say)
        stop([p for p in recorded if p.name != "worker"])
        _write_state(machine, [])
        for process in running:
            say(f"ended {process.name} (pid {process.pid})")
        if not running:
            say("nothing is running")


def _bury(machine: Machine, say: Say) -> None:
    """Best effort: `up` does it again before it starts a worker."""
    try:
        for name in bury_orphans(machine):
            say(f"ended the run {name}; a retry continues from there")
    except ServerError as error:
        say(f"unfinished runs stay marked as running until the next `klear up` ({error})")


def _start_missing(
    machine: Machine, running: dict[str, ServerProcess], begun: list[ServerProcess], say: Say
) -> None:
    _refuse_taken_ports(machine, running)

    def start(name: str) -> ServerProcess:
        process = launch(
            name,
            _COMMANDS[name](machine),
            environment=machine.environment(),
            log=machine.logs / f"{name}.log",
            cwd=machine.home,
            port=_ports(machine).get(name),
        )
        begun.append(process)
        _write_state(machine, [*running.values(), *begun])
        return process

    servers = {n: running.get(n) or start(n) for n in ("prefect", "mlflow")}
    registering = None
    if not registration_is_current(machine):
        registering = start("registration")
    if begun:
        say("starting the servers (their logs: " + str(machine.logs) + ")")
    _await_answer(machine, servers["prefect"])
    create_pool(machine)
    since = datetime.now(UTC)
    if "worker" not in running:
        bury_orphans(machine)
    worker = running.get("worker") or start("worker")
    _await_answer(machine, servers["mlflow"])
    if registering:
        _await_success(registering)
        begun.remove(registering)
        _write_state(machine, [*running.values(), *begun])
    if worker in begun:
        _await_worker(machine, worker, since)


def _refuse_taken_ports(machine: Machine, running: dict[str, ServerProcess]) -> None:
    for name, port in _ports(machine).items():
        if name not in running and port_is_taken(machine.host, port):
            variable = f"KLEAR_{name.upper()}_PORT"
            raise ServersError(
                f"port {port} is in use by {port_holder(port)}; choose another one: "
                f"{variable}={_free_port_near(machine, port)} klear up"
            )


def _free_port_near(machine: Machine, port: int) -> int:
    ours = set(_ports(machine).values())
    candidates = (p for p in range(port + 1, 65_536) if p not in ours)
    return next((p for p in candidates if not port_is_taken(machine.host, p)), port)


def _ports(machine: Machine) -> dict[str, int]:
    return {"prefect": machine.prefect_port, "mlflow": machine.mlflow_port}


def _await_answer(machine: Machine, server: ServerProcess) -> None:
    url = health_urls(machine)[server.name]
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(url):
        reap([server.pid])
        if not server.alive():
            raise ServersError(_ended(server.name, server))
        if time.monotonic() > deadline:
            raise ServersError(
                f"{server.name} gave no answer at {url} in {START_TIMEOUT_S:.0f} s; "
                f"see {server.log}"
            )
        time.sleep(0.1)


def _await_worker(machine: Machine, worker: ServerProcess, since: datetime) -> None:
    """Until it has signed on: before that, a run from the web form would wait in silence."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (last_heartbeat(machine) or since) <= since:
        reap([worker.pid])
        if not worker.alive():
            raise ServersError(_ended("worker", worker))
        if time.monotonic() > deadline:
            raise ServersError(f"the worker did not sign on; see {worker.log}")
        time.sleep(0.2)


def _await_success(process: ServerProcess) -> None:
    """Wait for a child that does one thing and ends."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
        if pid and status:
            raise ServersError(_ended(process.name, process))
        if pid:
            return
        time.sleep(0.1)
    raise ServersError(f"{process.name} did not end; see {process.log}")


def _ended(name: str, process: ServerProcess) -> str:
    return f"{name} ended while starting; {process.log} says:\n{process.log_tail()}"


def _prefect(machine: Machine) -> list[str]:
    """What `prefect server start --background` runs, without the command line around it."""
    app = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
    return [sys.executable, "-P", *app, "--host", machine.host, "--port", str(machine.prefect_port)]


def _mlflow(machine: Machine) -> list[str]:
    server = [sys.executable, "-P", "-m", "mlflow", "server", "--workers", "1"]
    server += ["--host", machine.host, "--port", str(machine.mlflow_port)]
    server += ["--backend-store-uri", machine.mlflow_database]
    return [*server, "--artifacts-destination", str(machine.mlflow_artifacts)]


def _worker(machine: Machine) -> list[str]:
    worker = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", POOL]
    return [*worker, "--type", "process", "--limit", str(machine.worker_limit)]


_COMMANDS: dict[str, Callable[[Machine], Sequence[str]]] = {
    "prefect": _prefect,
    "mlflow": _mlflow,
    "worker": _worker,
    "registration": lambda machine: registration_command(wait_s=START_TIMEOUT_S),
}


def _write_state(machine: Machine, processes: Iterable[ServerProcess]) -> None:
    entries = [p.model_dump(mode="json") for p in processes]
    partial = machine.state_file.with_suffix(".partial")
    partial.write_text(json.dumps(entries, indent=2), encoding="utf-8")
    os.replace(partial, machine.state_file)


@contextmanager
def _one_at_a_time(machine: Machine) -> Iterator[None]:
    path = Path(f"{machine.state_file}.lock")
    with path.open("w") as file:  # flock: the kernel lets go when the holder dies
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
