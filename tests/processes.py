"""Processes: what one says, those below this one or another, any of which may end while one looks
at it; free ports."""

import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

PATIENCE_S = 60.0


def output_of(*command: object, **options: Any) -> str:
    """What a command prints that must succeed."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def below(pid: int | None = None) -> list[psutil.Process]:
    """Everything below process `pid` (default: this one) that has not been reaped."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def called(prefix: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those whose program's name begins with `prefix`."""
    matching = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            matching += [process] if process.name().startswith(prefix) else []
    return matching


def commanded(word: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have `word` on their command line."""
    matching = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            matching += [process] if word in " ".join(process.cmdline()) else []
    return matching


def left(processes: Iterable[psutil.Process], seconds: float = PATIENCE_S) -> list[psutil.Process]:
    """Those that still run after some patience. A zombie has ended, only nobody has asked."""
    _, alive = psutil.wait_procs(list(processes), timeout=0)
    _, alive = psutil.wait_procs([p for p in alive if _runs(p)], timeout=seconds)
    return [p for p in alive if _runs(p)]


def at_least(count: int, find: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    """What `find` finds as soon as that are so many. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while len(items := find()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(items)} processes, not {count}: {items}")
        time.sleep(0.05)
    return items


def eventually(
    condition: Callable[[], object], seconds: float = 900.0, pause_s: float = 0.1
) -> bool:
    """Whether it holds now, or soon; the machine may do other things too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause_s)
    return bool(condition())


@contextmanager
def killing(
    find: Callable[[], Iterable[psutil.Process]], pause_s: Callable[[], float] = lambda: 0.1
) -> Iterator[None]:
    """SIGKILL to all that `find` finds, again and again until the block ends."""
    over = threading.Event()

    def keep_killing() -> None:
        while not over.wait(pause_s()):
            for victim in find():
                with suppress(psutil.NoSuchProcess):
                    victim.kill()

    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


def free_ports(count: int) -> list[int]:
    """Below those that the kernel hands out, so that nobody gets them while a server is dead."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
