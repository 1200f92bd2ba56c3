"""Keeping a store in order: what is damaged, what nothing needs any more."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from .lineage import ancestors, manifests_here
from .store import Store

SECONDS_A_DAY = 86_400.0
KEPT = ("report/", "ablate_", "eval_model/")  # with these end runs, experiments, `klear eval`


class Garbage(NamedTuple):
    """A folder that can go; `name` is where it lies below the store."""

    name: str
    bytes: int
    why: str


def damaged(store: Store) -> Iterator[tuple[str, str]]:
    """(stage/key, what is wrong, '' for a sound result) of every result here, by its digests."""
    for name in manifests_here(store):
        yield name, Store.find(store, *name.split("/"), verify=True)[1]


def find_garbage(store: Store, days: float) -> tuple[list[Garbage], str]:
    """What nothing that is kept was made from, older than `days`: kept are reports, what a run made
    that is to be continued, and what is younger. And what killed runs left, alone while something
    keeps all results: then it says what."""
    oldest_kept = time.time() - days * SECONDS_A_DAY
    left = list(_left_behind(store, oldest_kept))
    if _is_busy(store):
        return left, "a run is under way: results are kept, for it may be reading them"
    manifests = manifests_here(store)
    readable = {name: m for name, m in manifests.items() if m}
    if lost := [name for name in manifests if name not in readable]:
        return left, (
            f"{', '.join(lost[:3])} cannot be read: results are kept, for nobody knows what they "
            f"were made from; run again what made it, or remove its folder in {store.root}"
        )
    try:
        runs = _unfinished(store)
    except ValueError as error:
        return left, f"{error}: results are kept, for a run may go on with them"
    kept = [
        m for n, m in readable.items()
        if n.startswith(KEPT) or m.made >= oldest_kept or m.pipeline_run in runs
    ]  # fmt: skip
    needed = {f"{m.stage}/{m.key}" for m in (*kept, *ancestors(Store(store.root), *kept))}
    unneeded = [
        Garbage(name, manifest.bytes, "no report needs it")
        for name, manifest in readable.items()
        if name not in needed
    ]
    return [*unneeded, *left], ""


def remove(store: Store, rubbish: Garbage) -> bool:
    """Remove it; False when a run holds it at this moment."""
    stage, key = rubbish.name.split("/")[-2:]
    with store.lock(f"{stage}-{key}", wait=False) as free:
        if free and rubbish.name.startswith("."):
            shutil.rmtree(store.root / rubbish.name, ignore_errors=True)
        elif free and _is_busy(store, "run-*"):  # it began since the search, and may read it
            return False
        elif free:
            store.discard(stage, key)
        return free


def _is_busy(store: Store, locks: str = "*") -> bool:
    """Whether some run holds one of these locks of the store at this moment."""
    for path in (store.root / ".locks").glob(locks):
        with store.lock(path.name, wait=False) as free:
            if not free:
                return True
    return False


def _unfinished(store: Store) -> set[str]:
    """Runs that the same command continues, by their ids in MLflow. Raises ValueError."""
    runs = set[str]()
    for path in (store.root / ".runs").glob("*.json"):
        try:
            runs.add(json.loads(path.read_text()).get("mlflow_run"))
        except ValueError as error:
            raise ValueError(f"{path} cannot be read ({error}); remove it") from error
    return runs - {None, ""}


def _left_behind(store: Store, oldest_kept: float) -> Iterator[Garbage]:
    """Work folders that nobody holds any more, and what a kill left of a removal."""
    for pattern, why in ((".work/*/*", "an interrupted stage"), (".trash/*", "half removed")):
        for path in sorted(store.root.glob(pattern)):
            with suppress(FileNotFoundError):  # somebody works in it
                files = [f for f in path.rglob("*") if f.is_file()]
                if max(f.stat().st_mtime for f in (path, *files)) < oldest_kept:
                    size = sum(f.stat().st_size for f in files)
                    yield Garbage(str(path.relative_to(store.root)), size, why)
