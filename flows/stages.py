"""All stages in the order of a run, whether they are to compute or only to be planned."""

from configs.settings import Pipeline
from flows.data import Data, build_data, check_the_judge
from flows.evaluate import evaluate_all
from flows.train import Checkpoints, train
from tasks.report import report
from tasks.run import current_run
from tasks.store import Artifact
from training.fit import refuse


def run_stages(settings: Pipeline) -> tuple[Artifact, tuple[Artifact, ...]]:
    """Every stage in order: the report and the evaluations.

    Raises DoesNotFit before the first stage when the topology's machines cannot run one of them.
    """
    run = current_run()
    if run.planner is None:
        refuse(settings, run.until)
    data = build_data(settings)
    agreement = check_the_judge(data.benchmarks, settings)
    models = train(data, settings)
    scores = evaluate_all(models, data, settings)
    labelled = settings.report.model_copy(update={"profile": settings.profile})
    page = report(*_everything(data, models, (*agreement, *scores)), settings=labelled)
    return page, scores


def _everything(
    data: Data, models: Checkpoints, judged: tuple[Artifact, ...]
) -> tuple[Artifact, ...]:
    return (*data.steps, *(model for _, model in models.named), *judged)
