"""How far a run is: what its stages report, and the displays that show it.

A stage calls `report(done, total, note)` as often as it likes; listeners decide how often to look.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from klear.eval.ray_cluster import on_cluster_wait
from klear.tasks.report.run_story import duration
from klear.tasks.stage.figures import Pace, figure_of

SECONDS_BETWEEN_LINES = 30.0
Listener = Callable[[float, float, str], None]
_listener: ContextVar[Listener | None] = ContextVar("progress_listener", default=None)


def report(done: float, total: float, note: str = "") -> None:
    """Tell the listener of this stage, if there is one, that `done` of `total` is finished."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total, note)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send what is reported inside the block to `listener`."""
    token = _listener.set(listener)
    waiting = on_cluster_wait.set(lambda note: listener(0, 0, note))
    try:
        yield
    finally:
        _listener.reset(token)
        on_cluster_wait.reset(waiting)


Outcome = Literal["computed", "cached", "failed", "interrupted"]


class Plain:
    """A run as log lines (in Prefect, on the page of the run); the terminal's, in flows, adds to
    them."""

    def __init__(self) -> None:
        self.logger: logging.Logger | logging.LoggerAdapter = logging.getLogger("klear")
        self.links: Mapping[str, str] = {}
        """Where the run is shown: name → address."""
        self.summary = ""
        """What the run came to, as Markdown."""
        self._due: dict[str, float] = {}
        self._paces: dict[str, Pace] = {}

    def started(self, stage: str, why: str) -> None:
        """The stage computes, because `why`."""
        self.logger.info("%s: computing (%s)", stage, why)
        self._due[stage] = time.monotonic() + SECONDS_BETWEEN_LINES
        self._paces[stage] = Pace()

    def progress(self, stage: str, done: float, total: float, note: str) -> str:
        """Returns how far the stage is, in words."""
        said = self._paces.setdefault(stage, Pace()).said(done, total, note)
        now = time.monotonic()
        if now >= self._due.get(stage, float("inf")):
            self._due[stage] = now + SECONDS_BETWEEN_LINES
            self.tell(stage, said)
        return said

    def tell(self, stage: str, said: str) -> None:
        """How far a stage is, now and then."""
        self.logger.info("%s: %s", stage, said)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        took = f"(in {duration(seconds)})" if outcome == "cached" else f"in {duration(seconds)}"
        figures = ", ".join(filter(None, [took, figure_of(stage, metrics)]))
        self.logger.info("%s: %s %s", stage, outcome, figures)


chosen_display: ContextVar[Plain | None] = ContextVar("klear_display", default=None)
"""What runs that are started in this context show themselves on."""
