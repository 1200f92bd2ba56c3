"""The whole way from a base model to a reasoning model, as one Prefect flow."""

from prefect import flow
from prefect.runtime import flow_run

from configs.loading import run_name
from configs.settings.base import key_of
from configs.settings.pipeline import Pipeline
from configs.stage_names import StageName
from flows.cli.plan import plan
from flows.run_page import publish_plan, publish_report
from flows.stages import run_stages
from tasks.stage.run import headline
from tasks.stage.run_context import RunSpec, run_context

HEADLINES = ("/avg", "/ci_low", "/ci_high")  # the runs of the stages have the other figures


def name_of_this_run() -> str:
    """Profile, seed and what differs: `tiny-seed0 · sft.learning_rate=1e-4`."""
    return run_name(Pipeline.model_validate(flow_run.parameters["settings"]))


@flow(name="klear", flow_run_name=name_of_this_run)
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
        scores = {  # what runs are compared by: `rl_math/aime24/avg` and its interval
            f"{stage.removeprefix('evaluate_')}/{name}": value
            for stage, result in made.items()
            if stage.startswith("evaluate_")
            for name, value in result.metrics.items()
            if name.endswith(HEADLINES)
        }
        publish_report(made["report"], scores, run, headline(run))
        return str(made["report"].folder)
