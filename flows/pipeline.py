"""The whole way from a base model to a reasoning model, as one Prefect flow."""

from typing import Annotated

from prefect import flow
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from pydantic import Field

from configs.settings import Pipeline
from configs.stage_names import STAGES, StageName
from eval.page_markdown import with_inline_plots
from flows.data import Data, build_data, check_the_judge
from flows.evaluate import evaluate_all
from flows.train import Checkpoints, train
from tasks.opening import opened
from tasks.report import report
from tasks.run import Run, StoppedEarly
from tasks.store import Artifact

NOTE_CHARACTERS = 5_000  # of the report on top of the run's page in MLflow


@flow(name="klear", flow_run_name="{settings.profile}-seed{settings.seed}")
def pipeline(
    settings: Pipeline,
    force: Annotated[list[StageName], Field(description="Recompute these stages")] = [],  # noqa: B006
    until: Annotated[StageName, Field(description="Stop after this stage")] = "report",
) -> str:
    """Data, SFT, math RL, code RL, evaluation, report. Returns the folder of the last result."""
    with opened(settings, force, "" if until == STAGES[-1] else until) as run:
        try:
            data = build_data(settings)
            agreement = check_the_judge(data.benchmarks, settings)
            models = train(data, settings)
            scores = evaluate_all(models, data, settings)
            labelled = settings.report.model_copy(update={"profile": settings.profile})
            page = report(*_everything(data, models, (*agreement, *scores)), settings=labelled)
        except StoppedEarly as stopped:
            return f"stopped after {stopped}"
        publish(page, scores, run)
        return str(page.folder)


def _everything(
    data: Data, models: Checkpoints, judged: tuple[Artifact, ...]
) -> tuple[Artifact, ...]:
    return (*data.steps, models.base, models.sft, models.rl_math, models.rl_code, *judged)


def publish(page: Artifact, scores: tuple[Artifact, ...], run: Run) -> None:
    """Put the report where people look: on the flow run in Prefect, on the parent run in MLflow."""
    for evaluation in scores:
        checkpoint = evaluation.stage.removeprefix("evaluate_")
        run.tracker.log(run.run_id, {f"{checkpoint}/{n}": v for n, v in evaluation.metrics.items()})
    text = page.file("report.md").read_text()
    run.tracker.note(run.run_id, text[:NOTE_CHARACTERS])
    run.tracker.log_files(run.run_id, page.file("report.html"), page.file("report.md"))
    create_markdown_artifact(
        key="klear-report",
        markdown=with_inline_plots(text, page.folder),
        description="Report of this run",
    )
    create_link_artifact(
        key="klear-mlflow", link=run.tracker.run_url(run.run_id), link_text="This run in MLflow"
    )
