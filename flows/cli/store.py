"""`klear store ls|du|verify|gc`, and `klear lineage`: what the store holds and where it is from."""

import os
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from configs.machine import Machine, load_machine
from configs.settings.explain import nearest
from configs.stage_names import STAGES
from tasks.report.run_story import duration, size
from tasks.store.care import (
    SHARED,
    Result,
    damaged,
    is_busy,
    published,
    remove,
    results,
    unreadable,
    waste,
)
from tasks.store.lineage import (
    AVERAGE,
    Named,
    ancestors,
    descendants,
    find_named,
    scores_of,
    statement_of,
)
from tasks.store.shared import SharedStore, open_store
from tasks.store.store import Manifest, Store

store = App(name="store")


def when(moment: float) -> str:
    """A Unix time on this machine's clock: `2026-08-01 12:30`."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def by_stage(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Results by their stage, in the order of a run."""
    stages: dict[str, list[Result]] = {name: [] for name in STAGES}
    for result in found:
        stages.setdefault(result.manifest.stage, []).append(result)
    return {name: some for name, some in stages.items() if some}


@store.command
def ls(stage: str = "", /) -> None:
    """Every result, the oldest first; of one stage, if named."""
    here = open_store(load_machine())
    found = results(here, stage)
    for manifest, count, made, where in found:
        place, took = where * isinstance(here, SharedStore), duration(manifest.seconds)
        print(f"{when(made)}  {_name(manifest):36} {size(count):>9}  {took:>12}  {place}".rstrip())
    if not found:
        meant = nearest(stage, STAGES) if stage not in STAGES else ""
        print(f"no results{f' of {stage}' * bool(stage)} in {here.root}{meant}", file=sys.stderr)


@store.command
def du() -> None:
    """Results and bytes of every stage."""
    here = open_store(load_machine())
    found = published(here)
    for stage, some in by_stage(found).items():
        print(f"{stage:18} {len(some):5}  {size(sum(r.bytes for r in some)):>9}")
    print(f"{'all':18} {len(found):5}  {size(sum(r.bytes for r in found)):>9}   {here.root}")


@store.command
def verify() -> int:
    """Read every file and compare its digest. Exit code 1 when something is damaged."""
    here = open_store(load_machine())
    again = "the next run here that makes it computes it again"
    checked = [(wrong, again) for _, wrong in damaged(here)]
    if isinstance(here, SharedStore):
        remedy = "`klear run --verify` sends the copy of its machine again, or computes it again"
        checked += [(wrong, remedy) for _, wrong in here.shared_damage()]
    bad = [(wrong, remedy) for wrong, remedy in checked if wrong]
    for wrong, remedy in bad:
        print(f"damaged: {wrong}; {remedy}")
    print(f"{len(checked)} results read, {len(bad)} damaged")
    return 1 if bad else 0


@store.command
def gc(
    *,
    days: Annotated[float, Parameter(validator=Number(gte=0))] = 7.0,
    uploads: bool = False,
    yes: bool = False,
) -> None:
    """List what no report needs.

    Args:
        days: Keep what is younger.
        uploads: Also uploads to the shared store that no result names; only while nobody uploads.
        yes: Remove, instead of listing only.
    """
    here = open_store(load_machine())
    if is_busy(here):
        print("a run is under way: results are kept, for it may be reading them")
    elif lost := unreadable(here):
        print(
            f"{', '.join(lost[:3])} cannot be read: results are kept, for nobody knows what they "
            f"were made from; a newer klear may have made it, or run again what did, or remove its "
            f"folder below {here.root}"
        )
    _collect(here, days, remove_it=yes)
    if isinstance(here, SharedStore):
        _collect_uploads(here, remove_it=uploads and yes)


def _collect(here: Store, days: float, *, remove_it: bool) -> None:
    found, freed = waste(here, days), 0
    for rubbish in found:
        gone = remove_it and remove(here, rubbish)
        freed += rubbish.bytes if gone or not remove_it else 0
        state = "removed" if gone else "in use, kept" if remove_it else "would go"
        print(f"{state:12} {rubbish.name:44} {size(rubbish.bytes):>9}  {rubbish.why}")
    verb = "freed" if remove_it else "would be freed; --yes removes"
    print(f"{len(found)} folders, {size(freed)} {verb}")


def _collect_uploads(far: SharedStore, *, remove_it: bool) -> None:
    """An upload under way on another machine looks like one that was killed."""
    found = far.unnamed_uploads()
    for name in found:
        if remove_it:
            far.objects.remove(name)
        print(f"{'removed' if remove_it else 'unnamed':12} {far.objects.url}/{name}")
    if found and not remove_it:
        print(
            f"{len(found)} uploads that no result names: killed, replaced, or under way; "
            "--uploads --yes removes them, when no machine is uploading"
        )


def lineage(name: str, /) -> int:
    """The chain behind a score, a checkpoint or any result, oldest first, then what came of it.

    Args:
        name: rl_code/aime24, sft, stage/key, a digest, a path, an MLflow run or model.
    """
    machine = load_machine()
    here = open_store(machine)
    everything = results(here)
    manifests = [r.manifest for r in everything]
    meant = find_named(here, manifests, name)
    if not meant and (artifact := _artifact_of_model(machine, name)):
        meant = find_named(here, manifests, artifact)
    if not meant:
        print(
            f"the store has no result {name}. It may be a score (rl_code/aime24), a checkpoint or "
            "any other result (stage, stage/key, digest, path, MLflow run or model); "
            "`klear store ls` lists results"
        )
        return 1
    named = meant[-1].manifest
    for manifest in (*ancestors(here, named), named):
        seed = "" if manifest.seed is None else f"seed {manifest.seed}"
        made_by = f"MLflow {manifest.mlflow_run}" if manifest.mlflow_run else "untracked"
        created, commit = manifest.created[:16].replace("T", " "), manifest.git_commit[:12]
        print(
            f"{_name(manifest):36} {created}  {commit or 'no commit'}  "
            f"digest {manifest.digest[:16]}  {made_by}  {seed}"
        )
    print()
    _print_scores(here, meant[-1])
    _print_places(machine, here, named)
    if any(r.manifest == named and r.where == SHARED for r in everything):
        print("  place        in the shared store alone; a stage that reads it fetches it")
    if later := descendants(manifests, named):
        print("  made of it   " + ", ".join(map(_name, later)))
    if others := [n for m in meant[:-1] if (n := _name(m.manifest)) != _name(named)]:
        print(f"  also         {', '.join([*dict.fromkeys(others)][-5:])}")
    return 0


def _name(manifest: Manifest) -> str:
    return f"{manifest.stage}/{manifest.key}"


def _print_scores(here: Store, named: Named) -> None:
    benchmark, _, metric = named.score.rpartition("/")
    names = scores_of(named.manifest)
    if names:
        here.fetch(named.manifest)
    for name in [benchmark] if benchmark else names:
        result = statement_of(here, named.manifest, name)
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


def _print_places(machine: Machine, here: Store, manifest: Manifest) -> None:
    folder = here.folder(manifest.stage, manifest.key)
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


def _artifact_of_model(machine: Machine, name: str) -> str:
    """What a model of MLflow's, `m-…` or `models:/klear-tiny@best`, points to; '' for no model."""
    if not name.startswith(("models:/", "m-")) and "/models/m-" not in name:
        return ""
    os.environ.update(machine.environment())  # the password of the server, if it asks for one
    from tasks.tracking.mlflow_client import Mlflow  # seconds, and most names need no server

    return Mlflow(machine.mlflow_uri).artifact_of(name.rpartition("/models/")[2]) or ""
