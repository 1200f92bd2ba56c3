"""What a run tells about its results: a card and graded examples beside each, and its own story."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace

from ...configs.files import replace_text
from ...configs.settings.judging import JudgeSettings
from ...eval.benchmarks.grades import GRADED
from ...training.launch.result_files import SCRATCH
from ..engine.events import Event, Planned, Published, Sealing, Started
from ..report.card import write_card
from ..report.run_story import STORY, PlannedStage, RunStory, StageOutcome
from ..store.store import Store

JUDGED = {"rollouts.parquet", "results.json"}
"""Files that make graded examples worth their seconds."""


class Cards:
    """Writes a dataset's card, and a few graded answers of a model."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def on(self, event: Event) -> None:
        if isinstance(event, Sealing):
            write_card(self.store, event.manifest, event.folder)
            self._graded(event)

    def _graded(self, event: Sealing) -> None:
        judge = getattr(event.task.settings, "judge", None)
        if not isinstance(judge, JudgeSettings) or not JUDGED & event.manifest.files.keys():
            return
        from ..report.grading import grade_some  # the judge, which a cached run does without

        problems = event.folder / "problems.parquet"
        if not problems.exists():  # rollouts
            problems = event.task.inputs[-1].file("kept.parquet")
        graded = grade_some(event.folder, problems, judge)
        replace_text(event.folder / GRADED, "".join(g.model_dump_json() + "\n" for g in graded))


class Story:
    """What a run planned and did; its report finds it in the stage's folder."""

    def __init__(self, url_of: Callable[[str], str] = lambda mlflow_run: "") -> None:
        self.url_of, self.begin = url_of, RunStory()
        """Where a run in MLflow is shown; and what is known of this run from its start."""
        self.planned: tuple[PlannedStage, ...] = ()
        self.happened: dict[str, StageOutcome] = {}

    def on(self, event: Event) -> None:
        match event:
            case Planned(stages):
                self.planned = tuple(stages)
            case Started(task, folder=folder) if task.stage == "report":
                replace_text(folder / SCRATCH / STORY, json.dumps(asdict(self.story())))
            case Published(task, artifact, manifest, action, why):
                metrics = artifact.metrics
                self.happened[task.stage] = StageOutcome(
                    stage=task.stage,
                    action=action,
                    why=why,
                    seconds=artifact.seconds,
                    bytes=manifest.bytes,
                    tokens=metrics.get("completion_tokens", metrics.get("tokens")),
                    cost=metrics.get("cost"),
                    url=self.url_of(artifact.mlflow_run),
                )

    def story(self) -> RunStory:
        """Up to here, in the order of the plan."""
        order = {planned.stage: i for i, planned in enumerate(self.planned)}
        ended = sorted(self.happened.values(), key=lambda h: order.get(h.stage, len(order)))
        return replace(self.begin, planned=self.planned, happened=tuple(ended))
