"""The manifest of a published folder: what it holds, what made it, and whether that is still so."""

import hashlib
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError, field_validator

from eval.records import Record

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
NEWER = "a newer klear made it"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)]
"""Of a stage, or a key: one folder below the store and never one beside it."""


class FileEntry(Record):
    bytes: int
    sha256: str


class InputRef(Record):
    stage: Name
    key: Name
    digest: str


class Manifest(Record):
    """What a published folder holds and what made it."""

    format: int = MANIFEST_FORMAT
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

    @field_validator("format")
    @classmethod
    def format_is_known(cls, number: int) -> int:
        if number > MANIFEST_FORMAT:
            raise ValueError(f"format {number}, this klear reads {MANIFEST_FORMAT}: {NEWER}")
        return number

    @field_validator("files")
    @classmethod
    def files_lie_in_the_folder(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        """A manifest that somebody else wrote must not reach beyond its folder."""
        for name in files:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name} is outside of the result")
        return files


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class UnusableManifest(FileNotFoundError):
    """A folder that is no result: its manifest is missing, damaged, or that of a newer klear."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published folder. Raises UnusableManifest, which says what is wrong."""
    try:
        text = (folder / MANIFEST).read_bytes()
        return Manifest.model_validate_json(text)
    except FileNotFoundError:
        raise UnusableManifest("no manifest") from None
    except OSError as error:
        raise UnusableManifest(f"an unreadable manifest ({error.strerror})") from error
    except ValidationError as error:
        reasons = [e["msg"] for e in error.errors() if NEWER in e["msg"]]
        why = reasons[0].removeprefix("Value error, ") if reasons else "damaged"
        raise UnusableManifest(f"an unreadable manifest ({why})") from error


def damage(path: Path, entry: FileEntry, verify: bool) -> str:
    """What is wrong with a published file; '' if nothing is. Its digest is read with `verify`."""
    try:
        if not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != entry.bytes:
            return f"has {size} bytes, not {entry.bytes}"
        if not os.access(path, os.R_OK):
            return "cannot be read (Permission denied)"
        if verify and file_sha256(path) != entry.sha256:
            return "was changed since it was published"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""
