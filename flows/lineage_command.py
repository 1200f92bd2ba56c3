"""`klear lineage SCORE|CHECKPOINT|ARTIFACT`: the chain behind a result, and what was made of it."""

import os
from collections.abc import Sequence

from configs.machine import load_machine
from flows.quantities import duration, size
from tasks.lineage import ancestors, descendants
from tasks.lineage_names import AVERAGE, Named, find_named, scores_of, statement_of
from tasks.shared_results import SHARED, results
from tasks.store import Manifest, Store

OK, FAILED = 0, 1
NAMES = (
    "a score (rl_code/aime24, or its value), a checkpoint or any other result (stage, stage/key, "
    "digest, path, MLflow run or model)"
)


def print_lineage(store: Store, name: str) -> int:
    """The chain behind what `name` means, oldest first, then what came of it. 1: nothing found."""
    everything = results(store)
    manifests = [r.manifest for r in everything]
    found = find_named(store, manifests, name) or _by_model(store, manifests, name)
    if not found:
        print(f"the store has no result {name}. It may be {NAMES}; `klear store ls` lists results")
        return FAILED
    named = found[-1]
    for manifest in (*ancestors(store, named.manifest), named.manifest):
        print(_line(manifest))
    print()
    _print_score(store, named)
    _print_facts(store, named.manifest)
    if (only := [r.manifest for r in everything if r.where == SHARED]) and _is_among(named, only):
        print("  place        in the shared store alone; a stage that reads it fetches it")
    later = descendants(manifests, named.manifest)
    if later:
        print("  made of it   " + ", ".join(f"{m.stage}/{m.key}" for m in later))
    if len(found) > 1:
        print(f"  also         {_others(found)}")
    return OK


def _is_among(named: Named, manifests: Sequence[Manifest]) -> bool:
    name = (named.manifest.stage, named.manifest.key)
    return any((m.stage, m.key) == name for m in manifests)


def _line(manifest: Manifest) -> str:
    seed = "" if manifest.seed is None else f"seed {manifest.seed}"
    commit = manifest.git_commit[:12] or "no commit"
    made_by = f"MLflow {manifest.mlflow_run}" if manifest.mlflow_run else "untracked"
    name = f"{manifest.stage}/{manifest.key}"
    created = manifest.created[:16].replace("T", " ")
    return f"{name:36} {created}  {commit}  digest {manifest.digest[:16]}  {made_by}  {seed}"


def _print_score(store: Store, named: Named) -> None:
    manifest = named.manifest
    benchmark, _, metric = named.score.rpartition("/")
    if scores_of(manifest):
        store.fetch(manifest)
    for name in [benchmark] if benchmark else scores_of(manifest):
        result = statement_of(store, manifest, name)
        if result is None or result["avg"] is None:
            continue
        said = result["statement"]
        top_p = f", top_p {said['top_p']:g}"
        print(
            f"  score        {name} avg@{result['k']} {100 * result['avg']:.1f} % "
            f"[{100 * result['ci_low']:.1f}, {100 * result['ci_high']:.1f}], T "
            f"{said['temperature']:g}{top_p}, {said['max_tokens']} tokens, "
            f"grader {said['grader_version']}, checkpoint {said['checkpoint']}"
        )
    if metric not in ("", AVERAGE):
        print(f"  {metric:12} {manifest.metrics[named.score]:g}")


def _print_facts(store: Store, manifest: Manifest) -> None:
    folder = store.folder(manifest.stage, manifest.key)
    count = sum(f.bytes for f in manifest.files.values())
    print(f"  files        {folder} ({size(count)}, computed in {duration(manifest.seconds)})")
    print(f"  settings     {folder / 'manifest.json'}")
    if manifest.mlflow_run:
        machine = load_machine()
        print(f"  stage's run  {machine.mlflow_uri}/#/runs/{manifest.mlflow_run}")
        print(
            f"  whole run    {machine.mlflow_uri}/#/runs/{manifest.pipeline_run} "
            "(config/resolved.yaml)"
        )
    if manifest.git_commit:
        changed = " (with changes that are in no commit)" * manifest.git_commit.endswith("+")
        print(f"  commit       {manifest.git_commit.rstrip('+')}{changed}")


def _others(found: Sequence[Named]) -> str:
    names = dict.fromkeys(f"{n.manifest.stage}/{n.manifest.key}" for n in found[:-1])
    last = f"{found[-1].manifest.stage}/{found[-1].manifest.key}"
    return ", ".join([n for n in names if n != last][-5:]) or "the same result under other scores"


def _by_model(store: Store, manifests: Sequence[Manifest], name: str) -> list[Named]:
    """A model of MLflow's, `m-…` or `models:/klear-tiny@best`, by the artifact it points to."""
    if not name.startswith(("models:/", "m-")) and "/models/m-" not in name:
        return []
    machine = load_machine()
    os.environ.update(machine.environment())  # the password of the server, if it asks for one
    from tasks.tracking import Mlflow  # seconds, and most names need no server

    artifact = Mlflow(machine.mlflow_uri).artifact_of(name.rpartition("/models/")[2])
    return find_named(store, manifests, artifact) if artifact else []
