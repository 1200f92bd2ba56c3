"""`klear run` and its like: a flow in this process, tracked by the servers, in the terminal."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from configs.differences import run_name
from configs.machine import load_machine
from configs.settings import Pipeline
from flows.display import Terminal
from flows.pipeline import pipeline
from tasks.cancelling import CancelledInUI, say_cancelled
from tasks.display import showing


def run_pipeline(
    settings: Pipeline,
    force: Sequence[str] = (),
    until: str = "report",
    *,
    verify: bool = False,
    profile: Pipeline | None = None,
) -> int:
    """The whole chain; 0 done, 1 failed.

    `profile` is what the settings were made from: the run's name says what differs.
    """
    name = run_name(settings, profile)
    named = pipeline.with_options(flow_run_name=lambda: name)
    return run_shown(
        f"klear run {settings.profile} (seed {settings.seed})",
        lambda: named(until, list(force), verify, settings=settings),  # type: ignore[arg-type]
        has_report=until == "report",
    )


def run_shown(title: str, flow: Callable[[], object], *, has_report: bool = True) -> int:
    """Run a flow that returns a folder; print what was computed, what was reused and where to look.

    0 done, 1 failed.
    """
    for client in ("httpx", "httpx2", "mlflow"):  # openai speaks through the second one
        logging.getLogger(client).setLevel(logging.WARNING)
    console = Console()
    console.print(title, style="bold")
    began = time.monotonic()
    with Terminal(console) as display, showing(display):
        try:
            where = flow()
        except KeyboardInterrupt as stop:
            if isinstance(stop, CancelledInUI):  # Prefect says Crashed of every interrupt
                say_cancelled(stop.flow_run)
            console.print(f"{str(stop) or 'stopped'}. The same command continues from here.")
            return 1
        except Exception as error:
            message = str(error).strip() or type(error).__name__
            console.print(f"[red]failed:[/] {escape(message)}", highlight=False, soft_wrap=True)
            console.print("The same command continues from here.")
            return 1
    _summary(console, time.monotonic() - began, display.counts)
    machine = load_machine()
    place = f"  report  {where}/report.html" if has_report else f"  {where}"
    console.print(place, highlight=False, soft_wrap=True)  # a path in two lines cannot be copied
    console.print(f"  Prefect {machine.prefect_url}\n  MLflow  {machine.mlflow_uri}")
    return 0


def _summary(console: Console, seconds: float, counts: Mapping[str, int]) -> None:
    cached = counts["cached"]
    if counts["computed"]:
        what = f"{counts['computed']} stages computed, {cached} cached"
    else:
        what = f"every stage cached ({cached})"
    console.print(f"done in {seconds:.0f} s: {what}")
