"""Keeping a store in order: what is in it, what is damaged, what nothing needs any more."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tasks.lineage import ancestors
from tasks.manifest import MANIFEST, Manifest, UnusableManifest, read_manifest
from tasks.store import Store

SECONDS_A_DAY = 86_400.0
ABLATE = "ablate_"  # begins the name of an ablation's last stage
ABLATE_VERSION = 4  # of that stage, and so of its results.json


class Published(NamedTuple):
    """One result in the store; `bytes` counts its files, `made` is a Unix time."""

    manifest: Manifest
    bytes: int
    made: float


class Waste(NamedTuple):
    """A folder that can go; `name` is stage/key, or where it lies below the store."""

    name: str
    path: Path
    bytes: int
    why: str


def is_page(stage: str) -> bool:
    """The last stage of a run or of an ablation: what its page was made from is kept."""
    return stage == "report" or stage.startswith(ABLATE)


def published(store: Store) -> list[Published]:
    """Every readable result, the oldest first."""
    found: list[Published] = []
    for folder in _folders(store):
        with suppress(OSError):
            manifest = read_manifest(folder)
            size = sum(f.bytes for f in manifest.files.values())
            found.append(Published(manifest, size, (folder / MANIFEST).stat().st_mtime))
    return sorted(found, key=lambda p: (p.made, p.manifest.stage, p.manifest.key))


def damaged(store: Store) -> Iterator[tuple[str, str]]:
    """(stage/key, what is wrong, '' for a sound result) of every result, by its digests.

    Of the copies here alone: a shared store finds what is sound elsewhere, and mends.
    """
    for folder in _folders(store):
        _, wrong = Store.find(store, folder.parent.name, folder.name, verify=True)
        yield f"{folder.parent.name}/{folder.name}", wrong


def unreadable(store: Store) -> list[str]:
    """stage/key of every result whose manifest cannot be read: nobody knows what it needs."""
    found: list[str] = []
    for folder in _folders(store):
        try:
            read_manifest(folder)
        except UnusableManifest:
            found.append(f"{folder.parent.name}/{folder.name}")
    return found


def waste(store: Store, days: float) -> list[Waste]:
    """What no report of the store was made from, and what killed runs left, older than `days`.

    Results are never waste while a report that they lead to is there, nor while something that
    is kept was made from them. While a run is under way nothing published is: it may be what the
    run is reading; nor while a manifest is unreadable, for its inputs are unknown.
    """
    oldest_kept = time.time() - days * SECONDS_A_DAY
    everything = published(store)
    if is_busy(store) or unreadable(store):
        return list(_left_behind(store, oldest_kept))
    kept = [p.manifest for p in everything if is_page(p.manifest.stage) or p.made >= oldest_kept]
    needed = {(m.stage, m.key) for m in (*kept, *ancestors(store, *kept))}
    found = [
        Waste(f"{m.stage}/{m.key}", store.folder(m.stage, m.key), size, "no report needs it")
        for m, size, _ in everything
        if (m.stage, m.key) not in needed
    ]
    return [*found, *_left_behind(store, oldest_kept)]


def is_busy(store: Store) -> bool:
    """Whether some run holds a lock of the store at this moment."""
    for path in (store.root / ".locks").glob("*"):
        with store.lock(path.name, wait=False) as free:
            if not free:
                return True
    return False


def _left_behind(store: Store, oldest_kept: float) -> Iterator[Waste]:
    """Work folders that nobody holds any more, and what a kill left of a removal."""
    for pattern, why in ((".work/*/*", "an interrupted stage"), (".trash/*", "half removed")):
        for path in sorted(store.root.glob(pattern)):
            files = [f for f in path.rglob("*") if f.is_file()]
            changed = max((f.stat().st_mtime for f in (path, *files)), default=0.0)
            if changed < oldest_kept:
                size = sum(f.stat().st_size for f in files)
                yield Waste(str(path.relative_to(store.root)), path, size, why)


def remove(store: Store, rubbish: Waste) -> bool:
    """Remove it; False when a run holds it at this moment."""
    parts = rubbish.path.relative_to(store.root).parts
    if parts[0] == ".trash":
        shutil.rmtree(rubbish.path, ignore_errors=True)
        return True
    stage, key = parts[-2:]
    with store.lock(f"{stage}-{key}", wait=False) as free:
        if not free:
            return False
        if parts[0] == ".work":
            shutil.rmtree(rubbish.path, ignore_errors=True)
        else:
            store.discard(stage, key)
    return True


def _folders(store: Store) -> list[Path]:
    """The folder of every result, whole or not."""
    paths = (p for p in store.root.glob("[!.]*/[!.]*") if p.is_dir())
    return sorted(paths)
