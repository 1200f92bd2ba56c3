"""What a result was made from, what was made of it, and which result a score is of."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from configs.settings.base import MOST_SHOWN
from configs.settings.explain import ConfigError
from tasks.store.store import InputRef, Manifest, Store

COMPLETE = ".runs/complete.jsonl"  # in a store
LATEST = "latest"
AVERAGE = "avg"
EVALUATION = "evaluate_"


def ancestors(store: Store, *results: Manifest) -> list[Manifest]:
    """Everything that `results` were made from, each once, oldest first, without themselves.

    A result that is gone from the store ends its branch.
    """
    seen = {(r.stage, r.key) for r in results}
    found: list[Manifest] = []

    def visit(refs: Sequence[InputRef]) -> None:
        for ref in refs:
            if (ref.stage, ref.key) in seen:
                continue
            seen.add((ref.stage, ref.key))
            try:
                parent = store.manifest(ref)
            except FileNotFoundError:
                continue
            visit(parent.inputs)
            found.append(parent)

    for result in results:
        visit(result.inputs)
    return found


def descendants(everything: Sequence[Manifest], result: Manifest) -> list[Manifest]:
    """All of `everything` that was made of `result`, directly or not; a resampled input counts
    only with the digest that was read."""
    made_of, found, size = {(result.stage, result.key, result.digest)}, list[Manifest](), -1
    while size < len(found):  # a forced result of equal bytes is younger than what was made of it
        size = len(found)
        for m in everything:
            read = {(i.stage, i.key, i.digest) for i in m.inputs}
            if (m.stage, m.key, m.digest) not in made_of and made_of & read:
                made_of.add((m.stage, m.key, m.digest))
                found.append(m)
    return found


def find_named(manifests: Sequence[Manifest], name: str) -> tuple[Manifest, str] | None:
    """The newest of `manifests` (oldest first) that `name` means, and the metric that was named.

    A name is a stage, stage/key (the key may be cut), or a score: [checkpoint/]benchmark[/metric].
    """
    stage, _, key = name.partition("/")
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
    stage, slash, key = which.partition("/")
    names = [f"report/{r.report}" for r in (mine if which == LATEST else named)[:1]]
    names += [f"{stage}/{p.name}" for p in store.root.glob(f"{stage}/{key}*") if slash and key]
    found = [m for n in names if (m := store.find(*n.split("/"))[0])]
    if len(found) != 1:
        several = f"{which} means {', '.join(names)}"
        known = ", ".join(dict.fromkeys(r.name for r in (mine or runs)[:MOST_SHOWN])) or "none"
        none = f"no whole run of {profile} with seed {seed}" if which == LATEST else f"no {which}"
        raise ConfigError([f"as_of: {several if found else none}; complete runs: {known}"])
    return store.manifest(found[0])


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
