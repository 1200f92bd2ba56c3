"""Keeping a store in order: what is in it, what is damaged, what nothing needs any more."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tasks.store.shared import SharedStore, parsed
from tasks.store.store import Manifest, Store, read_manifest

SECONDS_A_DAY = 86_400.0
ABLATE = "ablate_"  # begins the name of an ablation's last stage
ABLATE_VERSION = 4  # of that stage, and so of its results.json
HERE, SHARED, BOTH = "here", "shared", "here, shared"


class Result(NamedTuple):
    """One result; `bytes` counts its files, `where` is one of HERE, SHARED and BOTH."""

    manifest: Manifest
    where: str = HERE

    @property
    def name(self) -> tuple[str, str]:
        return self.manifest.stage, self.manifest.key

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.manifest.files.values())

    @property
    def made(self) -> float:
        """When, in Unix seconds; 0 where the manifest does not say."""
        with suppress(ValueError):
            return datetime.fromisoformat(self.manifest.created).timestamp()
        return 0.0


class Waste(NamedTuple):
    """A folder that can go; `name` is stage/key, or where it lies below the store."""

    name: str
    path: Path
    bytes: int
    why: str


def published(store: Store) -> list[Result]:
    """Every readable result on this machine, the oldest first."""
    return _read(store)[0]


def unreadable(store: Store) -> list[str]:
    """stage/key of every result whose manifest cannot be read: nobody knows what it needs."""
    return _read(store)[1]


def results(store: Store, stage: str = "") -> list[Result]:
    """Every readable result that this machine can use, the oldest first; of `stage`, if named.

    Raises StoreUnreachable when the object store does not answer.
    """
    found = {r.name: r for r in published(store) if stage in ("", r.manifest.stage)}
    texts = store.manifests(stage).values() if isinstance(store, SharedStore) else ()
    for manifest in filter(None, map(parsed, texts)):
        far = Result(manifest, SHARED)
        here = found.get(far.name)
        found[far.name] = here._replace(where=BOTH) if here else far
    return sorted(found.values(), key=_age)


def damaged(store: Store) -> Iterator[tuple[str, str]]:
    """(stage/key, what is wrong, '' for a sound result) of every result, by its digests.

    Of the copies here alone: a shared store finds what is sound elsewhere, and mends.
    """
    for folder in _folders(store):
        _, wrong = Store.find(store, folder.parent.name, folder.name, verify=True)
        yield f"{folder.parent.name}/{folder.name}", wrong


def waste(store: Store, days: float) -> list[Waste]:
    """What nothing that is kept was made from, older than `days`: reports are kept, and what is
    younger. While a run is under way, which may be reading it, or a manifest is unreadable, so that
    its inputs are unknown, only what killed runs left.
    """
    oldest_kept = time.time() - days * SECONDS_A_DAY
    left = list(_left_behind(store, oldest_kept))
    every, lost = _read(store)
    if lost or is_busy(store):
        return left
    known = {r.name: r for r in every}
    todo = [
        (stage, key)
        for (stage, key), result in known.items()
        if stage == "report" or stage.startswith(ABLATE) or result.made >= oldest_kept
    ]
    needed: set[tuple[str, str]] = set()
    while todo:
        name = todo.pop()
        if name in known and name not in needed:
            needed.add(name)
            todo += [(i.stage, i.key) for i in known[name].manifest.inputs]
    unneeded = [
        Waste("/".join(name), store.folder(*name), result.bytes, "no report needs it")
        for name, result in known.items()
        if name not in needed
    ]
    return [*unneeded, *left]


def is_busy(store: Store) -> bool:
    """Whether some run holds a lock of the store at this moment."""
    for path in (store.root / ".locks").glob("*"):
        with store.lock(path.name, wait=False) as free:
            if not free:
                return True
    return False


def remove(store: Store, rubbish: Waste) -> bool:
    """Remove it; False when a run holds it at this moment."""
    parts = rubbish.path.relative_to(store.root).parts
    stage, key = parts[-2:]
    with store.lock(f"{stage}-{key}", wait=False) as free:
        if free and parts[0] in (".work", ".trash"):
            shutil.rmtree(rubbish.path, ignore_errors=True)
        elif free:
            store.discard(stage, key)
        return free


def _left_behind(store: Store, oldest_kept: float) -> Iterator[Waste]:
    """Work folders that nobody holds any more, and what a kill left of a removal."""
    for pattern, why in ((".work/*/*", "an interrupted stage"), (".trash/*", "half removed")):
        for path in sorted(store.root.glob(pattern)):
            files = [f for f in path.rglob("*") if f.is_file()]
            if max((f.stat().st_mtime for f in (path, *files)), default=0.0) < oldest_kept:
                size = sum(f.stat().st_size for f in files)
                yield Waste(str(path.relative_to(store.root)), path, size, why)


def _read(store: Store) -> tuple[list[Result], list[str]]:
    """Every result, the oldest first, and the names of those whose manifest cannot be read."""
    found: list[Result] = []
    lost: list[str] = []
    for folder in _folders(store):
        try:
            found.append(Result(read_manifest(folder)))
        except OSError:
            lost.append(f"{folder.parent.name}/{folder.name}")
    return sorted(found, key=_age), lost


def _age(result: Result) -> tuple[float, str, str]:
    return result.made, *result.name


def _folders(store: Store) -> list[Path]:
    """The folder of every result, whole or not."""
    return sorted(p for p in store.root.glob("[!.]*/[!.]*") if p.is_dir())
