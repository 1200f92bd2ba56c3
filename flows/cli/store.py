"""`klear store ls|du|verify|gc`: what the store holds, and whether it is whole."""

import sys
from collections.abc import Iterable
from typing import Annotated

from cyclopts import App, Parameter

from configs.machine import load_machine
from configs.settings.explain import nearest
from configs.stage_names import STAGES
from flows.cli.quantities import duration, size, when
from tasks.store.care import (
    Result,
    damaged,
    is_busy,
    published,
    remove,
    results,
    unreadable,
    waste,
)
from tasks.store.shared import SharedStore, open_store
from tasks.store.store import Store

store = App(name="store")


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
        name, place = f"{manifest.stage}/{manifest.key}", where * isinstance(here, SharedStore)
        took = duration(manifest.seconds)
        print(f"{when(made)}  {name:36} {size(count):>9}  {took:>12}  {place}".rstrip())
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
    checked = [
        (wrong, "the next run here that makes it computes it again") for _, wrong in damaged(here)
    ]
    if isinstance(here, SharedStore):
        remedy = "`klear run --verify` sends the copy of its machine again, or computes it again"
        checked += [(wrong, remedy) for _, wrong in here.shared_damage()]
    bad = [(wrong, remedy) for wrong, remedy in checked if wrong]
    for wrong, remedy in bad:
        print(f"damaged: {wrong}; {remedy}")
    print(f"{len(checked)} results read, {len(bad)} damaged")
    return 1 if bad else 0


def _days(_: object, days: float) -> None:
    if not days >= 0:
        raise ValueError(f"{days} is no number of days, zero or more")


@store.command
def gc(
    *,
    days: Annotated[float, Parameter(validator=_days)] = 7.0,
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
