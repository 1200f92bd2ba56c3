"""What a run would do, stage by stage, and why.

A stage whose inputs are all in the store has a key, so its result is there or not. Below a stage
that must compute, keys are not known yet: those stages compute unless the new rows turn out to
be the old ones.
"""

from dataclasses import replace
from pathlib import Path

import orjson

from klear.configs.settings.base import MOST_SHOWN, Settings, first_few, flat, meaning, short
from klear.configs.settings.topology import Topology
from klear.configs.settings.training import BaseModelSettings
from klear.tasks.planning.forecast import NO_MACHINES, Forecaster
from klear.tasks.planning.history import PastResult, StoreHistory
from klear.tasks.planning.work import tokens_of
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.stage.run import Run
from klear.tasks.stage.stage import Stage
from klear.tasks.store.store import Artifact
from klear.training.layout import PROGRESS

UNKNOWN = ""
"""The digest of a result that is not there yet."""


class Planner:
    """Looks at stages instead of computing them: `stages` holds what each would do, in order.

    `topology` and `base` say on which machines, from which model: for time and GPU-hours.
    """

    def __init__(
        self, run: Run, topology: Topology = NO_MACHINES, base: BaseModelSettings | None = None
    ) -> None:
        self.stages: list[PlannedStage] = []
        self._run, self._earlier = run, StoreHistory(run.store)
        self._forecaster = Forecaster(self._earlier, topology, base)

    def look(self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings) -> Artifact:
        """The published result, or an artifact without a digest where one must be made; its
        metrics are then the counts that the forecast expects."""
        name, store = stage.name, self._run.store
        names = tuple(i.stage for i in inputs)
        unknown = [i.stage for i in inputs if i.digest == UNKNOWN]
        key = "" if unknown else stage.key(inputs, settings, self._run)
        found, why = store.find(name, key) if key else (None, "")
        if found and name not in self._run.force:
            past = PastResult(store.manifest(found), found.folder)
            tokens = tokens_of(stage.body.__name__, past)
            figures = found.seconds, past.manifest.bytes, tokens, found.metrics.get("cost")
            self.stages.append(PlannedStage(name, "reuse", "", *figures, key=key, inputs=names))
            return found
        line = self._forecaster.of(stage, inputs, settings)
        work = store.work(name, key)
        if found:
            line = replace(line, why="forced")
        elif key and work.exists():
            line = _resumed(line, work, why or "was interrupted")
        else:
            different = self._nearest(stage, inputs, settings)
            if unknown:
                why = f"after {', '.join(first_few(unknown))}"
                if different and len(different) <= MOST_SHOWN:  # more: another profile's
                    why = "; ".join([why, *different])
            elif not why and different is not None:
                why = "; ".join(first_few(different)) or "a file that it reads, or klear, changed"
            line = replace(line, why=why or "never computed")
        self.stages.append(replace(line, key=key, inputs=names))
        counts = dict(line.counts)
        return Artifact(stage=name, key=key, digest=UNKNOWN, folder=Path(), metrics=counts)

    def _nearest(
        self, stage: Stage, inputs: tuple[Artifact, ...], settings: Settings
    ) -> list[str] | None:
        """How the earlier result that differs least differs; None where there is none."""
        now = flat(meaning(settings), lists=True)
        in_key = flat(meaning(settings, as_key=True), lists=True)
        there_is = flat(settings.model_dump(mode="json"), lists=True)

        def differences(past: PastResult) -> list[str]:
            """What keeps it from being this one: `name: old → new`, or whose rows."""
            manifest, old = past.manifest, past.settings
            if manifest.version != stage.version:  # its settings may be other ones altogether
                return [f"meaning of the stage: version {manifest.version} → {stage.version}"]
            found = []
            if stage.takes_seed and manifest.seed != self._run.seed:
                found.append(f"seed: {manifest.seed} → {self._run.seed}")
            for name in (*now, *(n for n in old if n not in there_is)):
                differs = old.get(name) != now.get(name)
                if differs and (name in old or name in in_key):
                    found.append(f"{name}: {short(old.get(name))} → {short(now.get(name))}")
            for before, given in zip(manifest.inputs, inputs, strict=False):
                if given.digest not in (UNKNOWN, before.digest):
                    found.append(f"other rows from {given.stage}")
            return found

        compared = map(differences, self._earlier.of(stage.name))
        return min(compared, key=len, default=None)


def _resumed(line: PlannedStage, work: Path, why: str) -> PlannedStage:
    """Less is left to do by as much as a child process reported last before it ended."""
    try:
        said = orjson.loads((work / PROGRESS).read_bytes())
        done, total = float(said["done"]), float(said["total"])
    except (OSError, ValueError, KeyError, TypeError):
        return replace(line, action="resume", why=why)
    figures = {n: getattr(line, n) for n in ("seconds", "tokens", "gpu_hours", "cost")}
    left = {n: v * (1.0 - done / max(1.0, total)) for n, v in figures.items() if v is not None}
    return replace(line, action="resume", why=f"{why} at {done:,.0f} of {total:,.0f}", **left)
