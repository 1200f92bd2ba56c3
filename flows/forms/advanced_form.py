"""The form of every setting of a profile; `klear run` starts its flow where none is registered."""

from prefect import flow
from prefect.runtime import flow_run

from klear.configs.loading import run_name
from klear.configs.settings.pipeline import Pipeline, StageName
from klear.flows.pipeline import run_pipeline, typed_name
from klear.tasks.tracking.prefect_states import ends_cancelled


def name_of_this_run() -> str:
    """Profile, seed and what differs: `tiny-seed0 · sft.learning_rate=1e-4`."""
    return typed_name() or run_name(Pipeline.model_validate(flow_run.parameters["settings"]))


@flow(name="klear", flow_run_name=name_of_this_run)
@ends_cancelled
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
    return run_pipeline(settings, until, force, verify)
