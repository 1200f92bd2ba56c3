"""The watchdog of a stage: no progress for some minutes fails it, with what it was doing.

Every stage runs in a thread. Who started it (`run_graph` in tasks/stage/beside.py) asks for the
overdue ones and interrupts them.
"""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TAIL_LINES = 20
FRAMES = 6
Beat = Callable[[str], None]


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


class Interrupted(KeyboardInterrupt):
    """Raised in the thread of a stage: it stalled, or the run ends. No `except Exception` takes it
    for a failure of its own, and Ray passes on no other kind."""


@dataclass
class _Watch:
    """One stage under watch."""

    stage: str
    minutes: float
    log: Path | None
    note: str = ""
    due: float = math.inf
    error: Stalled | None = None

    def beat(self, note: str) -> None:
        self.note, self.due = note, time.monotonic() + self.minutes * 60


_watches: dict[int, _Watch] = {}  # by thread


@contextmanager
def watched(stage: str, minutes: float, log: Path | None = None) -> Iterator[Beat]:
    """Fail the block with Stalled unless the yielded function is called every so many minutes.

    The end of `log` goes into the error.
    """
    thread = threading.get_ident()
    watch = _watches[thread] = _Watch(stage, minutes, log)
    watch.beat("")
    try:
        yield watch.beat
    except (Exception, KeyboardInterrupt) as error:  # also what cleaning up raised
        if watch.error:
            raise watch.error from error
        raise
    finally:
        del _watches[thread]


def stalled(thread: int) -> Stalled | None:
    """The error of the stage in this thread, where it has made no progress for too long."""
    watch = _watches.get(thread)
    if watch and time.monotonic() >= watch.due:
        evidence = _evidence(watch.log, thread)
        watch.error = Stalled(
            f"{watch.stage} made no progress for {watch.minutes:g} minutes "
            f"(last: {watch.note or 'nothing'}), so it was ended. "
            f"A slow stage needs a larger stall_minutes{evidence}"
        )
        return watch.error
    return None


def _evidence(log: Path | None, thread: int) -> str:
    """The end of the log, and without one the lines of code that the thread is at."""
    if log and log.exists() and log.stat().st_size:
        return log_tail(log)
    stack = traceback.format_stack(sys._current_frames().get(thread))[-FRAMES:]
    return "".join(["; it was at:\n", *stack]).rstrip()


def log_tail(log: Path, start: int = 0) -> str:
    """The end of an error message: where the log is, and its last lines after byte `start`."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 65_536))
        lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    return "\n".join([f"; the log is {log}, its last lines:", *lines]) if lines else f"; see {log}"
