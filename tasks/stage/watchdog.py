"""The watchdog of a stage: no progress for some minutes fails it, with what it was doing.

The main thread is interrupted by a signal, for only that ends a blocking call; and again after the
same time, should whatever clears up hang as well.
"""

import signal
import threading
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


@contextmanager
def watched(stage: str, minutes: float | None, log: Path | None = None) -> Iterator[Beat]:
    """Fail the block with Stalled unless the yielded function is called every so many minutes.

    None, or a thread other than the main one: no watch. The end of `log` goes into the error.
    """
    if minutes is None or threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    last = why = ""  # `why`: the block was interrupted, unless it went on

    def beat(note: str) -> None:
        nonlocal last, why
        last, why = note, ""
        signal.setitimer(signal.ITIMER_REAL, minutes * 60, minutes * 60)

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal why
        why = why or (
            f"{stage} made no progress for {minutes:g} minutes (last: {last or 'nothing'}), "
            f"so it was ended. A slow stage needs a larger stall_minutes{_evidence(log, frame)}"
        )
        # No `except Exception` takes it for a failure of its own, and Ray passes on no other kind.
        raise KeyboardInterrupt(why)

    signal.signal(signal.SIGALRM, interrupt)
    try:
        beat("")
        yield beat
    except (Exception, KeyboardInterrupt) as error:  # also what cleaning up raised
        if why and (isinstance(error, Exception) or type(error) is KeyboardInterrupt):
            raise Stalled(why) from error  # and a Cancel, which is of another class, is none
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, lambda *_: None)  # a late one ends nothing


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
