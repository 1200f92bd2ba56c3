"""`klear up`, `klear down` and `klear serve`: a Prefect server, an MLflow server and a worker.

Everything they own lies below the home folder (databases unless they are in Postgres, results,
logs); `servers.json` there says which processes `klear up` started. It starts what is missing and
leaves nothing of a failed start behind. A server whose address is set (KLEAR_PREFECT_URL,
KLEAR_MLFLOW_URL) is somebody else's to start.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from pydantic import TypeAdapter

from klear.configs.files import locked
from klear.configs.machine import Machine, load_machine
from klear.flows.servers.prefect_api import (
    ServersError,
    answers,
    crash_orphans,
    create_pool,
    refusal,
)
from klear.flows.servers.processes import (
    ServerProcess,
    register_forms,
    settings_digest,
    start,
    stop,
)
from klear.tasks.stage.graph import log_tail

START_TIMEOUT_S = 300.0
TAG = "klear"
_STATE = TypeAdapter(list[ServerProcess])


def read_state(machine: Machine) -> list[ServerProcess]:
    """The processes the last `up` recorded, alive or not."""
    path = machine.state_file
    return _STATE.validate_json(path.read_bytes()) if path.exists() else []


def _write_state(machine: Machine, processes: Iterable[ServerProcess]) -> None:
    partial = machine.state_file.with_suffix(".partial")
    partial.touch(mode=0o600)  # digests of settings with passwords are nobody else's business
    partial.write_bytes(_STATE.dump_json(list(processes), indent=2))
    partial.replace(machine.state_file)


def alive(machine: Machine) -> dict[str, ServerProcess]:
    """The recorded processes that are running, by name."""
    return {p.name: p for p in read_state(machine) if p.alive()}


def servers_here(machine: Machine) -> dict[str, int]:
    """Those that `klear up` starts, and their ports."""
    ports = {"prefect": machine.prefect_port, "mlflow": machine.mlflow_port}
    return {name: port for name, port in ports.items() if machine.is_here(name)}


def health_urls(machine: Machine) -> dict[str, str]:
    bases = {"prefect": machine.prefect_api_url, "mlflow": machine.mlflow_url}
    return {name: f"{base}/health" for name, base in bases.items()}


def why_down(machine: Machine) -> str:
    """Why a run cannot use both servers, in lines; '' if it can. One that answers at our address
    may be another project's."""
    if servers_here(machine).keys() - alive(machine):
        return "the servers are not up: run `klear up` first"
    return "\n".join(filter(None, (refusal(machine, n) for n in health_urls(machine))))


def port_trouble(machine: Machine, name: str) -> str:
    """Why a server that `klear up` starts cannot have its port; nothing if it can."""
    port = servers_here(machine)[name]
    family = socket.AF_INET6 if ":" in machine.host else socket.AF_INET
    with suppress(OSError):
        socket.create_server((machine.host, port), family=family).close()
        return ""
    return f"port {port} is in use: set KLEAR_{name.upper()}_PORT to a free one"


def up() -> None:
    """Start Prefect, MLflow and a worker on this machine, with the web forms. Raises ServersError
    after ending all that this call started."""
    machine = load_machine()
    machine.home.mkdir(parents=True, exist_ok=True)
    with locked(Path(f"{machine.state_file}.lock")):
        running = alive(machine)
        outdated = [n for n, p in running.items() if p.settings != settings_digest(machine, n)]
        if outdated:
            names = ", ".join(outdated)
            raise ServersError(f"settings have changed since {names} started: first `klear down`")
        stop([p for p in read_state(machine) if p.name not in running])  # what they left behind
        begun: dict[str, ServerProcess] = {}
        since = time.monotonic()
        try:
            _start_missing(machine, running, begun)
        except BaseException:
            stop(list(begun.values()))
            _write_state(machine, running.values())
            raise
        took = f"started {', '.join(begun)} in {time.monotonic() - since:.0f} s"
        print(took if begun else "already up")
        print(f"Prefect  {machine.prefect_url}\nMLflow   {machine.mlflow_url}")


def _start_missing(
    machine: Machine, running: dict[str, ServerProcess], begun: dict[str, ServerProcess]
) -> None:
    """Both servers start at once, the worker and the registration of the forms behind Prefect."""

    def log_of(name: str) -> Path:
        return machine.logs / f"{name}.log"

    def begin(name: str) -> None:
        begun[name] = start(machine, name, log_of(name))
        _write_state(machine, [*running.values(), *begun.values()])

    def await_server(name: str) -> None:
        url, deadline = health_urls(machine)[name], time.monotonic() + START_TIMEOUT_S
        while name in begun and not answers(url) and time.monotonic() < deadline:
            if not begun[name].alive():
                raise ServersError(f"{name} ended while starting{log_tail(log_of(name))}")
            time.sleep(0.1)
        if refused := refusal(machine, name):
            raise ServersError(refused)

    missing = [name for name in servers_here(machine) if name not in running]
    if taken := next(filter(None, (port_trouble(machine, name) for name in missing)), ""):
        raise ServersError(taken)
    for name in missing:
        begin(name)
    if begun:
        print(f"starting the servers (their logs: {machine.logs})")
    await_server("prefect")
    create_pool(machine)
    if "worker" not in running:
        if "prefect" in servers_here(machine):
            crash_orphans(machine)
        begin("worker")
    register_forms(machine)
    await_server("mlflow")
    if "worker" in begun and not begun["worker"].alive():
        raise ServersError(f"worker ended while starting{log_tail(log_of('worker'))}")


def down() -> None:
    """End what `klear up` started and nothing else; safe to repeat."""
    machine = load_machine()
    if not machine.state_file.exists():
        print("nothing is running")
        return
    with locked(Path(f"{machine.state_file}.lock")):
        recorded, running = read_state(machine), alive(machine)
        stop([p for p in recorded if p.name == "worker"])  # it needs the server to sign off
        stop([p for p in recorded if p.name != "worker"])
        _write_state(machine, [])
    for process in running.values():
        print(f"ended {process.name} (pid {process.pid})")
    if not running:
        print("nothing is running")


def _end(_: int, __: FrameType | None) -> None:
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)  # once is enough: what follows takes its time
    raise SystemExit(0)


def serve(name: Literal["prefect", "mlflow", "worker"], /) -> int:
    """One of them in the foreground, for containers and systemd. TERM and INT end it with
    everything it started: exit code 0, else that of what it ran."""
    machine = load_machine()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _end)
    if name == "worker":
        url, deadline = health_urls(machine)["prefect"], time.monotonic() + START_TIMEOUT_S
        while not answers(url) and time.monotonic() < deadline:
            time.sleep(0.5)
        if refused := refusal(machine, "prefect"):
            raise ServersError(refused)
        create_pool(machine)
        register_forms(machine)
    process = start(machine, name)  # in a session of its own: Ctrl-C reaches us alone
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    finally:
        stop([process])
    print(f"{name} ended with exit code {code}", file=sys.stderr, flush=True)
    return code if code >= 0 else os.EX_SOFTWARE
