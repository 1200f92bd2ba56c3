"""The store: one folder a result, named by its key, published whole or not at all.

    <store>/<stage>/<key>/          files and manifest.json, published by one rename
    <store>/.work/<stage>/<key>/    the folder while it is made; what a kill leaves is resumed
    <store>/.locks/                 flock files: the kernel frees them when their holder dies

In an output folder `.resume/` is scratch (deleted at publish). What only tells about the result
(`logs/`, the card `README.md`, `plots/` and other pages) is kept, but is not part of its content
digest: equal rows stay equal.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from eval.records import Record
from tasks.stage.progress import report
from tasks.store.manifest import (
    MANIFEST,
    FileEntry,
    InputRef,
    Manifest,
    UnusableManifest,
    damage,
    file_sha256,
    read_manifest,
)

SCRATCH = ".resume"
LOGS = "logs"
CARD = "README.md"
PLOTS = "plots"
CONTAMINATION_PAGE = "decontamination.html"
ABOUT = frozenset({LOGS, CARD, PLOTS, CONTAMINATION_PAGE})


class Artifact(Record):
    """What one stage hands to the next: a small reference to a published folder."""

    stage: str
    key: str
    digest: str
    folder: Path
    metrics: dict[str, float] = Field(default_factory=dict)
    mlflow_run: str = ""
    seconds: float = 0.0

    def file(self, name: str) -> Path:
        """The path of one output; raises FileNotFoundError that names the stage."""
        path = self.folder / name
        if not path.exists():
            raise FileNotFoundError(f"{self.stage}/{self.key} has no {name}: rerun the stage")
        return path

    @classmethod
    def of_folder(cls, folder: Path, stage: str = "made_by_hand") -> "Artifact":
        """An artifact of a folder that no stage published (unit tests, command line)."""
        digest = content_digest(scan(folder))
        return cls(stage=stage, key=digest[:16], digest=digest, folder=folder)


def scan(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder` (without scratch and manifest) with its size and SHA-256."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    mine = (n for n in names if n.parts[0] != SCRATCH and str(n) != MANIFEST)
    return scan_only(folder, map(str, mine))


def scan_only(folder: Path, names: Iterable[str]) -> dict[str, FileEntry]:
    """The named files below `folder` with their sizes and SHA-256."""
    paths = {name: folder / name for name in names}
    found: dict[str, FileEntry] = {}
    for name, path in paths.items():
        found[name] = FileEntry(bytes=path.stat().st_size, sha256=file_sha256(path))
        report(len(found), len(paths), "files hashed")
    return found


def content_digest(files: dict[str, FileEntry]) -> str:
    """SHA-256 over names and contents of the outputs; what tells about them does not count."""
    lines = [f"{f.sha256} {n}" for n, f in sorted(files.items()) if Path(n).parts[0] not in ABOUT]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


About = Callable[[Manifest, Path], Iterable[str]]
"""Writes pages about a result into its work folder and returns their names."""


def nothing(_: Manifest, __: Path) -> list[str]:
    """No page."""
    return []


class Store:
    """Content-keyed results below one local folder."""

    def __init__(self, root: Path) -> None:
        if ":/" in str(root):  # a Path folds s3://bucket to s3:/bucket
            raise ValueError(f"store {root}: only a local folder is supported; set KLEAR_STORE")
        self.root = root.absolute()

    def folder(self, stage: str, key: str) -> Path:
        return self.root / stage / key

    def work(self, stage: str, key: str) -> Path:
        return self.root / ".work" / stage / key

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """The published result, or None and the reason why it cannot be used ('' if never made).

        Sizes are checked always, digests with `verify`.
        """
        folder = self.folder(stage, key)
        if not folder.exists():
            return None, ""
        try:
            manifest = read_manifest(folder)
        except UnusableManifest as error:
            return None, f"{stage}/{key} has {error}"
        if (manifest.stage, manifest.key) != (stage, key):
            return None, f"{stage}/{key} has the manifest of {manifest.stage}/{manifest.key}"
        for name, entry in manifest.files.items():
            if wrong := damage(folder / name, entry, verify):
                return None, f"{stage}/{key}: {name} {wrong}"
        return self._artifact(manifest, folder), ""

    def manifest(self, artifact: Artifact | InputRef) -> Manifest:
        """Raises UnusableManifest, a FileNotFoundError, when the result is gone or damaged."""
        try:
            return read_manifest(self.folder(artifact.stage, artifact.key))
        except UnusableManifest as error:
            raise UnusableManifest(f"{artifact.stage}/{artifact.key} has {error}") from error

    def publish(self, work: Path, about: About = nothing, **fields: Any) -> Artifact:
        """Seal `work` with a manifest and rename it into place; replaces what was there.

        `about` may add pages that tell about the result, once its files are known. Scratch goes
        last: whatever fails before (a full disk), the same key continues from it.
        """
        files = scan(work)
        manifest = Manifest(files=files, digest=content_digest(files), **fields)
        pages = scan_only(work, about(manifest, work))
        manifest = manifest.model_copy(update={"files": files | pages})
        text = manifest.model_dump_json(indent=1)
        with (work / MANIFEST).open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(work / SCRATCH, ignore_errors=True)
        target = self.folder(manifest.stage, manifest.key)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.discard(manifest.stage, manifest.key)
        os.replace(work, target)
        return self._artifact(manifest, target)

    def fetch(self, ref: Artifact | InputRef | Manifest) -> None:
        """Make the files of a result readable here; in a local store they are."""

    def share(self, artifact: Artifact) -> Artifact:
        """The result as every machine of a shared store sees it; here the same one."""
        return artifact

    def discard(self, stage: str, key: str) -> None:
        """Remove a published result: first out of sight by a rename, then for good."""
        folder = self.folder(stage, key)
        if folder.exists():
            trash = self.root / ".trash" / uuid.uuid4().hex
            trash.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder, trash)
            shutil.rmtree(trash, ignore_errors=True)

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold `name` exclusively; yields False if `wait` is off and somebody else holds it."""
        path = self.root / ".locks" / name.replace("/", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def _artifact(self, manifest: Manifest, folder: Path) -> Artifact:
        return Artifact(
            stage=manifest.stage,
            key=manifest.key,
            digest=manifest.digest,
            folder=folder,
            metrics=manifest.metrics,
            mlflow_run=manifest.mlflow_run,
            seconds=manifest.seconds,
        )


def stage_key(stage: str, version: int, settings: str, seed: int | None, inputs: list[str]) -> str:
    """16 hex digits over everything that gives a result its meaning.

    `inputs` are content digests: an upstream stage that is recomputed to equal bytes keeps its
    descendants, and one with other bytes leaves no stale ones.
    """
    meaning = json.dumps([stage, version, settings, seed, inputs])
    return hashlib.sha256(meaning.encode()).hexdigest()[:16]
