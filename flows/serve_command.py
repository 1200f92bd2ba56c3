"""`klear serve prefect|mlflow|worker`: one of them in the foreground, for containers and systemd.

Its output is ours; TERM and INT end it with everything it started, and then the exit code is 0.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from configs.machine import Machine, load_machine
from flows.database import DatabaseError
from flows.prefect_api import answers, create_pool, refusal
from flows.registration import registration_is_current
from flows.server_commands import SERVED, prepare, process_environment, server_command
from flows.server_process import ServerProcess, start_mark, stop
from flows.servers import START_TIMEOUT_S, ServersError, health_urls

DATABASE_WAIT_S = 60.0


class _Asked(BaseException):
    """Somebody wants us to end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=SERVED)


def run(arguments: argparse.Namespace) -> int:
    """0 when it was asked to end, else the exit code of what it ran."""
    machine = load_machine()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, _ask)
    try:
        prepare(machine, arguments.name, DATABASE_WAIT_S)
        if arguments.name == "worker":
            _make_ready(machine)
        return _foreground(machine, arguments.name)
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
    url = health_urls(machine)["prefect"]
    deadline = time.monotonic() + START_TIMEOUT_S
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
    log = machine.logs / f"{name}.log"
    served = ServerProcess(
        name=name, pid=process.pid, started=start_mark(process.pid) or "gone", log=log
    )
    try:
        code = process.wait()
    except BaseException:
        stop([served])
        raise
    stop([served])  # what it left in its session
    print(f"{name} ended with exit code {code}", file=sys.stderr, flush=True)
    return code if code >= 0 else os.EX_SOFTWARE
