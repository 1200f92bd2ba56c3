"""What happens in a run, as its engine tells everybody who listens; it knows none of them.

An observer shows a run or keeps something of it. It may hear an event twice (a run that is
continued), and it may fail: that is a line in the log, and the run goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ...configs.settings.base import Settings
from ..store.store import Artifact, Manifest

Action = Literal["reused", "resumed", "computed"]


@dataclass(frozen=True)
class Task:
    """One key of a stage: what is computed, of what, and for whom it is listed in which group."""

    stage: str
    version: int
    key: str
    inputs: tuple[Artifact, ...]
    settings: Settings
    seed: int | None = None
    group: str = ""


@dataclass(frozen=True)
class Planned:
    """What a run means to do, a line (`PlannedStage`) a stage in order."""

    stages: Sequence[Any]


@dataclass(frozen=True)
class Waiting:
    """Another run computes this key."""

    task: Task


@dataclass(frozen=True)
class Started:
    """The stage computes in `folder`, because `why`."""

    task: Task
    why: str
    folder: Path


@dataclass(frozen=True)
class Progress:
    """`done` of `total`; no total: the note alone says something."""

    stage: str
    done: float
    total: float
    note: str


@dataclass(frozen=True)
class Sealing:
    """The files in `folder` are final. Observers may add pages that tell about them, and in `links`
    under which id they keep the stage (`mlflow_run`); both are published with the result."""

    task: Task
    manifest: Manifest
    folder: Path
    links: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """The result is in the store."""

    task: Task
    artifact: Artifact
    manifest: Manifest
    action: Action
    why: str = ""


@dataclass(frozen=True)
class Failed:
    """The stage failed after so many seconds, or was interrupted (no Exception)."""

    task: Task
    error: BaseException
    seconds: float

    @property
    def interrupted(self) -> bool:
        return not isinstance(self.error, Exception)


@dataclass(frozen=True)
class Ended:
    """The run is over; the error that ended it, if one did."""

    error: BaseException | None = None


Event = Planned | Waiting | Started | Progress | Sealing | Published | Failed | Ended


class Observer(Protocol):
    """Whoever wants to know what happens in a run. Events of stages that run beside each other come
    from several threads."""

    def on(self, event: Event) -> None: ...
