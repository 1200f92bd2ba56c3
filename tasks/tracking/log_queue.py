"""Messages to MLflow: sent in order by one thread, kept until they arrive.

Whoever logs never waits for the server. MLflow's client itself tries an answer 500 or 503 again
(`MLFLOW_HTTP_REQUEST_MAX_RETRIES`); what the server refuses after that is a warning and dropped.
While the server is unreachable the queue waits, however long. MLflow's own asynchronous logging
covers metrics alone and drops a batch whose retries are used up, so it is not used.
"""

import atexit
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable

import requests

PAUSE_S = 2.0
SECONDS_BETWEEN_WARNINGS = 60.0
AT_EXIT_S = 3.0
# What a proxy says for a server that is down, and a server that is starting or too busy.
_UNREACHABLE = re.compile(r"(?:failed with error code |too many |^)50[234]\b")
_BROKEN = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,  # it was killed in the middle of its answer
)
_LOG = logging.getLogger("klear")


class LogQueue:
    """The messages of one process to one server. Its thread lives while there are any."""

    def __init__(self) -> None:
        self.refused = 0
        """Messages that the server answered with an error."""
        self._messages: deque[tuple[str, Callable[[], object]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, what: str, send: Callable[[], object], *, soon: bool = False) -> None:
        """Call `send` after everything that was put before, or right after what is being sent.

        `what` names it in warnings.
        """
        with self._changed:
            self._messages.insert(1 if soon else len(self._messages), (what, send))
            if self._thread is None:
                # A daemon: a run that is cancelled ends at once, whatever is left to send.
                self._thread = threading.Thread(target=self._work, name="mlflow-queue", daemon=True)
                self._thread.start()
                atexit.register(self.flush, AT_EXIT_S)

    def flush(self, seconds: float) -> bool:
        """Wait until everything has arrived; False if it has not within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._messages, seconds)

    def _work(self) -> None:
        while True:
            self._send(*self._messages[0])
            with self._changed:
                self._messages.popleft()
                if not self._messages:
                    self._thread = None
                    atexit.unregister(self.flush)
                    self._changed.notify_all()
                    return

    def _send(self, what: str, send: Callable[[], object]) -> None:
        warned = float("-inf")
        while True:
            try:
                send()
                return
            except Exception as error:  # of any kind: a message must never end the thread
                line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
                if not is_unreachable(error):
                    self.refused += 1
                    _LOG.warning("MLflow refused %s: %s", what, line)
                    return
                if time.monotonic() - warned >= SECONDS_BETWEEN_WARNINGS:
                    _LOG.warning("MLflow is unreachable; the run goes on and logs later (%s)", line)
                    warned = time.monotonic()
                time.sleep(PAUSE_S)


def is_unreachable(error: BaseException | None) -> bool:
    """Whether the server did not answer, as opposed to answering with an error."""
    while error is not None:
        if isinstance(error, _BROKEN):
            return True
        if _UNREACHABLE.search(str(error)):  # MLflow gives a status mostly in words
            return True
        error = error.__cause__ or error.__context__
    return False
