"""One long-running process of ours: started apart from the terminal, recognised later, ended whole.

A pid alone is no identity (pids are reused, pid files outlive reboots), so a record also holds when
the process started.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from tasks.stage.supervise import is_alive

PATIENCE_S = {signal.SIGTERM: 6.0, signal.SIGINT: 4.0, signal.SIGKILL: 5.0}
CLOCK_S = 60.0  # by which the clock may be set meanwhile: it moves the start of all processes
TAIL_LINES = 8


class ServerProcess(BaseModel):
    """What is needed to find a process again and to be sure that it is the same one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pid: int
    started: float
    """Unix seconds."""
    log: Path
    settings: str = ""
    """What it was started with, as a digest; '' if nobody cares."""

    def alive(self) -> bool:
        return self.find() is not None

    def find(self) -> psutil.Process | None:
        """The living process; None if it ended, or its pid is another's by now."""
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.pid)
            if abs(found.create_time() - self.started) < CLOCK_S and is_alive(found):
                return found
        return None

    def log_tail(self) -> str:
        """The last lines it wrote, for an error message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])


def launch(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    cwd: Path,
    settings: str = "",
) -> ServerProcess:
    """Start a process in its own session; `environment` is all that it sees, `log` is appended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
    process.returncode = 0  # it outlives us on purpose: no "still running" warning
    return recorded(name, process.pid, log, settings)


def recorded(name: str, pid: int, log: Path, settings: str = "") -> ServerProcess:
    """A child that was started just now."""
    started = psutil.Process(pid).create_time()  # of a zombie too
    return ServerProcess(name=name, pid=pid, started=started, log=log, settings=settings)


def stop(processes: Sequence[ServerProcess]) -> None:
    """End each process with its session and its descendants: TERM, then INT, then KILL.

    Two signals because a Prefect worker only forwards the first one and lives on.
    """
    members: set[psutil.Process] = set()
    for sign, patience in PATIENCE_S.items():
        members |= {member for process in processes for member in _members(process)}
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(sign)
        _, alive = psutil.wait_procs(members, timeout=patience)
        members = set(filter(is_alive, alive))  # what is left of others' children is a zombie
        if not members:
            return


def _members(process: ServerProcess) -> set[psutil.Process]:
    """The process, its descendants and its session, also when the process itself is gone.

    While a session has members the kernel gives its number to nobody else.
    """
    found = process.find()
    is_anothers = found is None and psutil.pid_exists(process.pid) and not _is_zombie(process.pid)
    if is_anothers or process.started < psutil.boot_time() - CLOCK_S:
        return set()
    below = found.children(recursive=True) if found else []
    session = {p for p in psutil.process_iter() if _session(p.pid) == process.pid}
    return {p for p in (*session, *below) if is_alive(p)}


def _is_zombie(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return False


def _session(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def runs_of(worker: ServerProcess) -> int:
    """Runs that a worker executes now, one process each: its server may be elsewhere by now."""
    count = 0
    process = worker.find()
    for child in process.children() if process else ():
        with suppress(psutil.Error):
            count += "prefect" in " ".join(child.cmdline())
    return count


def port_holder(host: str, port: int) -> str:
    """Who has a port, as far as the kernel lets us see it; '' if it is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return ""
    with suppress(psutil.Error):
        for found in psutil.net_connections(kind="tcp"):
            listens = found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,)
            if listens and found.pid:
                return f"{psutil.Process(found.pid).name()} (pid {found.pid})"
    return "another process"
