"""A run as lines: in the log, and in a terminal with a live bar for each stage that computes."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Column

from ..engine import events
from ..engine.cache import FORCED
from ..engine.why import NEVER
from ..report.figures import figure_of
from ..report.run_story import duration

SECONDS_BETWEEN_LINES = 30.0
FEWEST_SECONDS = 5.0
FEWEST_GAINED, MOST_SECONDS = 0.01, 60.0  # the first steps are slow: by them hours would be left
"""Before this long, a rate says more about the start than about the stage."""
WAITING = "another run computes it: waiting"
Outcome = Literal["computed", "cached", "failed", "interrupted"]
_MARK = {
    "computed": "[green]✓[/]",
    "cached": "[cyan]=[/]",
    "failed": "[red]✗[/]",
    "interrupted": "[yellow]…[/]",
}


class ProgressRate:
    """How fast a stage goes since its first report; what it had done by then counts for nothing."""

    def __init__(self) -> None:
        self._total, self.done = 0.0, 0.0
        self.due = time.monotonic() + SECONDS_BETWEEN_LINES  # for the next line about it

    def describe(self, done: float, total: float, note: str) -> str:
        """`420 of 2,919 (14 %), 26/s, 1 min 36 s left, loss 1.2`; the note where nothing is
        counted. A rate begins anew with another total."""
        if not total:
            return note
        now = time.monotonic()
        if total != self._total or done < self.done:
            self._total, self._began, self._first = total, now, done
        self.done = done
        words = [f"{done:,.0f} of {total:,.0f} ({100 * done / total:.0f} %)"]
        seconds, gained = now - self._began, done - self._first
        if seconds >= FEWEST_SECONDS and gained > 0:
            speed = f"{gained / seconds:,.0f}/s"
            if gained < seconds:
                speed = f"{60 * gained / seconds:.1f}/min"
            words.append(speed)
            if gained >= FEWEST_GAINED * total or seconds >= MOST_SECONDS:
                words.append(f"{duration((total - done) * seconds / gained)} left")
        return ", ".join(filter(None, [*words, note]))


class LogDisplay:
    """A run as log lines."""

    def __init__(self) -> None:
        self.logger: Callable[..., Any] = lambda stage="": logging.getLogger("klear")
        """Of a stage, or of the run itself."""
        self.links: Mapping[str, str] = {}
        """Where the run is shown: name → address."""
        self.summary = ""
        """What the run came to, as Markdown."""
        self._rates: dict[str, ProgressRate] = {}

    def on(self, event: events.Event) -> None:
        match event:
            case events.Waiting(task):
                self.started(task.stage, WAITING)
            case events.Started(task, why):
                self.started(task.stage, why)
            case events.Progress(stage, done, total, note):
                self.progress(stage, done, total, note)
            case events.Published(task, artifact, action=action):
                outcome = "cached" if action == "reused" else "computed"
                self.finished(task.stage, outcome, artifact.seconds, artifact.metrics)
            case events.Failed(task, seconds=seconds):
                outcome = "interrupted" if event.interrupted else "failed"
                self.finished(task.stage, outcome, seconds, {})

    def started(self, stage: str, why: str) -> None:
        """The stage computes, because `why`."""
        self.logger(stage).info("%s: computing (%s)", stage, why)
        self._rates[stage] = ProgressRate()

    def progress(self, stage: str, done: float, total: float, note: str) -> str:
        """Returns how far the stage is, in words."""
        rate = self._rates.setdefault(stage, ProgressRate())
        text = rate.describe(done, total, note)
        if (now := time.monotonic()) >= rate.due:
            rate.due = now + SECONDS_BETWEEN_LINES
            self.line(stage, text)
        return text

    def line(self, stage: str, text: str) -> None:
        """How far a stage is, now and then."""
        self.logger(stage).info("%s: %s", stage, text)

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        took = ("(computed in {})" if outcome == "cached" else "in {}").format(duration(seconds))
        figures = ", ".join(filter(None, [took, figure_of(stage, metrics)]))
        self.logger(stage).info("%s: %s %s", stage, outcome, figures)


chosen_display: ContextVar[LogDisplay | None] = ContextVar("klear_display", default=None)
"""What runs that are started in this context show themselves on."""


class Terminal(LogDisplay):
    """Prints a line when a stage ends, one for all reused, a live bar for each that computes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console, self.counts = console, Counter[str]()
        room = max(16, console.width - 27)  # beside the other columns, which keep their width
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:16}"),
            BarColumn(bar_width=6),
            TextColumn("{task.fields[note]}", table_column=Column(width=room, no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._running, self._reused = dict[str, TaskID](), list[str]()

    def __enter__(self) -> Self:
        self.bars.start()
        self._token = chosen_display.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        chosen_display.reset(self._token)
        self.bars.stop()
        self._print_reused()

    def started(self, stage: str, why: str) -> None:
        super().started(stage, why)
        self._print_reused()
        if not self.console.is_terminal or why not in (NEVER, FORCED):
            self.console.print(f"  {stage:16} [dim]{escape(why)}[/]")
        if stage in self._running:  # it waited for another run, and now computes
            self.bars.remove_task(self._running[stage])
        self._running[stage] = self.bars.add_task(stage, total=None, note=escape(why))

    def progress(self, stage: str, done: float, total: float, note: str) -> str:
        text = super().progress(stage, done, total, note)
        if stage in self._running:
            fields = {"completed": done, "total": total or None, "note": escape(text)}
            self.bars.update(self._running[stage], **fields)
        return text

    def line(self, stage: str, text: str) -> None:
        super().line(stage, text)
        if not self.console.is_terminal:
            self.console.print(f"  {stage:16} [dim]{escape(text)}[/]")

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        super().finished(stage, outcome, seconds, metrics)
        if stage in self._running:
            self.bars.remove_task(self._running.pop(stage))
        self.counts[outcome] += 1
        if outcome == "cached":
            self._reused.append(stage)
            return
        figure = escape(figure_of(stage, metrics))
        self.console.print(f"{_MARK[outcome]} {stage:16} [dim]{duration(seconds):>11}[/]  {figure}")

    def _print_reused(self) -> None:
        """A log also names them."""
        if self._reused:
            names = "" if self.console.is_terminal else f": {', '.join(self._reused)}"
            count = f"{len(self._reused)} stage{'s' * (len(self._reused) > 1)}"
            self.console.print(f"{_MARK['cached']} {count} cached{names}")
            self._reused.clear()
