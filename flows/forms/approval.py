"""Approving what a stage costs: a run from a form pauses until somebody fills in the form of the
pause, and goes on from where it was; `klear run` refuses and names its option.
"""

from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from pydantic import Field, create_model

from configs.settings.data import SampleSettings
from configs.settings.pipeline import Pipeline
from tasks.answers.distill import NeedsApproval
from tasks.stage.stage import Stage
from tasks.store.store import Artifact
from tasks.tracking.prefect_states import is_deployment_run, settle_approval

WEEK_S = 7 * 24 * 3600
POLL_S = 5


class Approval(RunInput):
    """The form under "Resume"."""

    approve: bool = Field(default=False, title="Spend it", description="Off: the run fails here")
    up_to: float = Field(default=0.0, ge=0, title="Cost that may be spent by this stage")


def with_approval(stage: Stage, *inputs: Artifact, settings: SampleSettings) -> Artifact:
    """`stage(*inputs, settings=settings)`; where it needs approval, ask for it if somebody can
    answer. Raises NeedsApproval when nobody can or the answer is no."""
    while True:
        try:
            return stage(*inputs, settings=settings)
        except NeedsApproval as error:
            if not is_deployment_run():
                raise
            # Prefect's own `with_initial_data` would drop titles, descriptions and bounds.
            title = Approval.model_fields["up_to"].title
            wanted = Field(default=float(error.wanted), ge=0, title=title)
            form = create_model("Approval", __base__=Approval, up_to=(float, wanted))
            form._description = f"**{stage.name}**: {error}"
            said: bool | None = None
            try:
                answer = pause_flow_run(wait_for_input=form, timeout=WEEK_S, poll_interval=POLL_S)
                said = answer.approve
            finally:
                settle_approval(error, said)  # on the stage's task run
            if not said:
                raise
            settings = approved(settings, answer.up_to)


def approved(settings: SampleSettings, cost: float) -> SampleSettings:
    """The same settings with `cost` approved; that is no part of the stage's key."""
    runtime = settings.engine.runtime.model_copy(update={"approved_cost": cost})
    engine = settings.engine.model_copy(update={"runtime": runtime})
    return settings.model_copy(update={"engine": engine})


def approve_all(pipeline: Pipeline, cost: float) -> Pipeline:
    """Approve up to `cost` for each stage that asks an engine (`klear run --approve-cost`)."""
    asking = {n: approved(s, cost) for n, s in pipeline if isinstance(s, SampleSettings)}
    return pipeline.model_copy(update=asking)
