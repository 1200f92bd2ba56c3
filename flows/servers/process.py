"""One long-running process of ours: started apart from the terminal, recognised later, ended whole.

A pid alone is no identity (pids are reused, pid files outlive reboots), so every process that we
start, and all that it starts, carries a mark of its own in its environment.
"""

import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from tasks.stage.supervise import descendants, is_alive

MARK = "KLEAR_SERVER_MARK"
PATIENCE_S = {signal.SIGTERM: 6.0, signal.SIGINT: 4.0, signal.SIGKILL: 5.0}
TAIL_LINES = 8
TERMINAL = Path()


class ServerProcess(BaseModel):
    """What is needed to find a process again and to be sure that it is the same one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    pid: int
    mark: str
    log: Path
    settings: str = ""
    """What it was started with, as a digest; '' if nobody cares."""

    def alive(self) -> bool:
        with suppress(psutil.Error):
            return psutil.Process(self.pid).environ().get(MARK) == self.mark
        return False

    def log_tail(self) -> str:
        """The last lines it wrote, for an error message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])

    def family(self) -> set[psutil.Process]:
        """It and all that it started, also when it is gone itself."""
        found: set[psutil.Process] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it ended, or is another user's
                if process.environ().get(MARK) == self.mark:
                    found |= {process, *descendants(process.pid)}
        return {process for process in found if is_alive(process)}


def launch(
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path,
    log: Path = TERMINAL,
    settings: str = "",
) -> ServerProcess:
    """Start a process in its own session; `environment` is all that it sees, `log` is appended.

    Without a log it writes where we do.
    """
    mark = uuid.uuid4().hex
    with nullcontext() if log == TERMINAL else log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file and subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env={**environment, MARK: mark},
        )
    process.returncode = 0  # it outlives us on purpose: no "still running" warning
    server = ServerProcess(name=name, pid=process.pid, mark=mark, log=log, settings=settings)
    while not server.alive() and is_alive(psutil.Process(server.pid)):
        time.sleep(0.001)  # its environment cannot be read until exec is done
    return server


def stop(processes: Sequence[ServerProcess]) -> None:
    """End each process with all that it started: TERM, then INT, then KILL.

    Two signals because a Prefect worker only forwards the first one and lives on.
    """
    family: set[psutil.Process] = set()
    for sign, patience in PATIENCE_S.items():
        family |= {member for process in processes for member in process.family()}
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(sign)
        _, alive = psutil.wait_procs(family, timeout=patience)
        family = set(filter(is_alive, alive))  # what is left of others' children is a zombie
        if not family:
            return


def port_holder(host: str, port: int) -> str:
    """Who has a port, as far as the kernel lets us see it; '' if it is free."""
    with suppress(OSError):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
        return ""
    with suppress(psutil.Error):
        for found in psutil.net_connections(kind="tcp"):
            listens = found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,)
            if listens and found.pid:
                return f"{psutil.Process(found.pid).name()} (pid {found.pid})"
    return "another process"
