"""`klear lineage NAME`: the chain behind a result, and what was made of it."""

import os
from collections.abc import Sequence

from configs.machine import Machine, load_machine
from flows.cli.quantities import duration, size
from tasks.store.care import SHARED, results
from tasks.store.lineage import (
    AVERAGE,
    Named,
    ancestors,
    descendants,
    find_named,
    scores_of,
    statement_of,
)
from tasks.store.shared import open_store
from tasks.store.store import Manifest, Store

NAMES = (
    "a score (rl_code/aime24), a checkpoint or any other result (stage, stage/key, "
    "digest, path, MLflow run or model)"
)


def lineage(name: str, /) -> int:
    """The chain behind a score, a checkpoint or any result, oldest first, then what came of it.

    Args:
        name: rl_code/aime24, sft, stage/key, a digest, a path, an MLflow run or model.
    """
    machine = load_machine()
    store = open_store(machine)
    everything = results(store)
    manifests = [r.manifest for r in everything]
    found = find_named(store, manifests, name) or _by_model(machine, store, manifests, name)
    if not found:
        print(f"the store has no result {name}. It may be {NAMES}; `klear store ls` lists results")
        return 1
    named = found[-1].manifest
    for manifest in (*ancestors(store, named), named):
        print(_line(manifest))
    print()
    _print_score(store, found[-1])
    _print_facts(machine, store, named)
    if any(r.manifest == named and r.where == SHARED for r in everything):
        print("  place        in the shared store alone; a stage that reads it fetches it")
    if later := descendants(manifests, named):
        print("  made of it   " + ", ".join(_name(m) for m in later))
    if others := [n for m in found[:-1] if (n := _name(m.manifest)) != _name(named)]:
        print(f"  also         {', '.join([*dict.fromkeys(others)][-5:])}")
    return 0


def _name(manifest: Manifest) -> str:
    return f"{manifest.stage}/{manifest.key}"


def _line(manifest: Manifest) -> str:
    seed = "" if manifest.seed is None else f"seed {manifest.seed}"
    commit = manifest.git_commit[:12] or "no commit"
    made_by = f"MLflow {manifest.mlflow_run}" if manifest.mlflow_run else "untracked"
    created, digest = manifest.created[:16].replace("T", " "), f"digest {manifest.digest[:16]}"
    return f"{_name(manifest):36} {created}  {commit}  {digest}  {made_by}  {seed}"


def _print_score(store: Store, named: Named) -> None:
    benchmark, _, metric = named.score.rpartition("/")
    names = scores_of(named.manifest)
    if names:
        store.fetch(named.manifest)
    for name in [benchmark] if benchmark else names:
        result = statement_of(store, named.manifest, name)
        if result is None or result["avg"] is None:
            continue
        said = result["statement"]
        print(
            f"  score        {name} avg@{result['k']} {100 * result['avg']:.1f} % "
            f"[{100 * result['ci_low']:.1f}, {100 * result['ci_high']:.1f}], "
            f"T {said['temperature']:g}, top_p {said['top_p']:g}, {said['max_tokens']} tokens, "
            f"grader {said['grader_version']}, checkpoint {said['checkpoint']}"
        )
    if metric not in ("", AVERAGE):
        print(f"  {metric:12} {named.manifest.metrics[named.score]:g}")


def _print_facts(machine: Machine, store: Store, manifest: Manifest) -> None:
    folder = store.folder(manifest.stage, manifest.key)
    count = size(sum(f.bytes for f in manifest.files.values()))
    print(f"  files        {folder} ({count}, computed in {duration(manifest.seconds)})")
    print(f"  settings     {folder / 'manifest.json'}")
    if manifest.mlflow_run:
        runs = f"{machine.mlflow_uri}/#/runs"
        print(f"  stage's run  {runs}/{manifest.mlflow_run}")
        print(f"  whole run    {runs}/{manifest.pipeline_run} (config/resolved.yaml)")
    if manifest.git_commit:
        changed = " (with changes that are in no commit)" * manifest.git_commit.endswith("+")
        print(f"  commit       {manifest.git_commit.rstrip('+')}{changed}")


def _by_model(
    machine: Machine, store: Store, manifests: Sequence[Manifest], name: str
) -> list[Named]:
    """A model of MLflow's, `m-…` or `models:/klear-tiny@best`, by the artifact it points to."""
    if not name.startswith(("models:/", "m-")) and "/models/m-" not in name:
        return []
    os.environ.update(machine.environment())  # the password of the server, if it asks for one
    from tasks.tracking.mlflow_client import Mlflow  # seconds, and most names need no server

    artifact = Mlflow(machine.mlflow_uri).artifact_of(name.rpartition("/models/")[2])
    return find_named(store, manifests, artifact) if artifact else []
