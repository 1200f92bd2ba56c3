"""The store: one folder a result, named by its key, published whole or not at all.

    <store>/<stage>/<key>/          files and manifest.json, published by one rename
    <store>/.work/<stage>/<key>/    the folder while it is made; what a kill leaves is resumed
    <store>/.locks/                 flock files: the kernel frees them when their holder dies

In an output folder `.resume/` is scratch (deleted at publish) and `logs/` is kept but is not part
of the content digest.
"""

import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from eval.records import Record

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
SCRATCH = ".resume"
LOGS = "logs"


class FileEntry(Record):
    bytes: int
    sha256: str


class InputRef(Record):
    stage: str
    key: str
    digest: str


class Manifest(Record):
    """What a published folder holds and what made it."""

    format: int = MANIFEST_FORMAT
    stage: str
    version: int
    key: str
    digest: str
    settings: JsonValue
    seed: int | None = None
    inputs: tuple[InputRef, ...] = ()
    files: dict[str, FileEntry]
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: float
    pipeline_run: str
    mlflow_run: str = ""
    git_commit: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    created: str


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


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def scan(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder` (without scratch and manifest) with its size and SHA-256."""
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] != SCRATCH and str(name) != MANIFEST:
            entries[str(name)] = FileEntry(bytes=path.stat().st_size, sha256=file_sha256(path))
    return entries


def content_digest(files: dict[str, FileEntry]) -> str:
    """SHA-256 over names and contents of the outputs; logs do not count."""
    lines = [f"{f.sha256} {n}" for n, f in sorted(files.items()) if Path(n).parts[0] != LOGS]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


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
            manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None, f"{stage}/{key} has no manifest"
        except (ValidationError, OSError) as error:
            return None, f"{stage}/{key} has an unreadable manifest ({type(error).__name__})"
        for name, entry in manifest.files.items():
            path = folder / name
            if not path.is_file():
                return None, f"{stage}/{key}: {name} is missing"
            if path.stat().st_size != entry.bytes:
                return (
                    None,
                    f"{stage}/{key}: {name} has {path.stat().st_size} bytes, not {entry.bytes}",
                )
            if verify and file_sha256(path) != entry.sha256:
                return None, f"{stage}/{key}: {name} was changed since it was published"
        return self._artifact(manifest, folder), ""

    def manifest(self, artifact: Artifact) -> Manifest:
        return Manifest.model_validate_json((artifact.folder / MANIFEST).read_bytes())

    def publish(self, work: Path, **fields: Any) -> Artifact:
        """Seal `work` with a manifest and rename it into place; replaces what was there."""
        shutil.rmtree(work / SCRATCH, ignore_errors=True)
        files = scan(work)
        manifest = Manifest(files=files, digest=content_digest(files), **fields)
        text = manifest.model_dump_json(indent=1)
        with (work / MANIFEST).open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        target = self.folder(manifest.stage, manifest.key)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.discard(manifest.stage, manifest.key)
        os.replace(work, target)
        return self._artifact(manifest, target)

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
