"""Where a secret could show: files below a home, and all that the pages about a run receive."""

from collections.abc import Mapping
from pathlib import Path

from cockpit import Cockpit
from playwright.sync_api import Page, Request
from prefect_pages import RunPage

RUN_TABS = ("logs", "task-runs", "artifacts", "details", "parameters", "job-variables")


def files_with(secret: str, home: Path) -> list[str]:
    """Files of servers, logs, store and tracking that hold it."""
    sought = secret.encode()
    return [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and sought in path.read_bytes()
    ]


def pages_of(page: Page, place: Cockpit, flow_run: str) -> Mapping[str, str]:
    """What every tab of a run's page shows, and all that Prefect's server said meanwhile."""
    answers: list[str] = []

    def keep(request: Request) -> None:
        if "/api/" in request.url and (response := request.response()):
            answers.append(response.text())

    page.on("requestfinished", keep)
    try:
        page.goto(f"{place.prefect}/runs/flow-run/{flow_run}")
        run = RunPage(page)
        shown = {}
        for tab in RUN_TABS:
            run.tab(tab)
            page.wait_for_load_state("networkidle")
            shown[tab] = page.content()
    finally:
        page.remove_listener("requestfinished", keep)
    return {**shown, "the server's answers": "\n".join(answers)}
