"""The watchdog of a stage: no progress for some minutes fails it, with what it was doing.

A hung engine, a judge that waits for a dead worker or a download that stalls would otherwise look
like work for days. The main thread is interrupted by a signal, for only that ends a blocking call;
and again after the same time, should whatever clears up hang as well.
"""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

TAIL_LINES = 20
FRAMES = 6
POLL_S = 1.0
Beat = Callable[[str], None]


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


class _Interrupted(KeyboardInterrupt):
    """What the signal raises: no `except Exception` between the work and `watched` takes it for a
    failure of its own. A KeyboardInterrupt, because Ray drops every other kind."""


@contextmanager
def watched(stage: str, minutes: float | None, log: Path | None = None) -> Iterator[Beat]:
    """Fail the block with Stalled unless the yielded function is called every so often.

    Args:
        stage: named in the error.
        minutes: how long it may be silent; None, or a thread other than the main one: no watch.
        log: its last lines go into the error, if there is such a file.
    """
    if minutes is None or threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    watch = _Watch(minutes * 60)

    def interrupt(_: int, frame: FrameType | None) -> None:
        if not watch.over.is_set():
            watch.why = watch.why or (
                f"{stage} made no progress for {minutes:g} minutes (last: "
                f"{watch.note or 'nothing'}), so it was ended. A slow stage needs a larger "
                f"stall_minutes{_evidence(log, frame)}"
            )
            raise _Interrupted(watch.why)

    before = signal.signal(signal.SIGUSR2, interrupt)
    threading.Thread(target=watch.run, name="watchdog", daemon=True).start()
    try:
        try:
            yield watch.beat
        finally:
            watch.over.set()  # inside the outer try: the signal may come right here
    except _Interrupted as error:
        raise Stalled(str(error)) from error
    except (Exception, KeyboardInterrupt) as error:
        # Ray raises a KeyboardInterrupt of its own for ours; a Cancel is of another class.
        ours = isinstance(error, Exception) or type(error) is KeyboardInterrupt
        if watch.why and ours:
            raise Stalled(watch.why) from error
        raise
    finally:
        with watch.lock:  # no signal is sent after this
            watch.over.set()
        signal.signal(signal.SIGUSR2, before)


@dataclass
class _Watch:
    """Sends SIGUSR2 to the main thread whenever nobody called `beat` for `patience_s`."""

    patience_s: float
    note: str = ""
    why: str = ""
    """Why the block was interrupted, unless it went on."""
    beats: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def beat(self, note: str) -> None:
        self.note, self.why = note, ""
        self.beats += 1

    def run(self) -> None:
        pause_s = min(POLL_S, self.patience_s / 4)
        beats, silent_s, looked = self.beats, 0.0, time.monotonic()
        while not self.over.wait(pause_s):
            now = time.monotonic()
            silent_s += min(now - looked, 2 * pause_s)  # while all stood still, it need not move
            looked = now
            if beats != self.beats:
                beats, silent_s = self.beats, 0.0
            if silent_s > self.patience_s:
                silent_s = 0.0
                with self.lock:
                    if not self.over.is_set():
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)


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
