"""A store that several machines share: an object store holds the results, this folder a copy.

    <url>/<stage>/<key>/manifest.json        what makes the result exist; written last
    <url>/<stage>/<key>/<upload>/<file>      `upload`: digits of the manifest's SHA-256
    <store>/.shared/<digits of url>/<stage>/<key>    SHA-256 of the shared manifest seen here last

An object store has no rename and no lock, so files are never changed in place: each manifest has
a folder of its own, which a killed upload leaves for the next attempt. Of two machines that
computed one key at once the first manifest wins, and the other takes over its result; whoever
forces a stage replaces the manifest that it saw. A result that turns out to be damaged while it is
fetched is taken away: it is computed again, or sent again by a machine with a sound copy.
"""

import errno
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from configs.machine import Machine
from configs.settings.explain import ConfigError
from tasks.stage.progress import report
from tasks.store.store import (
    MANIFEST,
    About,
    Artifact,
    FileEntry,
    InputRef,
    Manifest,
    Store,
    file_sha256,
    nothing,
)

TOGETHER = 16  # files a transfer: the library moves them side by side, and each is a sign of life
DIGITS = 16
TRIES = 5
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
            self._fs, self._base = fsspec.core.url_to_fs(
                self.url, use_listings_cache=False, skip_instance_cache=True
            )
        except (ImportError, ValueError) as error:  # the library's own text names the package
            raise ConfigError([f"KLEAR_STORE={url}: {error}"]) from error
        if isinstance(self._fs, LocalFileSystem):
            self._fs.auto_mkdir = True  # objects have no folders; files do

    def read(self, name: str) -> bytes | None:
        """One small object; None if there is none."""
        with self._asked(f"reading {name}"):
            try:
                return self._fs.cat_file(self._at(name))
            except FileNotFoundError:
                return None

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Small objects by name, read side by side; one that is gone by now is left out."""
        with self._asked("reading manifests"):
            found = self._fs.cat([self._at(n) for n in names], on_error="omit") if names else {}
        return {path[len(self._base) + 1 :]: content for path, content in found.items()}

    def write(self, name: str, content: bytes, *, new: bool) -> None:
        """One small object at once. `new`: only if there is none, else FileExistsError."""
        path = self._at(name)
        with self._asked(f"writing {name}"):
            if isinstance(self._fs, LocalFileSystem):
                partial = f"{path}.{uuid.uuid4().hex}"
                self._fs.pipe_file(partial, content)
                try:
                    (os.link if new else os.replace)(partial, path)
                finally:
                    Path(partial).unlink(missing_ok=True)
                return
            try:
                self._fs.pipe_file(path, content, mode="create" if new else "overwrite")
            except OSError as error:
                if new and error.errno == errno.EINVAL:  # "precondition failed", said otherwise
                    raise FileExistsError(path) from error
                if not new or error.errno != errno.ENOSYS:
                    raise
                self._fs.pipe_file(path, content)  # the server knows no conditions

    def damage(self, files: Mapping[str, FileEntry], of: str, *, verify: bool) -> list[str]:
        """Those of `files` that are not below `of` in their size, and with `verify` digest."""
        there = self._sizes(of)
        found = [n for n, f in files.items() if there.get(n) != f.bytes]
        for number, (name, entry) in enumerate(files.items() if verify else ()):
            report(number, len(files), "shared files read")
            if name not in found and self._digest(f"{of}/{name}") != entry.sha256:
                found.append(name)
        return found

    def upload(self, folder: Path, files: Mapping[str, FileEntry], to: str) -> None:
        """Copy `files` of `folder` below `to`; what is there in its size is kept.

        Raises OSError for a file that was changed here.
        """
        missing = self.damage(files, to, verify=False)
        for done in range(0, len(missing), TOGETHER):
            report(done, len(missing), "files uploaded")
            names = missing[done : done + TOGETHER]
            for name in names:
                if file_sha256(folder / name) != files[name].sha256:
                    raise OSError(
                        f"{folder / name} was changed since it was published; "
                        "the same command with --verify computes it again"
                    )
            with self._asked(f"uploading to {to}"):
                theirs = [self._at(f"{to}/{n}") for n in names]
                self._fs.put([str(folder / n) for n in names], theirs)

    def download(self, folder: Path, files: Mapping[str, FileEntry], of: str) -> None:
        """Copy `files` below `of` into `folder`. Raises ObjectDamaged for one that is damaged."""
        if lost := self.damage(files, of, verify=False):
            raise ObjectDamaged(f"{self.url}/{of}: {lost[0]} is missing or was changed")
        every = list(files)
        for done in range(0, len(every), TOGETHER):
            report(done, len(every), "files downloaded")
            names = every[done : done + TOGETHER]
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with self._asked(f"downloading {of}"):
                theirs = [self._at(f"{of}/{n}") for n in names]
                self._fs.get(theirs, [str(folder / n) for n in names])
            for name in names:
                if file_sha256(folder / name) != files[name].sha256:
                    raise ObjectDamaged(f"{self.url}/{of}: {name} is not what was published")

    def names(self, below: str = "") -> list[str]:
        """Every object, sorted."""
        return sorted(self._sizes(below))

    def remove(self, name: str) -> None:
        """Remove an object, or all below a folder; none is no error."""
        with self._asked(f"removing {name}"):
            try:
                if found := self._fs.find(self._at(name)):
                    self._fs.rm(found)
            except FileNotFoundError:
                return

    def _digest(self, name: str) -> str:
        """SHA-256 of one object of any size, read in blocks."""
        with self._asked(f"reading {name}"), self._fs.open(self._at(name), "rb") as file:
            sha = hashlib.sha256()
            while block := file.read(1 << 22):
                sha.update(block)
            return sha.hexdigest()

    def _sizes(self, below: str) -> dict[str, int]:
        base = self._at(below)
        with self._asked("listing"):
            try:
                found = self._fs.find(base, detail=True)
            except FileNotFoundError:
                return {}
        return {path[len(base) + 1 :]: facts["size"] for path, facts in found.items()}

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """StoreUnreachable for what the library gave up: every backend has errors of its own."""
        try:
            yield
        except (FileNotFoundError, FileExistsError, PermissionError):
            raise
        except Exception as error:
            raise StoreUnreachable(
                f"{self.url}: {what} failed ({error}); the same command continues from here"
            ) from error


def open_store(machine: Machine) -> Store:
    """The store of this machine: a local folder, alone or in front of an object store."""
    return SharedStore(machine.store, machine.shared) if machine.shared else Store(machine.store)


class SharedStore(Store):
    """The folder `root` in front of the object store at `url` (`s3://bucket/folder`, `gs://…`).

    A result is found by its manifest and the sizes of its files; `fetch` brings the files of those
    that are read. `share` asks once a process, and after `find` with `verify` looks at every byte.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.objects = ObjectStore(url)
        self._settled: set[tuple[str, str]] = set()
        """Results of which this process knows that everybody can find them."""
        self._to_verify: set[tuple[str, str]] = set()
        """Results whose shared files `share` must read."""
        self._marks = self.root / ".shared" / _digest(self.objects.url.encode())[:DIGITS]

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """As `Store.find`; what is in the object store alone is found too, by the same rules. With
        `verify`, a damaged copy here counts no more where the shared result is sound."""
        found, wrong = super().find(stage, key, verify=verify)
        if found:
            self._to_verify |= {(stage, key)} if verify else set()
            return found, wrong
        text = self._published(stage, key)
        self._note(stage, key, text or b"")
        if text is None:
            return None, wrong
        if lost := self._damage(f"{stage}/{key}", text, verify=verify):
            return None, f"{self.objects.url}/{lost}"
        if verify and wrong:  # `fetch` compares sizes alone and would keep what is here
            with self.lock(f"fetch-{stage}-{key}"):
                if not super().find(stage, key, verify=True)[0]:  # nor has another run mended it
                    self.discard(stage, key)
        manifest = Manifest.model_validate_json(text)
        return self._artifact(manifest, self.folder(stage, key)), ""

    def manifest(self, artifact: Artifact | InputRef) -> Manifest:
        """As `Store.manifest`, from the object store where there is no copy."""
        try:
            return super().manifest(artifact)
        except FileNotFoundError:
            text = self._published(artifact.stage, artifact.key)
            if text is None:
                raise
            return Manifest.model_validate_json(text)

    def fetch(self, ref: Artifact | InputRef | Manifest) -> None:
        """Copy a result here, unless it is. Raises FileNotFoundError when it is nowhere,
        ObjectDamaged when a file has another digest; nobody finds the shared result then."""
        with self.lock(f"fetch-{ref.stage}-{ref.key}"):
            if super().find(ref.stage, ref.key)[0]:
                return
            text = self._published(ref.stage, ref.key)
            if text is None:
                raise FileNotFoundError(
                    f"{ref.stage}/{ref.key} is not in {self.objects.url}; the next run that makes "
                    "it computes it again"
                )
            self._copy(ref.stage, ref.key, text)

    def publish(self, work: Path, about: About = nothing, **fields: Any) -> Artifact:
        """As `Store.publish`, then share the result."""
        return self.share(super().publish(work, about, **fields))

    def share(self, artifact: Artifact) -> Artifact:
        """The result as everybody sees it: uploaded, unless it is, or the one that was first."""
        stage, key = artifact.stage, artifact.key
        if not super().find(stage, key)[0]:  # it is in the object store alone
            return artifact
        name, text = f"{stage}/{key}", (self.folder(stage, key) / MANIFEST).read_bytes()
        if (stage, key) in self._to_verify:
            theirs = self._published(stage, key)
            if theirs and self._damage(name, theirs, verify=True):
                self.remove_damaged(name, theirs)
            self._to_verify.discard((stage, key))
        elif (stage, key) in self._settled and self._seen(stage, key) == _digest(text):
            return artifact
        for _ in range(TRIES):
            theirs = self._published(stage, key)
            is_unseen = theirs and _digest(theirs) != self._seen(stage, key)
            if theirs and is_unseen and _upload(theirs) not in ("", _upload(text)):
                try:
                    return self._adopted(artifact, theirs)
                except ObjectDamaged:  # theirs is of no use to anybody, and gone
                    continue
            try:
                if theirs != text:
                    files = Manifest.model_validate_json(text).files
                    self.objects.upload(self.folder(stage, key), files, f"{name}/{_upload(text)}")
                    self.objects.write(f"{name}/{MANIFEST}", text, new=theirs is None)
            except FileExistsError:  # another machine was faster
                continue
            self._note(stage, key, text)
            self._settled.add((stage, key))
            return artifact
        raise StoreUnreachable(
            f"{self.objects.url}/{name}: the manifest is refused, and there is none; does the "
            "server know the condition If-None-Match?"
        )

    def shared_damage(self) -> Iterator[tuple[str, str]]:
        """(stage/key, what is wrong, '' for a sound result) of every shared result, by digests."""
        for name, text in self.manifests().items():
            yield name, self._damage(name, text, verify=True)

    def unnamed_uploads(self) -> list[str]:
        """Uploads that no manifest names: killed before their end, or replaced since."""
        uploads = {"/".join(n.split("/")[:3]) for n in self.objects.names() if n.count("/") >= 3}
        named = {f"{name}/{_upload(text)}" for name, text in self.manifests().items()}
        return sorted(uploads - named)

    def manifests(self, stage: str = "") -> dict[str, bytes]:
        """The text of every shared manifest, by stage/key; of one stage, if it is named."""
        tail, above = f"/{MANIFEST}", f"{stage}/" if stage else ""
        names = [above + name for name in self.objects.names(stage)]
        found = self.objects.read_all([n for n in names if n.endswith(tail) and n.count("/") == 2])
        return {name.removesuffix(tail): text for name, text in found.items()}

    def _damage(self, name: str, text: bytes, *, verify: bool) -> str:
        """What is wrong with the shared result of the manifest `text`; '' for a sound one."""
        manifest = parsed(text)
        if manifest is None:
            return f"{name} has an unreadable manifest"
        lost = self.objects.damage(manifest.files, f"{name}/{_upload(text)}", verify=verify)
        return f"{name}: {lost[0]} is missing or was changed" if lost else ""

    def _adopted(self, made: Artifact, theirs: bytes) -> Artifact:
        """The result that another machine published first, in place of `made`."""
        log.warning("%s/%s: another machine was first, its result is used", made.stage, made.key)
        with self.lock(f"fetch-{made.stage}-{made.key}"):
            self._copy(made.stage, made.key, theirs)
        manifest = Manifest.model_validate_json(theirs)
        return self._artifact(manifest, self.folder(made.stage, made.key))

    def _copy(self, stage: str, key: str, text: bytes) -> None:
        """Bring the files of the manifest `text` here and publish them by one rename."""
        work = self.root / ".trash" / f"fetch-{uuid.uuid4().hex}"
        work.mkdir(parents=True)
        try:
            manifest = parsed(text)
            if manifest is None:
                raise ObjectDamaged(f"{self.objects.url}/{stage}/{key} has an unreadable manifest")
            self.objects.download(work, manifest.files, f"{stage}/{key}/{_upload(text)}")
            (work / MANIFEST).write_bytes(text)
            self.discard(stage, key)
            self.folder(stage, key).parent.mkdir(parents=True, exist_ok=True)
            work.rename(self.folder(stage, key))
        except ObjectDamaged as error:
            self.remove_damaged(f"{stage}/{key}", text)
            raise ObjectDamaged(
                f"{error}; the next run that makes {stage} computes it again"
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._note(stage, key, text)

    def remove_damaged(self, name: str, text: bytes) -> None:
        """Take the result of the manifest `text` out of the object store, and no other that has
        replaced it; its manifest first: nobody finds half of it."""
        if self.objects.read(f"{name}/{MANIFEST}") == text:
            self.objects.remove(f"{name}/{MANIFEST}")
        if upload := _upload(text):
            self.objects.remove(f"{name}/{upload}")

    def _published(self, stage: str, key: str) -> bytes | None:
        return self.objects.read(f"{stage}/{key}/{MANIFEST}")

    def _seen(self, stage: str, key: str) -> str:
        """SHA-256 of the shared manifest that this machine saw last."""
        path = self._marks / stage / key
        return path.read_text() if path.exists() else ""

    def _note(self, stage: str, key: str, text: bytes) -> None:
        path = self._marks / stage / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_digest(text))


def parsed(text: bytes) -> Manifest | None:
    """The manifest; None for what is none, or is one of a newer klear."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError:
        return None


def _upload(text: bytes) -> str:
    """The folder of the files that a manifest lists. The MLflow run has no part in it, for it may
    be signed later; '' for what is no manifest."""
    manifest = parsed(text)
    if manifest is None:
        return ""
    unsigned = manifest.model_copy(update={"mlflow_run": ""})
    return _digest(unsigned.model_dump_json().encode())[:DIGITS]


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
