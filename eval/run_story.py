"""What a run meant to do and what it did, as its report tells it."""

from pydantic import Field

from eval.records import Record


class Expected(Record):
    """One line of the plan; a figure that nothing is known of is None."""

    stage: str
    action: str
    """reuse, resume or compute."""
    why: str = ""
    seconds: float | None = None
    bytes: float | None = None
    tokens: float | None = None
    cost: float | None = None
    basis: str = ""
    """recorded, measured or assumed: what the figures rest on."""


class Happened(Record):
    """What became of one stage."""

    stage: str
    key: str
    action: str
    """reused, resumed or computed."""
    why: str = ""
    seconds: float = 0.0
    """Of the computation, also when it was reused."""
    bytes: float | None = None
    tokens: float | None = None
    cost: float | None = None
    commit: str = ""
    url: str = ""
    """Where its MLflow run is; empty without a server."""


class RunStory(Record):
    """One run; `planned` is empty where nobody planned."""

    name: str = ""
    commit: str = ""
    started: str = ""
    links: dict[str, str] = Field(default_factory=dict)
    planned: tuple[Expected, ...] = ()
    happened: tuple[Happened, ...] = ()

    def expected(self, stage: str) -> Expected | None:
        return next((e for e in self.planned if e.stage == stage), None)
