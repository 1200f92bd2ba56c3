"""What a run would do, stage by stage, and why: the flow itself, run with stages that only look.

A stage whose inputs are all in the store has a key, so its result is there or not. Below a stage
that must compute, keys are not known yet: those stages compute unless the new rows turn out to
be the old ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import orjson
from pydantic import BaseModel, JsonValue

from configs.base import Settings, fields_with_meaning, is_unsaid
from configs.topology import Topology
from configs.training_stages import BaseModelSettings
from tasks.earlier import Earlier, Past, flat
from tasks.forecast import Forecast, Forecaster
from tasks.run import Run
from tasks.stage import Stage
from tasks.store import SCRATCH, Artifact, Manifest

Action = Literal["reuse", "resume", "compute"]
Basis = Literal["recorded", "measured", "assumed", "unknown"]
MOST_REASONS = 3
MOST_ALIKE = 12
"""With more differences an earlier result is another thing, and listing them explains nothing."""
LONGEST_VALUE = 40
UNKNOWN = ""
"""The digest of a result that is not there yet."""

__all__ = ["PlannedStage", "Planner", "differences", "flat"]


@dataclass(frozen=True)
class PlannedStage:
    """One line of the plan. What is reused has its recorded figures; what is to be computed those
    of `tasks.forecast`, None where nothing is known."""

    stage: str
    action: Action
    why: str
    key: str = ""
    seconds: float | None = None
    bytes: float | None = None
    tokens: float | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    basis: Basis = "unknown"
    """recorded: of this result; measured: by rates of the store; assumed: partly or wholly not."""
    how: str = ""
    """The arithmetic behind the time."""
    assumptions: tuple[str, ...] = ()
    """Names in `configs.assumptions.Assumptions`."""
    assumed: frozenset[str] = frozenset()
    """Names of the figures above that rest on an assumption."""
    rests: tuple[tuple[str, float], ...] = ()
    """(assumed rate, seconds that are in inverse ratio to it)."""


class Planner:
    """Stands in for the stages of a run: `stages` holds what each would do, in order.

    `topology` and `base` say on which machines, from which model: for time and GPU-hours.
    """

    def __init__(
        self, topology: Topology | None = None, base: BaseModelSettings | None = None
    ) -> None:
        self.stages: list[PlannedStage] = []
        self._topology, self._base = topology, base
        self._known: tuple[Earlier, Forecaster] | None = None

    def look(
        self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings, run: Run
    ) -> Artifact:
        """The published result, or an artifact without a digest where one must be made; its
        metrics are then the counts that the forecast expects."""
        if self._known is None:
            earlier = Earlier(run.store)
            self._known = earlier, Forecaster(earlier, self._topology, self._base)
        wanted = Wanted(stage, inputs, settings, run)
        unknown = [i.stage for i in inputs if i.digest == UNKNOWN]
        if unknown:
            _, different = _nearest(self._known[0], wanted)
            own = different if len(different) <= MOST_REASONS else []  # more: another profile's
            why = "; ".join([f"after {_few(unknown, ', ')}", *own])
            return self._computes(wanted, "compute", why)
        key = stage.key(inputs, settings, run)
        found, damage = run.store.find(stage.name, key)
        if found and stage.name not in run.force:
            self.stages.append(_reused(found, run.store.manifest(found)))
            return found
        if not found and (work := run.store.work(stage.name, key)).exists():
            return self._computes(wanted, "resume", damage or "was interrupted", key, work)
        return self._computes(wanted, "compute", "forced" if found else damage, key)

    def _computes(
        self, wanted: "Wanted", action: Action, why: str, key: str = "", work: Path | None = None
    ) -> Artifact:
        assert self._known is not None
        earlier, forecaster = self._known
        stage = wanted.stage
        forecast = forecaster.of(stage, wanted.inputs, wanted.settings)
        nearest, different = (None, []) if why and forecast else _nearest(earlier, wanted)
        if forecast is None:
            forecast = _as_before(nearest)
        done = _progress(work) if work else None
        left = 1.0 if done is None else 1.0 - done[0] / max(1.0, done[1])
        if done:
            why += f" at {done[0]:,.0f} of {done[1]:,.0f}"
        line = PlannedStage(
            stage=stage.name,
            action=action,
            why=why or _why(wanted, nearest, different),
            key=key,
            seconds=_part(forecast.seconds, left),
            bytes=forecast.bytes,
            tokens=_part(forecast.tokens, left),
            gpu_hours=_part(forecast.gpu_hours, left),
            cost=_part(forecast.cost, left),
            basis=forecast.basis,
            how=forecast.how,
            assumptions=forecast.assumptions,
            assumed=forecast.assumed,
            rests=tuple((rate, seconds * left) for rate, seconds in forecast.rests),
        )
        self.stages.append(line)
        counts = dict(forecast.counts)
        return Artifact(stage=stage.name, key=key, digest=UNKNOWN, folder=Path(), metrics=counts)


def _part(value: float | None, left: float) -> float | None:
    return None if value is None else value * left


def _reused(found: Artifact, manifest: Manifest) -> PlannedStage:
    size = sum(f.bytes for f in manifest.files.values())
    tokens = found.metrics.get("tokens") or found.metrics.get("completion_tokens")
    return PlannedStage(
        found.stage,
        "reuse",
        "",
        found.key,
        found.seconds,
        size,
        tokens,
        cost=found.metrics.get("cost"),
        basis="recorded",
    )


def _as_before(nearest: Past | None) -> Forecast:
    """For work that nobody has described: what the nearest earlier result took."""
    if nearest is None:
        return Forecast(how="not counted: never measured")
    seconds, size = nearest.manifest.seconds, float(nearest.bytes)
    how = f"as {nearest.manifest.stage}/{nearest.manifest.key[:8]}"
    return Forecast(seconds=seconds, bytes=size, basis="measured", how=how)


def _progress(work: Path) -> tuple[float, float] | None:
    """(done, total) that a child process reported last before it ended."""
    try:
        said = orjson.loads((work / SCRATCH / "progress.json").read_bytes())
        return float(said["done"]), float(said["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Wanted:
    """A stage as a run would call it."""

    stage: Stage
    inputs: tuple[Artifact, ...]
    settings: Settings
    run: Run

    @cached_property
    def flat(self) -> Mapping[str, JsonValue]:
        return flat(self.settings.model_dump(mode="json"))

    @cached_property
    def how(self) -> frozenset[str]:
        return frozenset(_marked(self.settings, lambda s, name: name not in fields_with_meaning(s)))

    @cached_property
    def unsaid(self) -> frozenset[str]:
        """Settings at their default that results of before they came do not have."""
        return frozenset(_marked(self.settings, is_unsaid))

    def says_how(self, name: str) -> bool:
        """Whether a setting says how and not what, alone or with the group that it is in."""
        parts = name.split(".")
        return any(".".join(parts[:n]) in self.how for n in range(1, len(parts) + 1))


def _why(wanted: "Wanted", nearest: Past | None, different: Sequence[str]) -> str:
    if nearest is None:
        return "never computed"
    if not different and any(True for _ in wanted.stage.reads(wanted.settings)):
        return "a file that it reads has changed"
    if not different:
        return "keyed by another version of klear"
    if len(different) > MOST_ALIKE:
        return f"nothing alike: {len(different)} settings differ from the nearest result"
    return _few(different, "; ")


def _few(texts: Sequence[str], separator: str) -> str:
    more = len(texts) - MOST_REASONS
    shown = separator.join(texts[:MOST_REASONS])
    return f"{shown}{separator}{more} more" if more > 0 else shown


def _nearest(earlier: Earlier, wanted: Wanted) -> tuple[Past | None, list[str]]:
    """The earlier result that differs least, and how it differs."""
    compared = [(past, differences(past, wanted)) for past in earlier.of(wanted.stage.name)]
    return min(compared, key=lambda pair: len(pair[1]), default=(None, []))


def differences(past: Past, wanted: Wanted) -> list[str]:
    """What keeps an earlier result from being this one: `name: old → new`, or whose rows."""
    manifest, stage, run = past.manifest, wanted.stage, wanted.run
    if manifest.version != stage.version:  # its settings may be other ones altogether
        return [f"meaning of the stage: version {manifest.version} → {stage.version}"]
    found = []
    if stage.takes_seed and manifest.seed != run.seed:
        found.append(f"seed: {manifest.seed} → {run.seed}")
    old, new = past.settings, wanted.flat
    for name in dict.fromkeys((*new, *old)):
        if name in wanted.unsaid and name not in old:
            continue
        if old.get(name) != new.get(name) and not wanted.says_how(name):
            found.append(f"{name}: {_short(old.get(name))} → {_short(new.get(name))}")
    for before, now in zip(manifest.inputs, wanted.inputs, strict=False):
        if now.digest not in (UNKNOWN, before.digest):
            found.append(f"other rows from {now.stage}")
    return found


def _marked(
    value: object, is_marked: Callable[[BaseModel, str], bool], prefix: str = ""
) -> Iterator[str]:
    """Dotted names of the settings for which `is_marked` holds, as `flat` names them."""
    if isinstance(value, tuple):
        for i, entry in enumerate(value):
            yield from _marked(entry, is_marked, f"{prefix}.{getattr(entry, 'name', None) or i}")
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            path = f"{prefix}.{name}" if prefix else name
            if is_marked(value, name):
                yield path
            else:
                yield from _marked(getattr(value, name), is_marked, path)


def _short(value: JsonValue) -> str:
    text = "none" if value is None else "''" if value == "" else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
