"""What is told to the tracking server, as plain data: points, datasets, models, traces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """One value of a metric; `time` in Unix seconds."""

    name: str
    value: float
    time: float
    step: int = 0


@dataclass(frozen=True)
class Dataset:
    """The rows of one artifact, without the rows."""

    name: str
    digest: str
    source: Mapping[str, str]
    """Where they are."""
    columns: Sequence[tuple[str, str]] = ()
    """(name, type) of the columns of the main table."""
    profile: Mapping[str, float] = field(default_factory=dict)
    """Rows and bytes."""


@dataclass(frozen=True)
class Model:
    """A checkpoint that stays where it is; `files` (name, text) are all that is uploaded."""

    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True)
class Span:
    """One step of a trace; the first span of a trace is its root."""

    name: str
    kind: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    is_error: bool = False


@dataclass(frozen=True)
class Trace:
    """One graded answer. `key` makes its id: told twice, it is there once."""

    key: str
    time: float
    request: str
    response: str
    spans: Sequence[Span]
    tags: Mapping[str, str]
