"""The display of another process: what it shows is written to a file and shown here."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tasks.display import Display, Outcome

SECONDS_BETWEEN_POINTS = 0.5


class Relay:
    """A display that writes events, one JSON line each."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, 0.0

    def started(self, stage: str, why: str) -> None:
        self._write("started", stage, why)

    def progress(self, stage: str, done: float, total: float, note: str) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SECONDS_BETWEEN_POINTS
            self._write("progress", stage, done, total, note)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        self._write("finished", stage, outcome, seconds, dict(metrics))

    def _write(self, event: str, *values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([event, *values]) + "\n")


class Lines(Protocol):
    def lines(self) -> list[bytes]: ...


def replay(events: Lines, display: Display, who: str) -> None:
    """Show what a `Relay` wrote since the last call; stages are called `who stage`."""
    for line in events.lines():
        event, stage, *values = json.loads(line)
        getattr(display, event)(f"{who} {stage}", *values)
