"""What is known about a stage before it runs, and how much work that makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.assumptions import Assumptions
from tasks.earlier import Earlier, Past
from tasks.store import Artifact
from training.model_facts import ModelFacts


class Taken:
    """Assumptions, and the names of those that were used."""

    def __init__(self, values: Assumptions) -> None:
        self._values = values
        self.names: list[str] = []

    def __call__(self, name: str) -> float:
        if name not in self.names:
            self.names.append(name)
        return self.quietly(name)

    def quietly(self, name: str) -> float:
        """For a figure that may not be used in the end: whoever uses it takes it aloud."""
        return float(getattr(self._values, name))

    def given(self, name: str) -> float | None:
        """An assumption without a default, where somebody stated it."""
        return None if getattr(self._values, name) is None else self(name)


@dataclass(frozen=True)
class Scene:
    """What is known about a stage before it runs. `past`: the nearest result of the same kind."""

    stage: str
    settings: Any
    inputs: tuple[Artifact, ...]
    past: Past | None
    earlier: Earlier
    facts: ModelFacts | None
    assume: Taken

    def count(self, place: int, name: str) -> float | None:
        """A count of an input, measured or expected."""
        return self.inputs[place].metrics.get(name) if place < len(self.inputs) else None

    def mean(self, total: str, of: str) -> float | None:
        """Quotient of two metrics of the nearest earlier result, where it has both."""
        metrics = self.past.manifest.metrics if self.past else {}
        return metrics[total] / metrics[of] if metrics.get(total) and metrics.get(of) else None


@dataclass(frozen=True)
class Work:
    """`amount` units; tokens that are generated or trained on; and what the result will count."""

    amount: float
    unit: str
    tokens: float | None = None
    prompt_tokens: float = 0.0
    trained_tokens: float = 0.0
    bytes: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
