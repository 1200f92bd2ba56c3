"""A run in the terminal: one line a stage, a live bar for each that computes, and where to look."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from configs.machine import load_machine
from tasks.stage.progress import Outcome, showing

_MARK = {"computed": "[green]✓[/]", "cached": "[cyan]=[/]", "failed": "[red]✗[/]"}
_FIGURES = 4  # how many metrics of a stage fit on its line
SECONDS_BETWEEN_LINES = 30.0  # without a terminal there is no bar; a line now and then instead


class Terminal:
    """Prints a line when a stage ends; counts how many were computed and how many reused."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.counts = Counter[str]()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:18}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._running: dict[str, TaskID] = {}
        self._next_line: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def started(self, stage: str, why: str) -> None:
        self._next_line[stage] = time.monotonic() + SECONDS_BETWEEN_LINES
        if not self.console.is_terminal or why not in ("new", "forced"):
            self._print(f"  {stage:18} [dim]{escape(why)}[/]")
        self._clear(stage)
        self._running[stage] = self._bars.add_task(stage, total=None, note=why)

    def progress(self, stage: str, done: float, total: float, note: str) -> None:
        count = f"{done:g}/{total:g} {note}" if total else note
        if stage in self._running:
            self._bars.update(self._running[stage], completed=done, total=total or None, note=count)
        now = time.monotonic()
        if not self.console.is_terminal and now >= self._next_line.get(stage, 0.0):
            self._next_line[stage] = now + SECONDS_BETWEEN_LINES
            self._print(f"  {stage:18} [dim]{escape(count)}[/]")

    def finished(
        self, stage: str, outcome: Outcome, seconds: float, metrics: Mapping[str, float]
    ) -> None:
        self._clear(stage)
        self.counts[outcome] += 1
        took = "cached" if outcome == "cached" else f"{seconds:6.1f} s"
        figures = "  ".join(f"{n}={v:.4g}" for n, v in list(metrics.items())[:_FIGURES])
        self._print(f"{_MARK[outcome]} {stage:18} [dim]{took:>8}[/]  {figures}")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)

    def _clear(self, stage: str) -> None:
        if stage in self._running:
            self._bars.remove_task(self._running.pop(stage))


def run_shown(title: str, flow: Callable[[], object], *, has_report: bool = True) -> int:
    """Run a flow that returns a folder; print what was computed, what was reused and where to look.

    0 done, 1 failed.
    """
    for client in ("httpx", "httpx2", "mlflow"):  # openai speaks through the second one
        logging.getLogger(client).setLevel(logging.WARNING)
    console, began = Console(), time.monotonic()
    console.print(title, style="bold")
    with Terminal(console) as display, showing(display):
        try:
            where = flow()
        except KeyboardInterrupt as stop:
            from tasks.tracking.prefect_states import CancelledInUI, set_cancelled

            if isinstance(stop, CancelledInUI):  # Prefect says Crashed of every interrupt
                set_cancelled(stop.flow_run)
            console.print(f"{str(stop) or 'stopped'}. The same command continues from here.")
            return 1
        except Exception as error:
            message = str(error).strip() or type(error).__name__
            console.print(f"[red]failed:[/] {escape(message)}", highlight=False, soft_wrap=True)
            console.print("The same command continues from here.")
            return 1
    computed, cached = display.counts["computed"], display.counts["cached"]
    what = f"{computed} stages computed, {cached} cached"
    what = what if computed else f"every stage cached ({cached})"
    console.print(f"done in {time.monotonic() - began:.0f} s: {what}")
    machine = load_machine()
    place = f"  report  {where}/report.html" if has_report else f"  {where}"
    console.print(place, highlight=False, soft_wrap=True)  # a path in two lines cannot be copied
    console.print(f"  Prefect {machine.prefect_url}\n  MLflow  {machine.mlflow_uri}")
    return 0
