"""What a run meant to do and what it did, as its report tells it; time and size in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

STORY = "story.json"
"""In the scratch of the stage that writes the report."""
_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class StageFigures:
    """One stage of a run; a figure that nothing is known of is None."""

    stage: str
    action: str = "compute"
    why: str = ""
    seconds: float | None = None
    bytes: float | None = None
    tokens: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class PlannedStage(StageFigures):
    """One line of the plan: reuse, with recorded figures; resume or compute, with a forecast's."""

    inputs: tuple[str, ...] = ()
    """The stages whose results it takes."""
    gpu_hours: float | None = None
    assumptions: tuple[str, ...] = ()
    """Names in `configs.settings.topology.Assumptions`."""
    assumed: bool = False
    """Whether the figures rest on an assumption, of this stage or of one above."""
    unknown: bool = False
    """Whether nobody knows how much it has to do"""
    binds: str = ""
    """What keeps an endpoint from being faster, or what was read only in part"""
    prices: str = ""
    """Of which date the prices of the catalogue are, or that nobody knows any; empty: the settings
    have them, or there is nothing to pay"""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What the result is expected to count, for the stages below."""


@dataclass(frozen=True)
class StageOutcome(StageFigures):
    """What became of one stage: reused, resumed or computed; `seconds`: of computing it, ever."""

    url: str = ""
    """Where its MLflow run is; empty without a server."""


@dataclass(frozen=True)
class RunStory:
    """One run; `planned` is empty where nobody planned."""

    name: str = ""
    started: str = ""
    changes: tuple[str, ...] = ()
    """Against the profile: `sft.epochs 8 → 2`."""
    links: Mapping[str, str] = field(default_factory=dict)
    planned: tuple[PlannedStage, ...] = ()
    happened: tuple[StageOutcome, ...] = ()
    mixed: tuple[str, ...] = ()
    """Results of different runs among its inputs."""

    def expected(self, stage: str) -> PlannedStage | None:
        return next((e for e in self.planned if e.stage == stage), None)


def read_story(path: Path) -> RunStory | None:
    """The story in a file; None without one."""
    return TypeAdapter(RunStory).validate_json(path.read_bytes()) if path.exists() else None


def duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `3 min 20 s`, `2 h 05 min`, and from two days on `3 d 04 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24:,} d {hours % 24:02d} h"


def size(count: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    power = next((i for i in range(len(_UNITS)) if count < 1000 ** (i + 1)), len(_UNITS) - 1)
    return f"{count / 1000**power:.{min(power, 1)}f} {_UNITS[power]}"
