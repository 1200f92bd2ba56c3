"""The whole way from a base model to a reasoning model, as one Prefect flow."""

from collections.abc import Callable, Mapping

from prefect import flow, get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.runtime import flow_run

from configs.loading import run_name
from configs.settings.base import key_of
from configs.settings.pipeline import Pipeline
from configs.stage_names import StageName
from flows.cli.plan import plan, rows, summary
from flows.forms.artifacts import create_artifact
from flows.forms.refused import rename_invalid_run
from flows.stages import run_stages
from tasks.planning.plan import PlannedStage
from tasks.report.page import with_inline_plots
from tasks.stage.run import Run, headline, plan_summary
from tasks.stage.run_context import RunSpec, link_to_prefect, run_context
from tasks.store.store import Artifact

HEADLINES = ("/avg", "/ci_low", "/ci_high")  # the runs of the stages have the other figures
NOTE_CHARACTERS = 5_000  # of the report on top of the run's page in MLflow


def name_of_this_run() -> str:
    """Profile, seed and what differs: `tiny-seed0 · sft.learning_rate=1e-4`."""
    return run_name(Pipeline.model_validate(flow_run.parameters["settings"]))


@flow(name="klear", flow_run_name=name_of_this_run, on_failure=[rename_invalid_run])
def pipeline(
    until: StageName = "report",
    force: list[StageName] = [],  # noqa: B006
    verify: bool = False,
    *,
    settings: Pipeline,
) -> str:
    """Data, SFT, math RL, code RL, evaluation, report. Returns the folder of the last result.

    Args:
        until: Stop after this stage.
        force: Compute these stages even if the store has their results.
        verify: Reuse a result only if every byte is what was published.
        settings: What is computed; prefilled with the whole profile.
    """
    wanted = RunSpec(
        kind="pipeline",
        profile=settings.profile,
        seed=settings.seed,
        meaning=key_of(settings),
        resolved=settings.model_dump(mode="json"),
        stall_minutes=settings.stall_minutes,
        force=frozenset(force),
        verify=verify,
    )
    with run_context(wanted) as run:
        publish_plan(lambda: plan(settings, run.store, force, until), run)
        made = run_stages(settings, until)
        if "report" not in made:
            return f"stopped after {until}"
        publish(made["report"], _headlines(made), run, headline(run))
        return str(made["report"].folder)


def publish_plan(make: Callable[[], list[PlannedStage]], run: Run) -> None:
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


def _headlines(made: Mapping[str, Artifact]) -> dict[str, float]:
    """What runs are compared by: `rl_math/aime24/avg` and its interval, of every checkpoint."""
    return {
        f"{stage.removeprefix('evaluate_')}/{name}": value
        for stage, result in made.items()
        if stage.startswith("evaluate_")
        for name, value in result.metrics.items()
        if name.endswith(HEADLINES)
    }


def publish(page: Artifact, figures: Mapping[str, float], run: Run, head: str = "") -> None:
    """Put a report where people look: on the flow run in Prefect, on the parent run in MLflow.

    `figures` become metrics of the run in MLflow; `head` goes before the report's own text.
    """
    run.store.fetch(page)
    run.tracker.log(run.run_id, figures)
    text = head + page.file("report.md").read_text()
    run.tracker.note(run.run_id, (link_to_prefect() + text)[:NOTE_CHARACTERS])
    run.tracker.log_files(run.run_id, page.file("report.html"), page.file("report.md"))
    create_artifact(
        create_markdown_artifact,
        key="klear-report",
        markdown=with_inline_plots(text, page.folder),
        description="Report of this run",
    )
    show_mlflow(run)


def show_mlflow(run: Run) -> None:
    """A link from Prefect's page of a run to MLflow's."""
    create_artifact(
        create_link_artifact,
        key="klear-mlflow",
        link=run.tracker.run_url(run.run_id),
        link_text="This run in MLflow",
        description="This run in MLflow: curves, data, checkpoints, scores",
    )
