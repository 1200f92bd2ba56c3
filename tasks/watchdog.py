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
from pathlib import Path
from types import FrameType

TAIL_LINES = 20
FRAMES = 6
POLL_S = 1.0


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


class _Interrupted(KeyboardInterrupt):
    """What the signal raises: no `except Exception` between the work and `watched` takes it for a
    failure of its own. A KeyboardInterrupt, because Ray drops every other kind."""


Beat = Callable[[str], None]


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
        if watch.over:
            return
        watch.why = watch.why or (
            f"{stage} made no progress for {minutes:g} minutes (last: {watch.note or 'nothing'}), "
            f"so it was ended. A slow stage needs a larger stall_minutes{_evidence(log, frame)}"
        )
        raise _Interrupted(watch.why)

    before = signal.signal(signal.SIGUSR2, interrupt)
    watch.start()
    try:
        try:
            yield watch.beat
        finally:
            watch.over = True  # inside the outer try: the signal may come right here
    except (Exception, KeyboardInterrupt) as error:
        why = _why(error, watch)
        if not why:
            raise
        raise Stalled(why) from error
    finally:
        watch.stop()
        signal.signal(signal.SIGUSR2, before)


def _why(error: BaseException, watch: "_Watch") -> str:
    """What the watchdog says of the error that ended the block; '' if it did not cause it."""
    if type(error) is KeyboardInterrupt:
        return watch.why  # Ray makes a new one of ours
    if isinstance(error, KeyboardInterrupt) and not isinstance(error, _Interrupted):
        return ""  # a Cancel, even of a stage that hangs
    seen: BaseException | None = error
    while seen is not None:  # what clears up may fail in turn
        if isinstance(seen, _Interrupted):
            return str(seen)
        seen = seen.__context__
    return ""


class _Watch(threading.Thread):
    """Sends SIGUSR2 to the main thread whenever nobody called `beat` for `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.note = ""
        self.why = ""
        """Why the block was interrupted, unless it went on."""
        self.over = False
        self._patience_s = patience_s
        self._beats = 0
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def beat(self, note: str) -> None:
        self.note, self.why = note, ""
        self._beats += 1

    def run(self) -> None:
        pause_s = min(POLL_S, self._patience_s / 4)
        beats, silent_s, looked = self._beats, 0.0, time.monotonic()
        while not self._stopped.wait(pause_s):
            now = time.monotonic()
            silent_s += min(now - looked, 2 * pause_s)  # while all stood still, it need not move
            looked = now
            if beats != self._beats:
                beats, silent_s = self._beats, 0.0
            if silent_s > self._patience_s:
                silent_s = 0.0
                self._interrupt()

    def _interrupt(self) -> None:
        with self._lock:
            if not self._stopped.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    def stop(self) -> None:
        """No signal is sent after this returned."""
        self.over = True
        with self._lock:
            self._stopped.set()


def _evidence(log: Path | None, frame: FrameType | None) -> str:
    """The end of the log, and without one the lines of code that the stage was at."""
    if log and log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65_536))
            lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
        if lines:
            return "\n".join([f"; the log is {log}, its last lines:", *lines])
    stack = traceback.format_stack(frame)[-FRAMES:] if frame else []
    return "".join(["; it was at:\n", *stack]).rstrip()
