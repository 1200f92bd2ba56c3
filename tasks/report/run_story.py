"""What a run meant to do and what it did, as its report tells it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pydantic import Field

from eval.records import Record

TOKEN_METRICS = ("completion_tokens", "tokens")
COST_METRICS = ("cost", "cost_usd")
_UNITS = ("B", "kB", "MB", "GB", "TB")


class StageFigures(Record):
    """One stage of a run; a figure that nothing is known of is None."""

    stage: str
    action: str
    why: str = ""
    seconds: float | None = None
    bytes: float | None = None
    tokens: float | None = None
    cost: float | None = None


class Expected(StageFigures):
    """One line of the plan: reuse, resume or compute."""

    basis: str = ""
    """recorded, measured or assumed: what the figures rest on."""


class StageOutcome(StageFigures):
    """What became of one stage: reused, resumed or computed."""

    key: str
    seconds: float = 0.0
    """Of the computation, also when it was reused."""
    commit: str = ""
    url: str = ""
    """Where its MLflow run is; empty without a server."""

    def told(self, expected: Expected | None) -> list[str]:
        """What became of it and why, its time, disk, tokens and price; beside them what the plan
        said, where it became something else or was computed."""
        why = expected.why if expected and self.why in ("", "new") else self.why
        text = f"{self.action}: {why}" if why else self.action
        if expected and (expected.action == "reuse") != (self.action == "reused"):
            text += f" (planned to {expected.action})"
        texts = [text]
        for name, written in _WRITTEN.items():
            value = getattr(self, name)
            texts.append("–" if value is None else written(value))
            wanted = getattr(expected, name, None) if self.action != "reused" else None
            if value is not None and wanted is not None and expected:
                said = "assumed" if expected.basis == "assumed" else "expected"
                texts[-1] += f" ({said} {written(wanted)})"
        return texts


class RunStory(Record):
    """One run; `planned` is empty where nobody planned."""

    name: str = ""
    commit: str = ""
    started: str = ""
    links: dict[str, str] = Field(default_factory=dict)
    planned: tuple[Expected, ...] = ()
    happened: tuple[StageOutcome, ...] = ()

    def expected(self, stage: str) -> Expected | None:
        return next((e for e in self.planned if e.stage == stage), None)


def summary(story: RunStory) -> str:
    """`21 stages: 3 computed, 18 reused. Expected 4 min 10 s of computing, took 4 min 02 s.`"""
    counts = Counter(h.action for h in story.happened)
    parts = ", ".join(f"{counts[a]} {a}" for a in ("computed", "resumed", "reused") if counts[a])
    text = f"{len(story.happened)} stages: {parts}."
    made = [h for h in story.happened if h.action != "reused"]
    if not made:
        return f"{text} Nothing had to be computed."
    expected = [e.seconds for h in made if (e := story.expected(h.stage)) and e.seconds is not None]
    took = duration(sum(h.seconds for h in made))
    if len(expected) == len(made):
        return f"{text} Expected {duration(sum(expected))} of computing, took {took}."
    unknown = len(made) - len(expected)
    return f"{text} Computing took {took}; {unknown} stages had never been measured before."


def first(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    """The first of the metrics `names` that there is."""
    return next((v for n, v in metrics.items() if n in names), None)


def duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `3 min 20 s`, `2 h 05 min`, and from two days on `3 d 04 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24:,} d {hours % 24:02d} h"


def size(count: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    power = next((i for i in range(len(_UNITS)) if count < 1000 ** (i + 1)), len(_UNITS) - 1)
    return f"{count / 1000**power:.{min(power, 1)}f} {_UNITS[power]}"


_WRITTEN: dict[str, Callable[[float], str]] = {
    "seconds": duration,
    "bytes": size,
    "tokens": "{:,.0f}".format,
    "cost": "{:,.2f}".format,
}
