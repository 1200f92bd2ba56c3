"""The watchdog of a stage: no progress for some minutes fails it, with what it was doing.

The main thread is interrupted by a signal, for only that ends a blocking call; and again after the
same time, should whatever clears up hang as well.
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
Beat = Callable[[str], None]


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


class _Interrupted(KeyboardInterrupt):
    """What the signal raises: no `except Exception` between the work and `watched` takes it for a
    failure of its own. A KeyboardInterrupt, because Ray drops every other kind."""


@contextmanager
def interrupting(
    sign: signal.Signals,
    handler: Callable[[int, FrameType | None], None],
    is_time: Callable[[], bool],
    pause_s: float,
) -> Iterator[None]:
    """In this block of the main thread another one asks `is_time` every `pause_s`, and sends it the
    signal if so. None is handled after the block."""
    over, lock = threading.Event(), threading.Lock()
    main = threading.main_thread().ident or 0

    def watch() -> None:
        while not over.wait(pause_s):
            if is_time():
                with lock:
                    if not over.is_set():
                        signal.pthread_kill(main, sign)

    def handle(number: int, frame: FrameType | None) -> None:
        if not over.is_set():
            handler(number, frame)

    before = signal.signal(sign, handle)
    threading.Thread(target=watch, name=f"watch-{sign.name}", daemon=True).start()
    try:
        try:
            yield
        finally:
            over.set()  # inside the outer try: the signal may come right here
    finally:
        with lock:  # no signal is sent after this
            over.set()
        signal.signal(sign, before)


@contextmanager
def watched(stage: str, minutes: float | None, log: Path | None = None) -> Iterator[Beat]:
    """Fail the block with Stalled unless the yielded function is called every so many minutes.

    None, or a thread other than the main one: no watch. The end of `log` goes into the error.
    """
    if minutes is None or threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    patience_s = minutes * 60
    pause_s = min(POLL_S, patience_s / 4)
    last = why = ""  # `why`: the block was interrupted, unless it went on
    silent_s, looked = 0.0, time.monotonic()

    def beat(note: str) -> None:
        nonlocal last, why, silent_s
        last, why, silent_s = note, "", 0.0

    def is_silent() -> bool:
        """Whether it has been too long, not counting what the whole machine stood still."""
        nonlocal silent_s, looked
        now = time.monotonic()
        silent_s += min(now - looked, 2 * pause_s)
        looked = now
        too_long = silent_s > patience_s
        silent_s = 0.0 if too_long else silent_s
        return too_long

    def interrupt(_: int, frame: FrameType | None) -> None:
        nonlocal why
        why = why or (
            f"{stage} made no progress for {minutes:g} minutes (last: {last or 'nothing'}), "
            f"so it was ended. A slow stage needs a larger stall_minutes{_evidence(log, frame)}"
        )
        raise _Interrupted(why)

    try:
        with interrupting(signal.SIGUSR2, interrupt, is_silent, pause_s):
            yield beat
    except _Interrupted as error:  # also where the block, on its way out, told of its progress
        raise Stalled(str(error)) from error
    except (Exception, KeyboardInterrupt) as error:
        # Ray raises a KeyboardInterrupt of its own for ours; a Cancel is of another class.
        if why and (isinstance(error, Exception) or type(error) is KeyboardInterrupt):
            raise Stalled(why) from error
        raise


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
