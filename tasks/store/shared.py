"""A store that several machines share: an object store holds the results, this folder a copy.

    <url>/<stage>/<key>/manifest.json        what makes the result exist; written last
    <url>/<stage>/<key>/<upload>/<file>      `upload`: digits of the manifest's SHA-256
    <store>/.unsent/<stage>-<key>            made here and not shared yet

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from configs.files import replace_text
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
)

TOGETHER = 16  # files a transfer: the library moves them side by side, and each is a sign of life
DIGITS = 16
TRIES = 3
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
        return self._ask("cat_file", self._at(name))

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Small objects by name, read side by side; one that is gone by now is left out."""
        found = self._ask("cat", [self._at(n) for n in names], on_error="omit") if names else {}
        return {path[len(self._base) + 1 :]: content for path, content in found.items()}

    def write(self, name: str, content: bytes, *, new: bool) -> None:
        """One small object at once. `new`: only if there is none, else FileExistsError."""
        path = self._at(name)
        if isinstance(self._fs, LocalFileSystem):  # whose own write is seen half done
            partial = f"{path}.{uuid.uuid4().hex}"
            self._ask("pipe_file", partial, content)
            try:
                (os.link if new else os.replace)(partial, path)
            finally:
                Path(partial).unlink(missing_ok=True)
        else:
            self._ask("pipe_file", path, content, mode="create" if new else "overwrite")

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
        for names in _together(missing, "files uploaded"):
            for name in names:
                if file_sha256(folder / name) != files[name].sha256:
                    raise OSError(
                        f"{folder / name} was changed since it was published; "
                        "the same command with --verify computes it again"
                    )
            theirs = [self._at(f"{to}/{n}") for n in names]
            self._ask("put", [str(folder / n) for n in names], theirs)

    def download(self, folder: Path, files: Mapping[str, FileEntry], of: str) -> None:
        """Copy `files` below `of` into `folder`. Raises ObjectDamaged for one that is damaged."""
        lost = self.damage(files, of, verify=False)
        for names in _together([] if lost else list(files), "files downloaded"):
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            theirs = [self._at(f"{of}/{n}") for n in names]
            self._ask("get", theirs, [str(folder / n) for n in names])
            lost += [n for n in names if file_sha256(folder / n) != files[n].sha256]
        if lost:
            raise ObjectDamaged(f"{self.url}/{of}: {lost[0]} is missing or was changed")

    def names(self, below: str = "") -> list[str]:
        """Every object, sorted."""
        return sorted(self._sizes(below))

    def remove(self, name: str) -> None:
        """Remove an object, or all below a folder; none is no error."""
        if found := self._ask("find", self._at(name)):
            self._ask("rm", found)

    def _digest(self, name: str) -> str:
        """SHA-256 of one object of any size, read in blocks; '' if there is none."""

        def read() -> str:
            with self._fs.open(self._at(name), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        return self._ask(read) or ""

    def _sizes(self, below: str) -> dict[str, int]:
        base = self._at(below)
        found = self._ask("find", base, detail=True) or {}
        return {path[len(base) + 1 :]: facts["size"] for path, facts in found.items()}

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _ask(self, method: str | Callable[[], Any], *words: Any, **options: Any) -> Any:
        """What the library answers; None for what is not there to be read. StoreUnreachable for
        what it gave up: every backend has errors of its own."""
        call = getattr(self._fs, method) if isinstance(method, str) else method
        creates = options.get("mode") == "create"
        try:
            return call(*words, **options)
        except (FileExistsError, PermissionError):
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and method not in ("put", "pipe_file"):
                return None
            if creates and getattr(error, "errno", 0) == errno.EINVAL:
                raise FileExistsError(words[0]) from error  # "precondition failed", said otherwise
            if creates and getattr(error, "errno", 0) == errno.ENOSYS:
                return call(*words)  # the server knows no conditions
            raise StoreUnreachable(
                f"{self.url}: {call.__name__} failed ({error}); the same command continues from "
                "here"
            ) from error


def open_store(machine: Machine) -> Store:
    """The store of this machine: a local folder, alone or in front of an object store."""
    return SharedStore(machine.store, machine.shared) if machine.shared else Store(machine.store)


class SharedStore(Store):
    """The folder `root` in front of the object store at `url` (`s3://bucket/folder`, `gs://…`).

    A result is found by its manifest and the sizes of its files; `fetch` brings the files of those
    that are read. `share` asks once a process.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.objects = ObjectStore(url)
        self._seen: dict[str, str] = {}
        """stage/key → upload of the shared result that this process may replace."""
        self._settled: dict[str, bytes] = {}
        """stage/key → the manifest of which this process knows that everybody finds it."""

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """As `Store.find`; what is in the object store alone is found too, by the same rules. With
        `verify`, whichever of copy and shared result is damaged gives way to the sound one."""
        name = f"{stage}/{key}"
        found, wrong = super().find(stage, key, verify=verify)
        if found and not verify:
            return found, wrong
        text = self._published(name)
        lost = self._damage(name, text, verify=verify) if text else ""
        self._seen[name] = _upload(text) if text else ""
        if found:
            if text and lost:
                self.withdraw(name, text)  # `share` sends the copy again
            self._settled.pop(name, None)
            return found, wrong
        if text is None or lost:
            return None, f"{self.objects.url}/{lost}" if lost else wrong
        if verify and wrong:  # `fetch` compares sizes alone and would keep what is here
            with self.lock(f"fetch-{stage}-{key}"):
                if not super().find(stage, key, verify=True)[0]:  # nor has another run mended it
                    self.discard(stage, key)
        return self._artifact(Manifest.model_validate_json(text), self.folder(stage, key)), ""

    def manifest(self, artifact: Artifact | InputRef) -> Manifest:
        """As `Store.manifest`, from the object store where there is no copy."""
        try:
            return super().manifest(artifact)
        except FileNotFoundError:
            text = self._published(f"{artifact.stage}/{artifact.key}")
            if text is None:
                raise
            return Manifest.model_validate_json(text)

    def fetch(self, ref: Artifact | InputRef | Manifest) -> None:
        """Copy a result here, unless it is. Raises FileNotFoundError when it is nowhere,
        ObjectDamaged when a file has another digest; nobody finds the shared result then."""
        with self.lock(f"fetch-{ref.stage}-{ref.key}"):
            if super().find(ref.stage, ref.key)[0]:
                return
            text = self._published(f"{ref.stage}/{ref.key}")
            if text is None:
                raise FileNotFoundError(
                    f"{ref.stage}/{ref.key} is not in {self.objects.url}; the next run that makes "
                    "it computes it again"
                )
            self._copy(ref.stage, ref.key, text)

    def publish(self, work: Path, about: About | None = None, **fields: Any) -> Artifact:
        """As `Store.publish`, then share the result. It replaces the one that was here, or that
        `find` saw, and no other."""
        stage, key = fields["stage"], fields["key"]
        path = self.folder(stage, key) / MANIFEST
        replaced = [self._seen.get(f"{stage}/{key}", "")]
        if path.is_file():
            replaced.append(_upload(path.read_bytes()))
        replace_text(self._unsent(stage, key), " ".join(replaced))
        return self._share(super().publish(work, about, **fields))

    def share(self, artifact: Artifact) -> Artifact:
        """The result as everybody sees it: uploaded, unless it is, or the newer one."""
        if not super().find(artifact.stage, artifact.key)[0]:  # it is in the object store alone
            return artifact
        return self._share(artifact)

    def _share(self, artifact: Artifact) -> Artifact:
        """Upload a result unless it is there. A new one takes the place of the uploads that it was
        made to replace; else it gives way: what others have read must stay what it was."""
        stage, key = artifact.stage, artifact.key
        unsent = self._unsent(stage, key)
        replaced = unsent.read_text().split() if unsent.is_file() else []
        name, folder = f"{stage}/{key}", self.folder(stage, key)
        text = (folder / MANIFEST).read_bytes()
        mine = Manifest.model_validate_json(text)
        if self._settled.get(name) == text:
            return artifact
        for _ in range(TRIES):
            theirs = self._published(name)
            other = parsed(theirs) if theirs else None
            if theirs and other and _upload(theirs) not in (_upload(text), *replaced):
                try:
                    adopted = self._adopted(artifact, theirs)
                    self.objects.remove(f"{name}/{_upload(text)}")
                    unsent.unlink(missing_ok=True)
                    return adopted
                except ObjectDamaged:  # theirs is of no use to anybody, and gone
                    continue
            try:
                if theirs != text:
                    self.objects.upload(folder, mine.files, f"{name}/{_upload(text)}")
                    self.objects.write(f"{name}/{MANIFEST}", text, new=theirs is None)
                if other and _upload(theirs or b"") != _upload(text):
                    self.withdraw(name, theirs or b"")
            except FileExistsError:  # another machine was faster
                continue
            self._settled[name] = text
            unsent.unlink(missing_ok=True)
            return artifact
        raise StoreUnreachable(f"{self.objects.url}/{name}: its manifest is refused")

    def _unsent(self, stage: str, key: str) -> Path:
        """Exists while a result made here waits to be shared; names the uploads it replaces."""
        return self.root / ".unsent" / f"{stage}-{key}"

    def shared_damage(self) -> Iterator[tuple[str, str]]:
        """(stage/key, what is wrong, '' for a sound result) of every shared result, by digests."""
        for name, text in self.manifests().items():
            yield name, self._damage(name, text, verify=True)

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
        return self._artifact(Manifest.model_validate_json(theirs), made.folder)

    def _copy(self, stage: str, key: str, text: bytes) -> None:
        """Bring the files of the manifest `text` here and publish them by one rename."""
        name, work = f"{stage}/{key}", self.root / ".trash" / f"fetch-{uuid.uuid4().hex}"
        work.mkdir(parents=True)
        try:
            manifest = parsed(text)
            if manifest is None:
                raise ObjectDamaged(f"{self.objects.url}/{name} has an unreadable manifest")
            self.objects.download(work, manifest.files, f"{name}/{_upload(text)}")
            (work / MANIFEST).write_bytes(text)
            self.discard(stage, key)
            self.folder(stage, key).parent.mkdir(parents=True, exist_ok=True)
            work.rename(self.folder(stage, key))
        except ObjectDamaged as error:
            self.withdraw(name, text)
            raise ObjectDamaged(
                f"{error}; the next run that makes {stage} computes it again"
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._settled[name] = text

    def withdraw(self, name: str, text: bytes) -> None:
        """Take the result of the manifest `text` out of the object store, and no other that has
        replaced it; its manifest first: nobody finds half of it."""
        if self._published(name) == text:
            self.objects.remove(f"{name}/{MANIFEST}")
        if upload := _upload(text):
            self.objects.remove(f"{name}/{upload}")

    def _published(self, name: str) -> bytes | None:
        return self.objects.read(f"{name}/{MANIFEST}")


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
    unsigned = manifest.model_copy(update={"mlflow_run": ""}).model_dump_json()
    return hashlib.sha256(unsigned.encode()).hexdigest()[:DIGITS]


def _together(names: list[str], what: str) -> Iterator[list[str]]:
    """The names, some at a time, with a sign of life before each."""
    for done in range(0, len(names), TOGETHER):
        report(done, len(names), what)
        yield names[done : done + TOGETHER]
