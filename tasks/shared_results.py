"""The results of a shared store, whether they are here or not: what there is, and what can go.

A manifest is read once: its text is kept below `.shared-manifests/` until the object changes.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from tasks.manifest import MANIFEST, Manifest
from tasks.shared_store import SharedStore
from tasks.store import Store
from tasks.store_care import SECONDS_A_DAY, is_page, published, unreadable

CACHE = ".shared-manifests"
HERE, SHARED, BOTH = "here", "shared", "here, shared"


class Result(NamedTuple):
    """One result; `where` is one of HERE, SHARED and BOTH, `made` a Unix time."""

    manifest: Manifest
    bytes: int
    made: float
    where: str


def results(store: Store, stage: str = "") -> list[Result]:
    """Every readable result that this machine can use, the oldest first; only of `stage`, if named.

    Raises StoreUnreachable when the object store does not answer.
    """
    far = shared_manifests(store, stage) if isinstance(store, SharedStore) else {}
    found = []
    for manifest, size, made in published(store):
        if stage in ("", manifest.stage):
            both = far.pop((manifest.stage, manifest.key), None) is not None
            when = _made(manifest, made)
            found.append(Result(manifest, size, when, BOTH if both else HERE))
    for manifest in far.values():
        size = sum(f.bytes for f in manifest.files.values())
        found.append(Result(manifest, size, _made(manifest), SHARED))
    return sorted(found, key=lambda r: (r.made, r.manifest.stage, r.manifest.key))


def shared_manifests(store: SharedStore, stage: str = "") -> dict[tuple[str, str], Manifest]:
    """The readable manifests in the object store, by stage and key."""
    return {(m.stage, m.key): m for _, m in _read_all(store, stage) if m}


def shared_unreadable(store: SharedStore) -> list[str]:
    """stage/key of every shared result whose manifest is damaged, or of a newer klear."""
    return [name for name, manifest in _read_all(store) if manifest is None]


def _read_all(store: SharedStore, stage: str = "") -> Iterator[tuple[str, Manifest | None]]:
    """stage/key and manifest of every shared result; None for one that cannot be read."""
    cache, tail = _Cache(store.root / CACHE), f"/{MANIFEST}"
    prefix = f"{stage}/" if stage else ""
    for name, stamp in store.objects.stamps(stage).items():
        name = prefix + name
        if not name.endswith(tail) or name.count("/") != 2:
            continue
        text = cache.read(name, stamp)
        if text is None:
            text = cache.write(name, stamp, store.objects.read(name) or b"")
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError:
            manifest = None  # `klear store verify` names it
        yield name.removesuffix(tail), manifest


def shared_waste(store: SharedStore, days: float) -> list[Result]:
    """Shared results older than `days` that no page was made from, neither a shared one nor one of
    this machine, and nothing that is kept. None while a manifest is unreadable, there or here: what
    it was made from is unknown."""
    if shared_unreadable(store) or unreadable(store):
        return []
    far = shared_manifests(store)
    near = {(p.manifest.stage, p.manifest.key): p for p in published(store)}
    oldest_kept = time.time() - days * SECONDS_A_DAY
    every = [*far.values(), *(p.manifest for p in near.values())]
    known = {(m.stage, m.key): m for m in every}
    kept = [m for m in every if is_page(m.stage) or _made(m) >= oldest_kept]
    needed = _with_inputs(kept, known)
    return [
        Result(m, sum(f.bytes for f in m.files.values()), _made(m), SHARED)
        for name, m in sorted(far.items())
        if name not in needed
    ]


def remove_shared(store: SharedStore, result: Result) -> None:
    """Remove a result from the object store, its manifest first: nobody finds half of it."""
    name = f"{result.manifest.stage}/{result.manifest.key}"
    store.objects.remove_one(f"{name}/{MANIFEST}")
    store.objects.remove(name)
    store.marks.forget(result.manifest.stage, result.manifest.key)


def _with_inputs(
    kept: Iterable[Manifest], known: dict[tuple[str, str], Manifest]
) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    todo = [(m.stage, m.key) for m in kept]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [(i.stage, i.key) for i in known[name].inputs] if name in known else []
    return found


def _made(manifest: Manifest, otherwise: float | None = None) -> float:
    """When it was made; where the manifest does not say, `otherwise`, or now: it is kept."""
    try:
        return datetime.fromisoformat(manifest.created).timestamp()
    except ValueError:
        return time.time() if otherwise is None else otherwise


class _Cache:
    """Texts by name, each with the stamp of the object that it was read from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, stamp: str) -> bytes | None:
        try:
            kept, _, text = (self._folder / name).read_bytes().partition(b"\n")
            return text if json.loads(kept) == stamp else None
        except (OSError, ValueError):
            return None

    def write(self, name: str, stamp: str, text: bytes) -> bytes:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")  # half a text would be kept for ever
        partial.write_bytes(json.dumps(stamp).encode() + b"\n" + text)
        os.replace(partial, path)
        return text
