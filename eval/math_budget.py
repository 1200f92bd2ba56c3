"""CPU time for one answer. A wall clock would blame an answer for a busy machine."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class OutOfTime(BaseException):
    """The CPU time is used up. No Exception, which the code that is interrupted might catch."""


@contextmanager
def cpu_seconds(most: float) -> Iterator[None]:
    """Raise OutOfTime when the block has used this many CPU seconds; in the main thread only.

    The alarm is seen between two steps of Python. A single step that takes for ever is ended from
    outside, with its process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_: int, __: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, most)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
