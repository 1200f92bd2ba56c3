"""Who is who among the processes of a run: by what they are to each other, not by a guess.

A process may end while it is looked at; then it has no role.
"""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from miniature import Attempt, Place
from processes import below

GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


def command(process: psutil.Process) -> list[str]:
    with suppress(*GONE):
        return process.cmdline()
    return []


def parent(process: psutil.Process) -> int | None:
    with suppress(*GONE):
        return process.ppid()
    return None


def flow(place: Place, attempt: Attempt) -> list[psutil.Process]:
    """The process that executes the flow: `klear run`, or the worker's engine."""
    if attempt.process is not None:
        with suppress(*GONE):
            return [psutil.Process(attempt.process.pid)]
        return []
    return [p for p in ours(place) if "prefect.engine" in " ".join(command(p))]


def child(place: Place, attempt: Attempt) -> list[psutil.Process]:
    """The stage's own process: it trains or generates, or computes a part."""
    tree = _tree(place, attempt)
    trains = [p for p in tree if command(p)[1:4] == ["-P", "-m", "training.launch.child"]]
    return trains or [p for p in tree if any("spawn_main" in word for word in command(p))]


def judge_worker(place: Place, attempt: Attempt) -> list[psutil.Process]:
    """Pebble's workers: forks of Python's fork server."""
    tree = _tree(place, attempt)
    found = {p.pid: p for p in tree if "multiprocessing.forkserver" in " ".join(command(p))}
    return [p for p in found.values() if parent(p) in found and _serves(p)]


def sandbox(place: Place, attempt: Attempt) -> list[psutil.Process]:
    """What a judge's worker has started: the sandbox around programs."""
    workers = [w.pid for w in judge_worker(place, attempt)]
    return [p for w in workers for p in below(w) if parent(p) == w]


def _serves(worker: psutil.Process) -> bool:
    """Whether it has started a sandbox: a worker for code, past its start."""
    return any(parent(p) == worker.pid for p in below(worker.pid))


def _tree(place: Place, attempt: Attempt) -> list[psutil.Process]:
    return [p for top in flow(place, attempt) for p in below(top.pid)]


def _server(name: str) -> Callable[[Place, Attempt], list[psutil.Process]]:
    def find(place: Place, _: Attempt) -> list[psutil.Process]:
        with suppress(*GONE, KeyError):
            return [psutil.Process(place.servers()[name])]
        return []

    return find


ROLES: dict[str, Callable[[Place, Attempt], list[psutil.Process]]] = {
    "flow": flow,
    "child": child,
    "judge worker": judge_worker,
    "sandbox": sandbox,
    "prefect": _server("prefect"),
    "mlflow": _server("mlflow"),
    "worker": _server("worker"),
}
SERVERS = ("prefect", "mlflow", "worker")


def kill(victim: psutil.Process) -> bool:
    """SIGKILL; False if there was nobody left to kill."""
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def ours(place: Place) -> list[psutil.Process]:
    """Living processes that have this place's KLEAR_HOME in their environment."""
    mark = f"KLEAR_HOME={place.home}".encode()
    return [p for p in psutil.process_iter() if _has(p.pid, mark)]


def of_runs(place: Place) -> list[psutil.Process]:
    """Those of them that belong to a run: neither servers nor what servers need."""
    servers = set()
    with suppress(FileNotFoundError):
        servers = {p for pid in place.servers().values() for p in (pid, *_pids(below(pid)))}
    return [p for p in ours(place) if p.pid not in servers and p.pid != os.getpid()]


def _pids(processes: Iterable[psutil.Process]) -> list[int]:
    return [p.pid for p in processes]


def _has(pid: int, mark: bytes) -> bool:
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return mark in environment and state not in "ZX"
    return False
