"""A store that several machines share: an object store holds the results, this folder a copy.

    <url>/<stage>/<key>/manifest.json        what makes the result exist; written last
    <url>/<stage>/<key>/<upload>/<file>      `upload`: digits of the manifest's SHA-256

An object store has no rename and no lock, so files are never changed in place: each manifest has
a folder of its own, which a killed upload leaves for the next attempt. Of two machines that
computed one key at once the first manifest wins; later the newer one does, as of a forced stage.
A damaged result is taken away by whoever fetches it, and computed or sent again. A folder
(`file://…`) has no conditional writes: there the first one wins almost always.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import Callback
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from ...configs.machine import Machine
from ...configs.settings.explain import ConfigError
from ...eval.progress import report
from .store import (
    MANIFEST,
    Artifact,
    FileEntry,
    InputRef,
    Manifest,
    Seal,
    Store,
    UnusableManifest,
    damage,
    read_manifest,
)

DIGITS = 16
log = logging.getLogger("klear")


class StoreUnreachable(RuntimeError):
    """The object store did not do what it was asked for, however often the library asked."""


class ObjectDamaged(OSError):
    """A file in the object store is missing, or is not what was published."""


class ObjectStore:
    """The objects below `url`, any address that fsspec knows; names are relative to it.

    Keys, endpoints and retries are those of fsspec's libraries (`AWS_ACCESS_KEY_ID` and its like).
    Raises ConfigError for an address that is none, StoreUnreachable for what the library gave up.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # Else gcsfs asks a second service, over gRPC and for a minute, whether the bucket is zonal.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            inner, base = fsspec.core.url_to_fs(
                self.url, use_listings_cache=False, skip_instance_cache=True
            )
        except (ImportError, ValueError) as error:  # the library's own text names the package
            raise ConfigError([f"KLEAR_STORE={url}: {error}"]) from error
        if isinstance(inner, LocalFileSystem):
            inner.auto_mkdir = True  # objects have no folders; files do
        self._fs = DirFileSystem(base, inner, skip_instance_cache=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url,)  # connections and `auto_mkdir` do not travel

    def read(self, name: str) -> bytes | None:
        """One small object; None if there is none."""
        with suppress(FileNotFoundError):
            return self._ask("cat_file", name)
        return None

    def read_all(self, names: list[str]) -> dict[str, bytes]:
        """Small objects by name, read side by side; one that is gone by now is left out."""
        return self._ask("cat", names, on_error="omit") if names else {}

    def write(self, name: str, content: bytes, *, new: bool) -> None:
        """One small object at once. `new`: only if there is none, else FileExistsError."""
        self._ask("pipe_file", name, content, mode="create" if new else "overwrite")

    def damage(self, files: Mapping[str, FileEntry], folder: str, *, verify: bool) -> str:
        """The first of `files` not below `of` in its size (`verify`: its digest); '' if all are."""
        sizes = self.sizes(folder)
        for number, (name, entry) in enumerate(files.items()):
            path = f"{folder}/{name}"
            if sizes.get(path) != entry.bytes:
                return name
            if verify:
                report(number, len(files), "shared files read")
                with self._ask("open", path) as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                        return name
        return ""

    def upload(self, folder: Path, files: Mapping[str, FileEntry], to: str) -> None:
        """Copy `files` of `folder` below `to`; what is there in its size is kept."""
        sizes = self.sizes(to)
        names = [n for n, f in files.items() if sizes.get(f"{to}/{n}") != f.bytes]
        here, far = [str(folder / n) for n in names], [f"{to}/{n}" for n in names]
        if names:
            self._ask("put", here, far, callback=_reporting("files uploaded"))

    def download(self, folder: Path, files: Mapping[str, FileEntry], source: str) -> None:
        """Copy `files` below `of` into `folder`. Raises ObjectDamaged for one that is damaged."""
        far, here = [f"{source}/{n}" for n in files], [str(folder / n) for n in files]
        with suppress(FileNotFoundError):
            self._ask("get", far, here, callback=_reporting("files downloaded"))
        if lost := next((n for n, f in files.items() if damage(folder / n, f, verify=True)), ""):
            raise ObjectDamaged(
                f"{self.url}/{source}: {lost} is missing or was changed; the next run that "
                "makes it computes it again"
            )

    def remove(self, name: str) -> None:
        """Remove an object, or all below a folder; none is no error."""
        if names := list(self.sizes(name)):
            self._ask("rm", names)

    def sizes(self, below: str = "") -> dict[str, int]:
        """Every object and its bytes, by name."""
        objects = self._ask("find", below, detail=True)
        return {name: facts["size"] for name, facts in objects.items()}

    def _ask(self, method: str, *words: Any, **options: Any) -> Any:
        """What the library answers; StoreUnreachable for its errors, which differ by backend."""
        try:
            return getattr(self._fs, method)(*words, **options)
        except (FileExistsError, FileNotFoundError, PermissionError):
            raise
        except Exception as error:
            if "pre-conditions" in str(error):  # how S3 says that the object exists
                raise FileExistsError(words[0]) from error
            raise StoreUnreachable(
                f"{self.url}: {method} failed ({error}); the same command continues from here"
            ) from error


def open_store(machine: Machine) -> Store:
    """The store of this machine: a local folder, alone or in front of an object store."""
    return SharedStore(machine.store, machine.shared) if machine.shared else Store(machine.store)


class SharedStore(Store):
    """The folder `root` in front of the object store at `url` (`s3://bucket/folder`, `gs://…`)."""

    is_shared = True

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.objects = ObjectStore(url)
        self._seen: dict[str, str] = {}
        """stage/key → the upload that was there before this process computed the result."""

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """As `Store.find`; what is in the object store alone is found too, by its manifest and the
        sizes of its files, which `fetch` brings. With `verify`, whichever of copy and shared result
        is damaged gives way to the sound one."""
        artifact, wrong = super().find(stage, key, verify=verify)
        if artifact and not verify:
            return artifact, wrong
        name = f"{stage}/{key}"
        text = self.objects.read(f"{name}/{MANIFEST}")
        theirs = parsed(text)
        lost = self._damage(name, text, verify=verify) if text else ""
        self._seen[name] = _upload(theirs)
        if artifact and theirs and lost:
            self._withdraw(name, theirs)  # `share` sends the copy again
        if artifact or lost or theirs is None:
            return artifact, f"{self.objects.url}/{lost}" if lost and not artifact else wrong
        if verify:  # `fetch` compares sizes alone and would keep what is here
            self.discard(stage, key)
        return self._artifact(theirs, self.folder(stage, key)), ""

    def manifest(self, artifact: Artifact | InputRef) -> Manifest:
        """As `Store.manifest`, from the object store where there is no copy."""
        try:
            return super().manifest(artifact)
        except UnusableManifest:
            name = f"{artifact.stage}/{artifact.key}/{MANIFEST}"
            if shared := parsed(self.objects.read(name)):
                return shared
            raise

    def fetch(self, ref: Artifact | InputRef | Manifest) -> None:
        """Copy a result here, unless it is. Raises FileNotFoundError when it is nowhere,
        ObjectDamaged when a file has another digest; nobody finds the shared result then."""
        with self.lock(f"fetch-{ref.stage}-{ref.key}"):
            if not super().find(ref.stage, ref.key)[0]:
                self._copy(ref.stage, ref.key)

    def publish(self, work: Path, seal: Seal | None = None, **fields: Any) -> Artifact:
        """As `Store.publish`, then share it in place of the one here or that `find` saw."""
        stage, key = fields["stage"], fields["key"]
        replaced = {self._seen.get(f"{stage}/{key}", "")}
        with suppress(UnusableManifest):
            replaced.add(_upload(read_manifest(self.folder(stage, key))))
        return self.share(super().publish(work, seal, **fields), replaced)

    def share(self, artifact: Artifact, replaced: Collection[str] | None = None) -> Artifact:
        """The result as everybody sees it: uploaded, unless it is, or the newer one.

        One that was just made gives way to uploads that it was not made to replace (`replaced`):
        what others have read must stay what it was.
        """
        stage, key, folder = artifact.stage, artifact.key, artifact.folder
        if not super().find(stage, key)[0]:  # it is in the object store alone
            return artifact
        name = f"{stage}/{key}"
        text, shared = (folder / MANIFEST).read_bytes(), self.objects.read(f"{name}/{MANIFEST}")
        own, theirs = Manifest.model_validate_json(text), parsed(shared)
        upload, other = _upload(own), _upload(theirs)
        if other == upload:
            return artifact
        if theirs and (theirs.created > own.created if replaced is None else other not in replaced):
            log.warning("%s: the result of another machine is used", name)
            self.objects.remove(f"{name}/{upload}")
            with self.lock(f"fetch-{stage}-{key}"):
                return self._artifact(self._copy(stage, key), folder)
        self.objects.upload(folder, own.files, f"{name}/{upload}")
        try:
            self.objects.write(f"{name}/{MANIFEST}", text, new=shared is None)
        except FileExistsError:  # another machine was faster
            return self.share(artifact, replaced)
        if other:
            self.objects.remove(f"{name}/{other}")
        return artifact

    def shared_damage(self) -> Iterator[tuple[str, str]]:
        """(stage/key, what is wrong, '' for a sound result) of every shared result, by digests."""
        for name, text in self.manifests().items():
            yield name, self._damage(name, text, verify=True)

    def manifests(self, stage: str = "") -> dict[str, bytes]:
        """The text of every shared manifest, by stage/key; of one stage, if it is named."""
        tail, names = f"/{MANIFEST}", sorted(self.objects.sizes(stage))
        texts = self.objects.read_all([n for n in names if n.endswith(tail) and n.count("/") == 2])
        return {name.removesuffix(tail): text for name, text in texts.items()}

    def _damage(self, name: str, text: bytes, *, verify: bool) -> str:
        """What is wrong with the shared result of the manifest `text`; '' for a sound one."""
        manifest = parsed(text)
        if manifest is None:
            return f"{name} has an unreadable manifest"
        lost = self.objects.damage(manifest.files, f"{name}/{_upload(manifest)}", verify=verify)
        return f"{name}: {lost} is missing or was changed" if lost else ""

    def _copy(self, stage: str, key: str) -> Manifest:
        """Bring the shared result here and publish it by one rename."""
        name, work = f"{stage}/{key}", self.root / ".trash" / f"fetch-{stage}-{key}"
        text = self.objects.read(f"{name}/{MANIFEST}")
        manifest = parsed(text)
        if text is None or manifest is None:
            raise FileNotFoundError(
                f"{name} is not in {self.objects.url}; the next run that makes it computes it again"
            )
        with self.lock(f".trash-{work.name}"):  # `gc` leaves it alone
            shutil.rmtree(work, ignore_errors=True)  # of one that was killed
            work.mkdir(parents=True)
            try:
                self.objects.download(work, manifest.files, f"{name}/{_upload(manifest)}")
                (work / MANIFEST).write_bytes(text)
                self.discard(stage, key)
                self.folder(stage, key).parent.mkdir(parents=True, exist_ok=True)
                work.rename(self.folder(stage, key))
            except ObjectDamaged:
                self._withdraw(name, manifest)
                raise
            finally:
                shutil.rmtree(work, ignore_errors=True)
        return manifest

    def _withdraw(self, name: str, manifest: Manifest) -> None:
        """Take a result out of the object store, its manifest first: nobody finds half of it. One
        that another machine has put in its place meanwhile stays."""
        theirs = parsed(self.objects.read(f"{name}/{MANIFEST}"))
        if theirs is None or _upload(theirs) == _upload(manifest):
            self.objects.remove(f"{name}/{MANIFEST}")
        self.objects.remove(f"{name}/{_upload(manifest)}")


def parsed(text: bytes | None) -> Manifest | None:
    """The manifest; None for what is none, or is one of a newer klear."""
    with suppress(ValidationError):
        return Manifest.model_validate_json(text) if text is not None else None
    return None


def _upload(manifest: Manifest | None) -> str:
    """The folder of the files that a manifest lists; '' without one. The MLflow run has no part in
    it, for it may be signed later (here alone)."""
    if manifest is None:
        return ""
    newer = {"why", "earlier"} - manifest.model_fields_set  # an older manifest has other digits
    unsigned = manifest.model_copy(update={"mlflow_run": ""}).model_dump_json(exclude=newer)
    return hashlib.sha256(unsigned.encode()).hexdigest()[:DIGITS]


def _reporting(what: str) -> Callback:
    """A sign of life for every file that a transfer has moved."""
    return Callback(hooks={"report": lambda size, value, **_: report(value, size or 0, what)})
