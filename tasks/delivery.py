"""Messages to a server that may be away: sent in order by one thread, kept until they arrive.

Whoever has something to say never waits for the server. What it refuses is told in the log and
dropped; what it does not hear, because it is away, is said again until it is back. What it fails
at (500) is said again a few times: it may be busy for a moment, or fail at this message for ever.
"""

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
STUMBLES = 5  # tries of a message that the server fails at
SECONDS_BETWEEN_WARNINGS = 60.0
AT_EXIT_S = 3.0


def _never(_: Exception) -> bool:
    return False


class Delivery:
    """One server's queue. `is_away(error)` tells a server out of reach from one that answers, and
    `has_stumbled(error)` one that failed at a message from one that refuses it."""

    def __init__(
        self,
        is_away: Callable[[Exception], bool],
        has_stumbled: Callable[[Exception], bool] = _never,
        name: str = "MLflow",
    ) -> None:
        self.refused = 0
        """Messages that the server answered with an error."""
        self._is_away, self._has_stumbled, self._name = is_away, has_stumbled, name
        self._closing = False
        self._messages: deque[tuple[str, Callable[[], object]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, what: str, send: Callable[[], object], *, soon: bool = False) -> None:
        """Call `send` after everything that was put before, or right after what is being said.

        `what` names it in warnings.
        """
        with self._changed:
            self._messages.insert(1 if soon else len(self._messages), (what, send))
            self._changed.notify_all()
            if self._thread is None:
                # A daemon: a run that is cancelled ends at once, whatever is left to say.
                self._thread = threading.Thread(target=self._work, name="delivery", daemon=True)
                self._thread.start()
                atexit.register(self.flush, AT_EXIT_S)

    def flush(self, seconds: float) -> bool:
        """Wait until everything has arrived; False if it has not within `seconds`."""
        if threading.current_thread() is self._thread:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._messages, seconds)

    def close(self) -> None:
        """End the thread once everything has arrived; a later `put` starts another one."""
        with self._changed:
            self._closing = self._thread is not None
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._messages) or self._closing)
                if not self._messages:
                    self._thread, self._closing = None, False
                    atexit.unregister(self.flush)
                    return
                what, send = self._messages[0]
            self._send(what, send)
            with self._changed:
                self._messages.popleft()
                self._changed.notify_all()

    def _send(self, what: str, send: Callable[[], object]) -> None:
        pause, away_since, warned, stumbles = FIRST_PAUSE_S, 0.0, float("-inf"), 0
        while True:
            try:
                send()
            except Exception as error:
                away = self._is_away(error)
                stumbled = not away and self._has_stumbled(error)
                stumbles += stumbled
                if not away and (not stumbled or stumbles == STUMBLES):
                    self.refused += 1
                    _log().warning("%s refused %s: %s", self._name, what, _first_line(error))
                    return
                now = time.monotonic()
                if away:
                    away_since = away_since or now
                    if now - warned >= SECONDS_BETWEEN_WARNINGS:
                        self._warn(error)
                        warned = now
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                if away_since:
                    seconds = time.monotonic() - away_since
                    _log().warning("%s is back after %.0f s", self._name, seconds)
                return

    def _warn(self, error: Exception) -> None:
        text = "%s does not answer; the run goes on and tells it later (%s)"
        _log().warning(text, self._name, _first_line(error))


def _log() -> logging.Logger:
    return logging.getLogger("klear")


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
