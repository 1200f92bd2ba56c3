"""The GPUs of this machine, for one stage at a time: others queue, a dead holder blocks nobody.

A slot is an flock on a file. The process tree that computes has the file open, so the slot is
taken exactly as long as something may be on the GPU, whoever is killed and whatever server is
away. Prefect's own limit is not used: its lease lapses while its server is down, and is freed
before the processes of a killed run have left the GPU.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from tasks.stage.progress import report

POLL_S = 1.0
WAITING = "waiting for the GPU"
_slots: ContextVar[tuple[Path, ...]] = ContextVar("klear_gpu_slots", default=())


@contextmanager
def sharing_gpus(folder: Path, slots: int) -> Iterator[None]:
    """Jobs started inside the block take one of `slots`; the lock files lie in `folder`.

    0 slots: nobody waits for anybody.
    """
    token = _slots.set(tuple(folder / f"gpu-{number}.lock" for number in range(slots)))
    try:
        yield
    finally:
        _slots.reset(token)


@contextmanager
def gpu_slot() -> Iterator[list[int]]:
    """Hold a slot; yields the descriptors that the computing process must keep open."""
    if not _slots.get():
        yield []
        return
    while (file := _any_free(_slots.get())) is None:
        report(0, 0, WAITING)
        time.sleep(POLL_S)
    with file:
        yield [file.fileno()]


def _any_free(slots: tuple[Path, ...]) -> TextIO | None:
    slots[0].parent.mkdir(parents=True, exist_ok=True)
    for path in slots:
        file = path.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return file
    return None
