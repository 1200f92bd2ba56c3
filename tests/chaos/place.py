"""The small home of the kills, its runs, and who is who among their processes.

A role follows from what processes are to each other, not from a guess. A process may end while it
is looked at; then it has none.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from home import KLEAR, ROOT, Home, eventually
from processes import below, commanded

GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
SERVERS = ("prefect", "mlflow", "worker")
POLL_S = 0.004  # some stages take hundredths of a second


class Attempt(NamedTuple):
    """A `klear run` under way."""

    log: Path
    until: str
    """The stage after which it ends."""
    process: "subprocess.Popen[bytes]"
    place: "Place"

    def text(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace")

    def is_running(self, stage: str) -> bool:
        """Whether it has begun to compute the stage (one that is cached never begins)."""
        begun = rf"^  {stage} +(?!waiting|another)\S"
        return re.search(begun, self.text(), re.MULTILINE) is not None

    def is_over(self, stage: str) -> bool:
        return re.search(rf"^([✓✗…] |= .*\b){stage}\b", self.text(), re.MULTILINE) is not None

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> None:
        assert eventually(self.has_ended), self.text()[-2000:]


class Place(Home):
    """A home whose store is apart, with one thread a process."""

    def __init__(self, folder: Path) -> None:
        (folder / "tmp").mkdir(exist_ok=True)
        super().__init__(
            folder,
            KLEAR_STORE=str(folder / "store"),
            KLEAR_WORKER_LIMIT="2",
            TMPDIR=str(folder / "tmp"),
            OMP_NUM_THREADS="1",
            PYTHONUNBUFFERED="1",
            NO_PROXY="127.0.0.1",
        )
        self._attempts = 0

    def attempt(self, *words: str, until: str = "report") -> Attempt:
        """`klear run` in the background; its log is read while it goes on."""
        self._attempts += 1
        log = self.folder / f"run-{self._attempts:03d}.log"
        command = [*KLEAR, "run", str(self.profile), "--until", until, *words]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Attempt(log, until, process, self)

    def processes_of_runs(self) -> list[psutil.Process]:
        """Living processes of this home that are neither servers nor what servers need."""
        servers, processes = {os.getpid()}, []
        for pid in self.servers().values():
            servers |= {pid, *(p.pid for p in below(pid))}
        for pid in set(self.of_this_home("")) - servers:
            with suppress(*GONE):
                processes.append(psutil.Process(pid))
        return processes


@contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    """A place whose servers run inside of the block."""
    place = Place(folder)
    place.klear("up")
    try:
        yield place
    finally:
        place.command("down")


def flow(attempt: Attempt) -> list[psutil.Process]:
    """The process that executes the flow: `klear run`."""
    with suppress(*GONE):
        return [psutil.Process(attempt.process.pid)]
    return []


def child(attempt: Attempt) -> list[psutil.Process]:
    """The process of a stage."""
    return [p for top in flow(attempt) for p in _forked(top)]


def job(attempt: Attempt) -> list[psutil.Process]:
    """What trains or generates, below the process of a stage."""
    tree = [p for top in flow(attempt) for p in below(top.pid)]
    return [p for p in tree if _words(p)[1:4] == ["-P", "-m", "klear.training.launch.run_job"]]


def judge_worker(attempt: Attempt) -> list[psutil.Process]:
    """Pebble's workers, of a stage or of the job of RL, once they have started a sandbox."""
    judges = [*child(attempt), *job(attempt)]
    return [p for judge in judges for p in _forked(judge) if _children(p)]


def _forked(process: psutil.Process) -> list[psutil.Process]:
    """What Python's fork server below the process has forked."""
    servers = commanded("multiprocessing.forkserver", _children(process))
    return [forked for server in servers for forked in _children(server)]


def sandbox(attempt: Attempt) -> list[psutil.Process]:
    """What a judge's worker has started: the sandbox around programs."""
    return [p for worker in judge_worker(attempt) for p in _children(worker)]


def _server(name: str) -> Callable[[Attempt], list[psutil.Process]]:
    def find(attempt: Attempt) -> list[psutil.Process]:
        with suppress(*GONE, KeyError):
            return [psutil.Process(attempt.place.servers()[name])]
        return []

    return find


ROLES: dict[str, Callable[[Attempt], list[psutil.Process]]] = {
    "flow": flow,
    "child": child,
    "job": job,
    "judge worker": judge_worker,
    "sandbox": sandbox,
    **{name: _server(name) for name in SERVERS},
}


def kill(victim: psutil.Process) -> bool:
    """SIGKILL; False if there was nobody left to kill."""
    with suppress(psutil.NoSuchProcess):
        victim.kill()
        return True
    return False


def reach(attempt: Attempt, stage: str, seconds: float) -> bool:
    """Wait until the stage has run for so long; False when it or the run is over before that."""
    since, looks = None, 0
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        if since is None and attempt.is_running(stage):
            since = time.monotonic()
        if since is not None and time.monotonic() - since >= seconds:
            return not attempt.is_over(stage)
        looks += 1
        if looks % 16 == 0 and (attempt.is_over(stage) or attempt.has_ended()):
            return False
        time.sleep(POLL_S)
    raise AssertionError(f"{stage} did not begin; the run says:\n{attempt.text()[-2000:]}")


def _words(process: psutil.Process) -> list[str]:
    with suppress(*GONE):
        return process.cmdline()
    return []


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(*GONE):
        return process.children()
    return []
