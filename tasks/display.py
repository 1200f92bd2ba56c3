"""How a run shows itself: started, progress, finished. The terminal has a richer one in flows."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

Outcome = Literal["computed", "cached", "failed"]


class Display(Protocol):
    def started(self, stage: str, why: str) -> None:
        """The stage computes, because `why`."""

    def progress(self, stage: str, done: float, total: float, note: str) -> None: ...

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None: ...


class Plain:
    """Log lines: what a worker's log or a test shows."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter | None = None) -> None:
        self._logger = logger or logging.getLogger("klear")

    def started(self, stage: str, why: str) -> None:
        self._logger.info("%s: computing (%s)", stage, why)

    def progress(self, stage: str, done: float, total: float, note: str) -> None:
        self._logger.debug("%s: %g of %g %s", stage, done, total, note)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        figures = ", ".join(f"{n}={v:g}" for n, v in list(metrics.items())[:6])
        took = "(computed in %.1f s)" if outcome == "cached" else "in %.1f s"
        self._logger.info(f"%s: %s {took}  %s", stage, outcome, seconds, figures)


class Both:
    """The display of this process, if it chose one, and the log of the run."""

    def __init__(self, chosen: Display | None, log: Display) -> None:
        self._displays = [d for d in (chosen, log) if d is not None]

    def started(self, stage: str, why: str) -> None:
        for display in self._displays:
            display.started(stage, why)

    def progress(self, stage: str, done: float, total: float, note: str) -> None:
        for display in self._displays:
            display.progress(stage, done, total, note)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        for display in self._displays:
            display.finished(stage, outcome, seconds, metrics)


_chosen: ContextVar[Display | None] = ContextVar("klear_display", default=None)


def chosen_display() -> Display | None:
    """The display of this process's run, if its starter chose one."""
    return _chosen.get()


@contextmanager
def showing(display: Display) -> Iterator[None]:
    """Runs started inside the block show themselves on `display`."""
    token = _chosen.set(display)
    try:
        yield
    finally:
        _chosen.reset(token)
