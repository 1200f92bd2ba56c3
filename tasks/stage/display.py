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
    """Log lines (what a worker's log or a test shows), and all of it on `shown` if there is one."""

    def __init__(
        self,
        logger: logging.Logger | logging.LoggerAdapter | None = None,
        shown: Display | None = None,
    ) -> None:
        self._logger, self._shown = logger or logging.getLogger("klear"), shown

    def started(self, stage: str, why: str) -> None:
        self._logger.info("%s: computing (%s)", stage, why)
        if self._shown:
            self._shown.started(stage, why)

    def progress(self, stage: str, done: float, total: float, note: str) -> None:
        self._logger.debug("%s: %g of %g %s", stage, done, total, note)
        if self._shown:
            self._shown.progress(stage, done, total, note)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        figures = ", ".join(f"{n}={v:g}" for n, v in list(metrics.items())[:6])
        took = f"(computed in {seconds:.1f} s)" if outcome == "cached" else f"in {seconds:.1f} s"
        self._logger.info("%s: %s %s  %s", stage, outcome, took, figures)
        if self._shown:
            self._shown.finished(stage, outcome, seconds, metrics)


chosen_display: ContextVar[Display | None] = ContextVar("klear_display", default=None)


@contextmanager
def showing(display: Display) -> Iterator[None]:
    """Runs started inside the block show themselves on `display`."""
    token = chosen_display.set(display)
    try:
        yield
    finally:
        chosen_display.reset(token)
