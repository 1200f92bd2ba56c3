"""Which results belong together: those of a run that reached its report."""

from collections.abc import Sequence

from pydantic import BaseModel

from klear.configs.settings.base import MOST_SHOWN
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import STAGES
from klear.tasks.store.care import results
from klear.tasks.store.lineage import ancestors
from klear.tasks.store.store import Manifest, Store

COMPLETE = ".runs/complete.jsonl"  # in a store
LATEST = "latest"


class CompleteRun(BaseModel, frozen=True):
    """A run that reached its report, which names all of its results."""

    profile: str
    seed: int
    name: str
    flow_run: str
    mlflow_run: str
    report: str
    """The key."""


def note_complete(store: Store, run: CompleteRun) -> None:
    """Remember a run, for stages that are run again on its results."""
    path = store.root / COMPLETE
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(run.model_dump_json() + "\n")


def as_of(store: Store, which: str, profile: str, seed: int) -> Manifest:
    """The result whose ancestry `which` means: of `latest`, the report of the last complete run of
    this profile and seed; of the name or id of a run, its report; or stage/key, the key may be cut.

    Raises ConfigError with what there is.
    """
    path = store.root / COMPLETE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [CompleteRun.model_validate_json(line) for line in reversed(lines)]
    mine = [r for r in runs if (r.profile, r.seed) == (profile, seed)]
    named = [r for r in runs if which in (r.name, r.flow_run, r.mlflow_run)]
    stage, _, key = which.partition("/")
    names = [r.report for r in (mine if which == LATEST else named)]
    if stage in STAGES and key:
        return begins(store, stage, key)
    if not names:
        known = ", ".join(dict.fromkeys(r.name for r in (mine or runs)[:MOST_SHOWN])) or "none"
        none = f"whole run of {profile} with seed {seed}" if which == LATEST else f"run {which}"
        raise ConfigError([f"as_of: there is no {none}; complete runs: {known}"])
    return begins(store, "report", names[0])


def begins(store: Store, stage: str, digits: str) -> Manifest:
    """The result whose key begins with the digits; raises ConfigError where that is not one."""
    found = [m for m in results(store, stage) if m.key.startswith(digits)]
    if len(found) != 1:
        several = f"{digits} begins several keys of {stage}: {', '.join(m.key for m in found)}"
        none = f"there is no {stage}/{digits}; `klear store ls` says what there is"
        raise ConfigError([several if found else none])
    return found[0]


def family(store: Store, result: Manifest) -> dict[str, Manifest]:
    """A result and all that it was made from, by stage."""
    return {m.stage: m for m in (*ancestors(store, result), result)}


def mixtures(store: Store, results: Sequence[Manifest]) -> list[str]:
    """What does not belong together among results: a line for each stage that two of them, or what
    they were made from, have with different bytes."""
    met: dict[str, Manifest] = {}
    found: dict[str, str] = {}
    for result in results:
        for stage, m in family(store, result).items():
            other = met.setdefault(stage, m)
            if other.digest != m.digest:
                of = f"{result.stage}/{result.key[:8]}"
                behind = "" if stage == result.stage else f" behind {of}"
                found[stage] = f"{stage}/{other.key[:8]} and {stage}/{m.key[:8]}{behind}"
    return list(found.values())
