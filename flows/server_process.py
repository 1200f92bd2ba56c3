"""One long-running process of ours: started apart from the terminal, recognised later, ended whole.

A pid alone is no identity (pids are reused, pid files outlive reboots), so a record also holds when
the process started: boot id and clock ticks since boot, both from the kernel.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.supervise import all_processes, descendants, process_state

PATIENCE_S = {signal.SIGTERM: 6.0, signal.SIGINT: 4.0, signal.SIGKILL: 5.0}


class ServerProcess(BaseModel):
    """What is needed to find a process again and to be sure that it is the same one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pid: int
    started: str
    log: Path
    port: int | None = None
    settings: str = ""
    """What it was started with, as a digest; '' if nobody cares."""

    def alive(self) -> bool:
        return start_mark(self.pid) == self.started

    def log_tail(self, lines: int = 8) -> str:
        """The last lines it wrote, for an error message."""
        if not self.log.exists():
            return ""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])


def runs_of(worker: ServerProcess) -> int:
    """Runs that a worker executes now, one process each: its server may be elsewhere by now."""
    children = [pid for pid in descendants(worker.pid) if _parent(pid) == worker.pid]
    return sum("prefect" in _command(pid) for pid in children)


def _parent(pid: int) -> int | None:
    found = process_state(pid)
    return found.parent if found else None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def start_mark(pid: int) -> str | None:
    """Boot id and start tick of a living process; None if there is none (a zombie is none)."""
    found = process_state(pid)
    if found is None or found.state in "ZX":
        return None
    return f"{_boot_id()}:{found.start_ticks}"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def launch(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    cwd: Path,
    port: int | None = None,
    settings: str = "",
    inherit: bool = True,
) -> ServerProcess:
    """Start a process in its own session, output appended to `log`.

    Without `inherit`, `environment` is all that it sees.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, **environment} if inherit else dict(environment),
        )
    mark = start_mark(process.pid)
    process.returncode = 0  # it outlives us on purpose: no "still running" warning
    return ServerProcess(
        name=name, pid=process.pid, started=mark or "gone", log=log, port=port, settings=settings
    )


def stop(processes: Sequence[ServerProcess]) -> None:
    """End each process with its session and its descendants: TERM, then INT, then KILL.

    Two signals because a Prefect worker only forwards the first one and lives on.
    """
    marks: dict[int, str] = {}
    for sign, patience in PATIENCE_S.items():
        for process in processes:
            marks |= _members(process)
        for pid, mark in marks.items():
            if start_mark(pid) == mark:
                _send(pid, sign)
        deadline = time.monotonic() + patience
        while any(start_mark(pid) == mark for pid, mark in marks.items()):
            if time.monotonic() > deadline:
                break
            reap([p.pid for p in processes])
            time.sleep(0.05)
        else:
            return


def _members(process: ServerProcess) -> dict[int, str]:
    """Start marks of the process, its descendants and its session.

    While a session has members the kernel gives its number to nobody else, so they are ours even
    when the process that began it is gone; unless the machine was started anew since.
    """
    now = start_mark(process.pid)
    same_boot = process.started.startswith(f"{_boot_id()}:")
    if not same_boot or now not in (process.started, None):
        return {}
    session = [pid for pid, p in all_processes().items() if p.session == process.pid]
    below = descendants(process.pid) if now else []
    marks = {pid: start_mark(pid) for pid in (*session, *below)}
    return {pid: mark for pid, mark in marks.items() if mark}


def _send(pid: int, sign: signal.Signals) -> None:
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        return


def reap(pids: Sequence[int]) -> None:
    """Collect ended children, so that they do not stay as zombies while we live."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def port_is_taken(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def port_holder(port: int) -> str:
    """`python (pid 12)` where the kernel lets us see it, else `another process`."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return "another process"
    return "another process"
