"""Cancelling from the Prefect UI, whoever runs the flow.

A worker ends the runs that came from a form. A run from the command line has nobody: a thread asks
for its state now and then, and interrupts it. Either way the run says itself that it is cancelled,
once nothing of it is left; the worker would take ten seconds more to notice.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from prefect.client.orchestration import get_client
from prefect.states import Cancelled

from tasks.prefect_away import at_once

SECONDS_BETWEEN_LOOKS = 2.0
_ENDED = "every process of this run has ended; the same command, or Retry, continues it"


class CancelledInUI(KeyboardInterrupt):
    """Somebody pressed Cancel on the page of this run."""

    def __init__(self, flow_run: str) -> None:
        super().__init__("cancelled in the Prefect UI")
        self.flow_run = flow_run


@contextmanager
def cancellable(flow_run: str) -> Iterator[None]:
    """Raise CancelledInUI in the main thread when the run is cancelled; for runs of no worker."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        raise CancelledInUI(flow_run)

    # Not SIGINT: a shell that starts a command in the background makes it ignore that one.
    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = _Watcher(flow_run)
    watcher.start()
    try:
        yield
    finally:
        watcher.stop()
        signal.signal(signal.SIGUSR1, before)


class _Watcher(threading.Thread):
    """Sends SIGUSR1 to the main thread, once, when the run is to end."""

    def __init__(self, flow_run: str) -> None:
        super().__init__(name="cancel-watcher", daemon=True)
        self._flow_run = flow_run
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        while not self._over.wait(SECONDS_BETWEEN_LOOKS):
            try:
                asked = is_cancelling(self._flow_run)
            except Exception as error:  # the server is away: nobody can press the button either
                logging.getLogger("klear").debug("no look at the run's state: %s", error)
                continue
            if asked:
                self._interrupt()
                return

    def _interrupt(self) -> None:
        with self._lock:
            if not self._over.is_set():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def stop(self) -> None:
        """No signal is sent after this returned."""
        with self._lock:
            self._over.set()


def is_cancelling(flow_run: str) -> bool:
    """Whether somebody asked the run to end and it has not said yet that it did."""
    with at_once(), get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run).state  # type: ignore[arg-type]
    return state is not None and state.is_cancelling()


def say_cancelled(flow_run: str) -> None:
    """Set the run's state to Cancelled; best effort, for the worker does it too."""
    try:
        with at_once(), get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run, Cancelled(message=_ENDED), force=True)  # type: ignore[arg-type]
    except Exception as error:
        logging.getLogger("klear").debug("not said that the run is cancelled: %s", error)


def say_cancelled_if_asked(flow_run: str) -> None:
    """`say_cancelled` where the run was asked to end by a Cancel and not by another signal."""
    try:
        asked = is_cancelling(flow_run)
    except Exception as error:
        logging.getLogger("klear").debug("no look at the run's state: %s", error)
        return
    if asked:
        say_cancelled(flow_run)
