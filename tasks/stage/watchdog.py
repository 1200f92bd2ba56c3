"""The watchdog of a stage: no progress for some minutes fails it, with what it was doing.

The main thread is interrupted by a signal, for only that ends a blocking call; and again after the
same time, should whatever clears up hang as well. Any other thread is watched by who started it
(`tasks/stage/beside.py`), which asks for the overdue ones.
"""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

TAIL_LINES = 20
FRAMES = 6
Beat = Callable[[str], None]


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


class _Watch:
    """One stage under watch in the current thread."""

    def __init__(self, stage: str, minutes: float, log: Path | None) -> None:
        self.stage, self.minutes, self.log = stage, minutes, log
        self.in_main = threading.current_thread() is threading.main_thread()
        self.why = ""  # the block was interrupted, unless it went on
        self.beat("")

    def beat(self, note: str) -> None:
        self.note, self.why = note, ""
        self.due = time.monotonic() + self.minutes * 60
        if self.in_main:
            signal.setitimer(signal.ITIMER_REAL, self.minutes * 60, self.minutes * 60)

    def expire(self, frame: FrameType | None) -> None:
        self.due = time.monotonic() + self.minutes * 60
        self.why = self.why or (
            f"{self.stage} made no progress for {self.minutes:g} minutes "
            f"(last: {self.note or 'nothing'}), so it was ended. "
            f"A slow stage needs a larger stall_minutes{_evidence(self.log, frame)}"
        )

    def interrupt(self, _: int, frame: FrameType | None) -> None:
        self.expire(frame)
        # No `except Exception` takes it for a failure of its own, and Ray passes on no other kind.
        raise KeyboardInterrupt(self.why)


_in_threads: dict[int, _Watch] = {}


@contextmanager
def watched(stage: str, minutes: float | None, log: Path | None = None) -> Iterator[Beat]:
    """Fail the block with Stalled unless the yielded function is called every so many minutes.

    None: no watch. The end of `log` goes into the error.
    """
    if minutes is None:
        yield lambda _: None
        return
    watch, thread = _Watch(stage, minutes, log), threading.get_ident()
    if watch.in_main:
        signal.signal(signal.SIGALRM, watch.interrupt)
    else:
        _in_threads[thread] = watch
    try:
        yield watch.beat
    except (Exception, KeyboardInterrupt) as error:  # also what cleaning up raised
        if watch.why and not is_of_a_person(error):
            raise Stalled(watch.why) from error
        raise
    finally:
        _in_threads.pop(thread, None)
        if watch.in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, lambda *_: None)  # a late one ends nothing


class Interrupted(KeyboardInterrupt):
    """Raised in the thread of a stage: it stalled, or the run ends."""


def is_of_a_person(error: BaseException) -> bool:
    """Whether the error is a Cancel: of a class of its own, so never taken for a stall."""
    plain = (KeyboardInterrupt, Interrupted)
    return not isinstance(error, Exception) and type(error) not in plain


def stalled(thread: int) -> Stalled | None:
    """The error of the stage in this thread, once, where it has made no progress for too long."""
    watch = _in_threads.get(thread)
    if watch is None or time.monotonic() < watch.due:
        return None
    watch.expire(sys._current_frames().get(thread))
    return Stalled(watch.why)


def _evidence(log: Path | None, frame: FrameType | None) -> str:
    """The end of the log, and without one the lines of code that the stage was at."""
    if log and log.exists() and log.stat().st_size:
        return log_tail(log)
    stack = traceback.format_stack(frame)[-FRAMES:] if frame else []
    return "".join(["; it was at:\n", *stack]).rstrip()


def log_tail(log: Path, start: int = 0) -> str:
    """The end of an error message: where the log is, and its last lines after byte `start`."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 65_536))
        lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    return "\n".join([f"; the log is {log}, its last lines:", *lines]) if lines else f"; see {log}"
