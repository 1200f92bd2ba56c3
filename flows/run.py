"""`klear run`: the pipeline in this process, tracked by the servers, shown in the terminal."""

import logging
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from configs.machine import load_machine
from configs.settings import Pipeline
from flows.display import Terminal
from flows.pipeline import pipeline
from tasks.display import showing


def run_pipeline(settings: Pipeline, force: Sequence[str] = (), until: str = "report") -> int:
    """Run, print what was computed, what was reused and where to look; 0 done, 1 failed."""
    logging.getLogger("httpx").setLevel(logging.WARNING)
    console = Console()
    console.print(f"klear run {settings.profile} (seed {settings.seed})", style="bold")
    began = time.monotonic()
    with Terminal(console) as display, showing(display):
        try:
            where = pipeline(settings, force=list(force), until=until)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            console.print("stopped. The same command continues from here.")
            return 1
        except Exception as error:
            message = str(error).strip() or type(error).__name__
            console.print(f"[red]failed:[/] {escape(message)}", highlight=False, soft_wrap=True)
            console.print("The same command continues from here.")
            return 1
    seconds, counts = time.monotonic() - began, display.counts
    if counts["computed"]:
        console.print(
            f"done in {seconds:.0f} s: {counts['computed']} stages computed, "
            f"{counts['cached']} cached"
        )
    else:
        console.print(f"done in {seconds:.0f} s: every stage cached ({counts['cached']})")
    machine = load_machine()
    console.print(f"  report  {where}/report.html" if until == "report" else f"  {where}")
    console.print(f"  Prefect {machine.prefect_url}\n  MLflow  {machine.mlflow_uri}")
    return 0
