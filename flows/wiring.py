"""Which stages a run has, what they take and from whom: read off the flow itself.

The flow is run once with stages that only say that they were called, so that the forms of single
stages and the whole pipeline cannot disagree.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.base import Settings
from configs.settings import Pipeline
from flows.stages import run_stages
from tasks.run import Run, active
from tasks.stage import Stage
from tasks.store import Artifact, Store


@dataclass(frozen=True)
class Call:
    """One stage as the flow calls it."""

    stage: Stage
    inputs: tuple[str, ...]
    """Names of the stages whose results it takes, in order."""
    settings: Settings


def calls(settings: Pipeline) -> dict[str, Call]:
    """Every stage of a run of `settings` by its name, in the order of the run."""
    recorder = _Recorder()
    with active(Run(store=Store(Path.cwd()), seed=settings.seed, planner=recorder)):
        run_stages(settings)
    return recorder.calls


class _Recorder:
    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}

    def look(self, stage: Stage, inputs: Any, settings: Any, run: Run) -> Artifact:
        self.calls[stage.name] = Call(stage, tuple(i.stage for i in inputs), settings)
        return Artifact(stage=stage.name, key="", digest="", folder=Path())
