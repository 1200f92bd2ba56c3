"""What a flow run shows: its plan, its report and a link on its page in Prefect, and in MLflow."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from flows.cli.plan import Plan, rows, summary
from tasks.report.page import with_inline_plots
from tasks.stage.run import Run, plan_summary
from tasks.stage.run_context import link_to_prefect
from tasks.store.store import Artifact

NOTE_CHARACTERS = 5_000  # of the report on top of the run's page in MLflow
PAUSE_S, PATIENCE_S = 3.0, 300.0  # between tries to make an artifact; in all


def publish_plan(make: Callable[[], Plan], run: Run) -> None:
    """The first artifact of a run: what it will reuse, resume and compute.

    An estimate that goes wrong is no reason to end the run: the log says so.
    """
    try:
        stages = make()
        table, about = rows(stages), summary(stages)
        plan_summary(run, stages)
    except Exception as error:
        get_run_logger().warning("no plan is shown: %s", error, exc_info=True)
        return
    create_artifact(create_table_artifact, key="klear-plan", table=table, description=about)


def publish_report(page: Artifact, figures: Mapping[str, float], run: Run, head: str = "") -> None:
    """Show a report on the flow run in Prefect and on the parent run in MLflow.

    `figures` become metrics of the run in MLflow; `head` goes before the report's own text.
    """
    run.store.fetch(page)
    run.tracker.log(run.run_id, figures)
    text = head + page.file("report.md").read_text()
    run.tracker.note(run.run_id, (link_to_prefect() + text)[:NOTE_CHARACTERS])
    run.tracker.log_files(run.run_id, page.file("report.html"), page.file("report.md"))
    publish_markdown("klear-report", with_inline_plots(text, page.folder), run)


def publish_markdown(key: str, text: str, run: Run) -> None:
    """Text on the page of a run in Prefect, and a link from there to its page in MLflow."""
    create_artifact(create_markdown_artifact, key=key, markdown=text)
    create_artifact(
        create_link_artifact,
        key="klear-mlflow",
        link=run.tracker.run_url(run.run_id),
        link_text="This run in MLflow",
        description="This run in MLflow: curves, data, checkpoints, scores",
    )


def create_artifact(create: Callable[..., Any], **about: Any) -> None:
    """`create(**about)`, tried again while no server answers.

    A page is not worth a run: after `PATIENCE_S`, or when the server refuses it, the log says so.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            create(**about)
            return
        except httpx.HTTPError as error:
            if not isinstance(error, httpx.TransportError) or time.monotonic() > deadline:
                get_run_logger().warning("%s is not shown: %s", about.get("key"), error)
                return
        time.sleep(PAUSE_S)
