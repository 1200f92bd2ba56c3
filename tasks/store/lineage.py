"""Which results there are, what each is made from, which belong together, which a name means."""

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from pydantic import BaseModel, ValidationError

from ...configs.settings.base import MOST_SHOWN
from ...configs.settings.explain import ConfigError, nearest
from ...configs.settings.pipeline import STAGES
from .shared import SharedStore, parsed
from .store import MANIFEST, InputRef, Manifest, Store

AVERAGE = "avg"
EVALUATION = "evaluate_"
COMPLETE = ".runs/complete.jsonl"  # in a store
LATEST = "latest"


def manifests_here(store: Store, stage: str = "[!.]*") -> dict[str, Manifest | None]:
    """stage/key → manifest of every folder here, or of one stage; None where it cannot be read."""
    manifests: dict[str, Manifest | None] = {}
    for folder in sorted(p for p in store.root.glob(f"{stage}/[!.]*") if p.is_dir()):
        name = f"{folder.parent.name}/{folder.name}"
        manifests[name] = None
        with suppress(OSError):
            manifests[name] = parsed((folder / MANIFEST).read_bytes())
    return manifests


def results(store: Store, stage: str = "") -> list[Manifest]:
    """Every readable result that this machine can use, the oldest first; of `stage`, if named."""
    here = [m for m in manifests_here(store).values() if m and stage in ("", m.stage)]
    far = store.manifests(stage).values() if isinstance(store, SharedStore) else ()
    by_key = {(m.stage, m.key): m for m in (*filter(None, map(parsed, far)), *here)}
    return sorted(by_key.values(), key=lambda m: (m.made, m.stage, m.key))


def ancestors(store: Store, *results: Manifest) -> list[Manifest]:
    """Everything that `results` were made from, each once, oldest first, without themselves."""
    seen = {(r.stage, r.key) for r in results}
    parents: list[Manifest] = []

    def visit(refs: Sequence[InputRef]) -> None:
        for ref in refs:
            if (ref.stage, ref.key) in seen:
                continue
            seen.add((ref.stage, ref.key))
            try:
                parent = store.manifest(ref)
            except FileNotFoundError:  # gone from the store: it ends its branch
                continue
            visit(parent.inputs)
            parents.append(parent)

    for result in results:
        visit(result.inputs)
    return parents


def find_named(store: Store, name: str) -> tuple[Manifest, str] | None:
    """The result that `name` means and the metric that was named. Of several results that of the
    last complete run, else the newest: not an experiment with one stage since then.

    A name is a stage, stage/key (the key may be cut), or a score: [checkpoint/]benchmark[/metric].
    """
    last, (stage, _, key) = of_last_run(store), name.partition("/")
    manifests = sorted(results(store), key=lambda m: (m.stage, m.key) in last)
    for m in reversed(manifests):
        if m.stage == stage and m.key.startswith(key):
            return m, ""
    for m in reversed(manifests):
        checkpoint = m.stage.removeprefix(EVALUATION)
        if checkpoint != m.stage:
            score = name.removeprefix(EVALUATION).removeprefix(f"{checkpoint}/")
            for metric in (score, f"{score}/{AVERAGE}"):
                if metric in m.metrics:
                    return m, metric
    return None


def scores_of(store: Store, manifest: Manifest) -> dict[str, dict[str, Any]]:
    """What an evaluation found by benchmark, with everything that makes it comparable."""
    if not manifest.stage.startswith(EVALUATION):
        return {}
    store.fetch(manifest)
    path = store.folder(manifest.stage, manifest.key) / "results.json"
    return {r["name"]: r for r in json.loads(path.read_text())} if path.exists() else {}


class CompleteRun(BaseModel, frozen=True):
    """A run that reached its report, which names all of its results."""

    profile: str
    seed: int
    name: str
    flow_run: str
    mlflow_run: str
    report: str
    """The key."""
    source: str = ""
    """The profile as it was named: the path of a file."""
    overrides: tuple[str, ...] = ()
    """What it changed of its profile."""


def note_complete(store: Store, run: CompleteRun) -> None:
    """Remember a run, for stages that are run again on its results."""
    path = store.root / COMPLETE
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{run.model_dump_json()}\n")  # begins a line where a crash cut the last one


def complete_runs(store: Store) -> list[CompleteRun]:
    """The newest first, without one whose line a crash cut."""
    path, runs = store.root / COMPLETE, list[CompleteRun]()
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in reversed(text.splitlines()):
        with suppress(ValidationError):
            runs.append(CompleteRun.model_validate_json(line))
    return runs


def run_of(store: Store, result: Manifest) -> CompleteRun | None:
    """The last complete run that has the result as its report, else one that computed it."""
    runs = complete_runs(store)
    reports = (r for r in runs if (result.stage, result.key) == ("report", r.report))
    computed = (r for r in runs if r.mlflow_run == result.pipeline_run)
    return next(chain(reports, computed), None)


def find_run(store: Store, which: str) -> CompleteRun:
    """The last complete run of this name or id, `latest`: of all; raises ConfigError."""
    runs = complete_runs(store)
    for run in runs:
        if which in (LATEST, run.name, run.flow_run, run.mlflow_run):
            return run
    names = [*dict.fromkeys(r.name for r in runs)]
    choice = f"{nearest(which, names)} (complete are: {', '.join(names[:MOST_SHOWN]) or 'none'})"
    raise ConfigError([f"no run {which} is complete (until its report){choice}"])


def of_last_run(store: Store) -> set[tuple[str, str]]:
    """(stage, key) of the results of the last complete run, which a person means who names none."""
    for run in complete_runs(store)[:1]:
        with suppress(ConfigError):  # it is gone
            results_by_stage = ancestry(store, find_by_prefix(store, "report", run.report))
            return {(stage, result.key) for stage, result in results_by_stage.items()}
    return set()


def resolve_run(store: Store, which: str, profile: str, seed: int) -> Manifest:
    """The result whose ancestry `which` means: of `latest`, the report of the last complete run of
    this profile and seed; of the name or id of a run, its report; or stage/key, the key may be cut.

    Raises ConfigError with what there is.
    """
    stage, _, key = which.partition("/")
    if stage in STAGES and key:
        return find_by_prefix(store, stage, key)
    if which != LATEST:
        return find_by_prefix(store, "report", find_run(store, which).report)
    runs = complete_runs(store)
    for run in runs:
        if (run.profile, run.seed) == (profile, seed):
            return find_by_prefix(store, "report", run.report)
    none = f"no run of {profile} with seed {seed} is complete (until its report)"
    names = ", ".join(dict.fromkeys(r.name for r in runs[:MOST_SHOWN])) or "none"
    raise ConfigError([f"{none}; complete are: {names}"])


def find_by_prefix(store: Store, stage: str, digits: str) -> Manifest:
    """The result whose key begins with the digits; raises ConfigError where that is not one."""
    matches = [m for m in results(store, stage) if m.key.startswith(digits)]
    if len(matches) != 1:
        several = f"{digits} begins several keys of {stage}: {', '.join(m.key for m in matches)}"
        none = f"there is no {stage}/{digits}; `klear store ls` says what there is"
        raise ConfigError([several if matches else none])
    return matches[0]


def ancestry(store: Store, result: Manifest) -> dict[str, Manifest]:
    """A result and all that it was made from, by stage."""
    return {m.stage: m for m in (*ancestors(store, result), result)}


def provenance_conflicts(store: Store, results: Sequence[Manifest]) -> list[str]:
    """What does not belong together among results: a line for each stage that two of them, or what
    they were made from, have with different bytes."""
    met: dict[str, Manifest] = {}
    conflicts: dict[str, str] = {}
    for result in results:
        for stage, m in ancestry(store, result).items():
            other = met.setdefault(stage, m)
            if other.digest != m.digest:
                source = f"{result.stage}/{result.key[:8]}"
                behind = "" if stage == result.stage else f" behind {source}"
                conflicts[stage] = f"{stage}/{other.key[:8]} and {stage}/{m.key[:8]}{behind}"
    return list(conflicts.values())
