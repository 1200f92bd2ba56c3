"""The GPUs of this machine, for one stage at a time: others queue, a dead holder blocks nobody.

Two locks with one meaning. The Prefect concurrency limit `klear-gpu` is what people see and may
change while runs go on; its lease lapses a minute after its holder died. The flock under it is
what holds: the process tree that computes has the file open, so the slot is taken exactly as long
as something may be on the GPU, also while Prefect's server is away.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tasks.progress import report

POLL_S = 1.0
WAITING = "waiting for the GPU"


@dataclass(frozen=True)
class _Shared:
    folder: Path
    slots: int


_shared: ContextVar[_Shared | None] = ContextVar("klear_gpu", default=None)


@contextmanager
def sharing_gpus(folder: Path, slots: int) -> Iterator[None]:
    """Jobs started inside the block take one of `slots`; the lock files lie in `folder`.

    0 slots: nobody waits for anybody.
    """
    token = _shared.set(_Shared(folder, slots) if slots else None)
    try:
        yield
    finally:
        _shared.reset(token)


@contextmanager
def gpu_slot() -> Iterator[list[int]]:
    """Hold a slot; yields the descriptors that the computing process must keep open."""
    shared = _shared.get()
    if shared is None:
        yield []
        return
    from tasks.gpu_lease import leased  # with Prefect, which a plain `klear eval` does not load

    with leased(_wait):
        file = _any_free(shared)
        while file is None:
            _wait()
            file = _any_free(shared)
        with file:
            yield [file.fileno()]


def _wait() -> None:
    report(0, 0, WAITING)
    time.sleep(POLL_S)


def _any_free(shared: _Shared) -> TextIO | None:
    shared.folder.mkdir(parents=True, exist_ok=True)
    for number in range(shared.slots):
        file = (shared.folder / f"gpu-{number}.lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return file
    return None
