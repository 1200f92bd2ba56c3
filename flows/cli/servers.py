"""`klear up`, `down`, `doctor`, and `klear serve` for containers and systemd."""

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Literal

from configs.machine import Machine, load_machine
from flows.servers.commands import (
    DatabaseError,
    prepare,
    process_environment,
    registration_is_current,
    server_command,
)
from flows.servers.doctor import doctor
from flows.servers.prefect_api import answers, create_pool, refusal
from flows.servers.process import recorded, stop
from flows.servers.servers import START_TIMEOUT_S, ServersError, down, health_urls, up

DATABASE_WAIT_S = 60.0


def start() -> None:
    """Start Prefect, MLflow and a worker on this machine, with the web forms."""
    up(load_machine())


def end() -> None:
    """End what `klear up` started."""
    down(load_machine())


def check() -> int:
    """What would make a run fail: versions, sandbox, ports, disk, memory, GPU, store, cluster."""
    return doctor(load_machine())


class _Asked(BaseException):
    """Somebody wants us to end."""


def serve(name: Literal["prefect", "mlflow", "worker"], /) -> int:
    """One of them in the foreground. TERM and INT end it with everything it started: exit code 0,
    else that of what it ran."""
    machine = load_machine()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _ask)
    try:
        prepare(machine, name, DATABASE_WAIT_S)
        if name == "worker":
            _make_ready(machine)
        return _foreground(machine, name)
    except DatabaseError as error:
        raise ServersError(str(error)) from error
    except _Asked:
        return 0


def _ask(_: int, __: FrameType | None) -> None:
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, signal.SIG_IGN)  # once is enough: what follows takes its time
    raise _Asked


def _make_ready(machine: Machine) -> None:
    """What the worker needs at the Prefect server: an answer, the pool, the forms."""
    url, deadline = health_urls(machine)["prefect"], time.monotonic() + START_TIMEOUT_S
    while not answers(url):
        if time.monotonic() > deadline:
            raise ServersError(f"Prefect gave no answer at {url} in {START_TIMEOUT_S:.0f} s")
        time.sleep(0.5)
    if refused := refusal(machine, "prefect"):
        raise ServersError(refused)
    create_pool(machine)
    if not registration_is_current(machine) and _foreground(machine, "registration"):
        raise ServersError("the web forms could not be registered; the lines above say why")


def _foreground(machine: Machine, name: str) -> int:
    """Run it to its end; whatever interrupts us ends all of it."""
    process = subprocess.Popen(
        server_command(machine, name),
        stdin=subprocess.DEVNULL,
        env=process_environment(machine, name),
        cwd=machine.home,
        start_new_session=True,  # Ctrl-C reaches us alone, and we end it in order
    )
    served = recorded(name, process.pid, machine.logs / f"{name}.log")
    try:
        code = process.wait()
    finally:
        stop([served])  # also what it left in its session
    print(f"{name} ended with exit code {code}", file=sys.stderr, flush=True)
    return code if code >= 0 else os.EX_SOFTWARE
