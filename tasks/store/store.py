"""The store: one folder a result, named by its key, published whole or not at all.

    <store>/<stage>/<key>/          files and manifest.json, published by one rename
    <store>/.work/<stage>/<key>/    the folder while it is made; what a kill leaves is resumed
    <store>/.locks/                 flock files: the kernel frees them when their holder dies

In an output folder `.resume/` is scratch, deleted at publish; `logs/`, the card and other pages are
kept, but are no part of the content digest: equal rows stay equal.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError, field_validator

from ...configs.files import files_in, locked
from ...eval.progress import report
from ...eval.records import Record
from ...training.launch.result_files import LOGS, SCRATCH

MANIFEST = "manifest.json"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)]
"""Of a stage, or a key: one folder below the store and never one beside it."""

CARD = "README.md"
PLOTS = "plots"
ABOUT = frozenset({LOGS, CARD, PLOTS, "decontamination.html", "near_misses.html"})
"""What only tells about a result: no part of its content digest."""


class FileEntry(Record):
    bytes: int
    sha256: str


class InputRef(Record):
    stage: Name
    key: Name
    digest: str


class Manifest(Record):
    """What a published folder holds and what made it."""

    format: Literal[1] = 1
    stage: Name
    version: int
    key: Name
    digest: str
    settings: dict[str, JsonValue]
    seed: int | None = None
    inputs: tuple[InputRef, ...] = ()
    files: dict[str, FileEntry]
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: float
    pipeline_run: str
    mlflow_run: str = ""
    git_commit: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: str = ""
    created: str
    why: str = ""
    """Why it was computed: what differs from `earlier`, or that it was forced or damaged."""
    earlier: str = ""
    """stage/key of the earlier result that it was compared with."""

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(f.bytes for f in self.files.values())

    @property
    def made(self) -> float:
        """When, in Unix seconds; 0 where the manifest does not say."""
        with suppress(ValueError):
            return datetime.fromisoformat(self.created).timestamp()
        return 0.0

    @field_validator("files")
    @classmethod
    def files_lie_in_the_folder(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        """A manifest that somebody else wrote must not reach beyond its folder."""
        if wrong := [n for n in files if Path(n).is_absolute() or ".." in Path(n).parts]:
            raise ValueError(f"{wrong[0]} is outside of the result")
        return files


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class UnusableManifest(FileNotFoundError):
    """A folder that is no result: its manifest is missing, damaged, or that of a newer klear."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published folder. Raises UnusableManifest, which says what is wrong."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        why = getattr(error, "strerror", None) or "damaged, or a newer klear made it"
        name = f"{folder.parent.name}/{folder.name}"
        raise UnusableManifest(f"{name} has an unreadable manifest ({why})") from error


def damage(path: Path, entry: FileEntry, verify: bool) -> str:
    """What is wrong with a published file; '' if nothing is. Its digest is read with `verify`."""
    try:
        with path.open("rb") as file:
            same = os.fstat(file.fileno()).st_size == entry.bytes
            if same and verify:
                same = hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if same else "was changed since it was published"


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


def scan(folder: Path, names: Iterable[str] | None = None) -> dict[str, FileEntry]:
    """Size and SHA-256 of the named files below `folder`; of all but scratch and manifest."""
    names = names_in(folder) if names is None else list(names)
    files: dict[str, FileEntry] = {}
    for name in names:
        path = folder / name
        files[name] = FileEntry(bytes=path.stat().st_size, sha256=file_sha256(path))
        report(len(files), len(names), "files hashed")
    return files


def names_in(folder: Path) -> list[str]:
    """Every file below `folder`, but for scratch and manifest."""
    names = (name for name, _ in files_in(folder))
    return [n for n in names if Path(n).parts[0] != SCRATCH and n != MANIFEST]


def tells_about(name: str) -> bool:
    """Whether a file only tells about a result."""
    return Path(name).parts[0] in ABOUT


def content_digest(files: dict[str, FileEntry]) -> str:
    """SHA-256 over names and contents of the outputs; what tells about them does not count."""
    lines = [f"{f.sha256} {n}" for n, f in sorted(files.items()) if not tells_about(n)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


Seal = Callable[[Manifest, Path], Manifest]
"""May add pages that tell about a result to its work folder, and what is said in its manifest."""


class Store:
    """Content-keyed results below one local folder."""

    is_shared = False

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def folder(self, stage: str, key: str) -> Path:
        return self.root / stage / key

    def work(self, stage: str, key: str) -> Path:
        return self.root / ".work" / stage / key

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """The result, or None and why ('': never made). Checks sizes, with `verify` digests."""
        folder = self.folder(stage, key)
        if not folder.exists():
            return None, ""
        try:
            manifest = read_manifest(folder)
        except UnusableManifest as error:
            return None, str(error)
        if (manifest.stage, manifest.key) != (stage, key):
            return None, f"{stage}/{key} has the manifest of {manifest.stage}/{manifest.key}"
        for name, entry in manifest.files.items():
            if wrong := damage(folder / name, entry, verify):
                return None, f"{stage}/{key}: {name} {wrong}"
        return self._artifact(manifest, folder), ""

    def manifest(self, artifact: Artifact | InputRef) -> Manifest:
        """Raises UnusableManifest, a FileNotFoundError, when the result is gone or damaged."""
        return read_manifest(self.folder(artifact.stage, artifact.key))

    def publish(self, work: Path, seal: Seal | None = None, **fields: Any) -> Artifact:
        """Seal `work` with a manifest and rename it into place; replaces what was there. `seal`
        is called once its files are known, and may add pages that tell about the result."""
        files = scan(work)
        manifest = Manifest(files=files, digest=content_digest(files), **fields)
        if seal:
            manifest = seal(manifest, work)
            pages = scan(work, filter(tells_about, names_in(work)))
            manifest = manifest.model_copy(update={"files": files | pages})
        text = manifest.model_dump_json(indent=1)
        with (work / MANIFEST).open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Renames alone: whatever fails or ends it before (a full disk), the same key continues.
        target = self.folder(manifest.stage, manifest.key)
        target.parent.mkdir(parents=True, exist_ok=True)
        replaced = self._out_of_sight(target)
        os.replace(work, target)
        for folder in (replaced, target / SCRATCH):
            shutil.rmtree(folder, ignore_errors=True)
        return self._artifact(manifest, target)

    def fetch(self, ref: Artifact | InputRef | Manifest) -> None:
        """Make the files of a result readable here; in a local store they are."""

    def share(self, artifact: Artifact) -> Artifact:
        """The result as every machine of a shared store sees it; here the same one."""
        return artifact

    def discard(self, stage: str, key: str) -> None:
        """Remove a published result: first out of sight by a rename, then for good."""
        shutil.rmtree(self._out_of_sight(self.folder(stage, key)), ignore_errors=True)

    def _out_of_sight(self, folder: Path) -> Path:
        """Where the folder, if there is one, is after one rename, for removal."""
        trash = self.root / ".trash" / uuid.uuid4().hex
        if folder.exists():
            trash.parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder, trash)
        return trash

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold `name` exclusively; yields False if `wait` is off and somebody else holds it."""
        with locked(self.root / ".locks" / name.replace("/", "-"), wait=wait) as file:
            yield file is not None

    def _artifact(self, manifest: Manifest, folder: Path) -> Artifact:
        fields = {"stage", "key", "digest", "metrics", "mlflow_run", "seconds"}
        return Artifact(folder=folder, **manifest.model_dump(include=fields))


def stage_key(stage: str, version: int, settings: str, seed: int | None, inputs: list[str]) -> str:
    """16 hex digits over everything that gives a result its meaning.

    `inputs` are content digests: an upstream stage that is recomputed to equal bytes keeps its
    descendants, and one with other bytes leaves no stale ones.
    """
    meaning = json.dumps([stage, version, settings, seed, inputs])
    return hashlib.sha256(meaning.encode()).hexdigest()[:16]
