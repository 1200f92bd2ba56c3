"""A store that several machines share: an object store holds the results, this folder a copy.

    <url>/<stage>/<key>/manifest.json        what makes the result exist; written last
    <url>/<stage>/<key>/<upload>/<file>      `upload`: digits of the manifest's SHA-256

An object store has no rename and no lock, so files are never changed in place: each manifest has
a folder of its own, an upload that is killed leaves one that no manifest names and that the next
attempt fills up, and of two machines that computed one key at once the first manifest wins and
the other machine takes over its result.
"""

import hashlib
import logging
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.machine import Machine
from tasks.object_store import ObjectStore
from tasks.progress import report
from tasks.store import MANIFEST, About, Artifact, InputRef, Manifest, Store, nothing

POLL_S = 0.5
DIGITS = 16  # of the manifest's digest, to name its upload
log = logging.getLogger("klear")


def open_store(machine: Machine) -> Store:
    """The store of this machine: a local folder, alone or in front of an object store."""
    return SharedStore(machine.store, machine.shared) if machine.shared else Store(machine.store)


class SharedStore(Store):
    """The folder `root` in front of the object store at `url` (`s3://bucket/folder`, `gs://…`).

    A result is found by its manifest alone; `fetch` brings the files of those that are read.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.objects = ObjectStore(url)
        self._seen: dict[tuple[str, str], str] = {}
        """The digest of the shared manifest when a key was looked for last; '' for none."""

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """As `Store.find`; what is in the object store alone is found as well."""
        found, wrong = super().find(stage, key, verify=verify)
        if found:
            return found, wrong
        text = self._published(stage, key)
        self._seen[stage, key] = _digest(text)
        if text is None:
            return None, wrong
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError:
            return None, f"{self.objects.url}/{stage}/{key} has an unreadable manifest"
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
        """Copy a result here, unless it is; every file is checked by its digest.

        Raises FileNotFoundError when it is nowhere, StoreUnreachable when a file does not arrive
        as it was published.
        """
        with self._copying(ref.stage, ref.key):
            if super().find(ref.stage, ref.key)[0]:
                return
            text = self._published(ref.stage, ref.key)
            if text is None:
                raise FileNotFoundError(f"{ref.stage}/{ref.key} is not in {self.objects.url}")
            self._copy(ref.stage, ref.key, text)

    def publish(self, work: Path, about: About = nothing, **fields: Any) -> Artifact:
        """As `Store.publish`, then share the result."""
        made = super().publish(work, about, **fields)
        known = self._seen.get((made.stage, made.key), "") or _text(self._mark(made))
        return self._shared(made, replaces=known)

    def share(self, artifact: Artifact) -> Artifact:
        """The result as everybody sees it: uploaded, unless it is, or the one that was first."""
        return self._shared(artifact, replaces=_text(self._mark(artifact)))

    def shared_damage(self) -> Iterator[tuple[str, str]]:
        """(stage/key, what is wrong, '' for a sound result) of every shared result, by digests."""
        for name in self._results():
            text = self.objects.read(f"{name}/{MANIFEST}") or b""
            try:
                files = Manifest.model_validate_json(text).files
            except ValidationError:
                yield name, f"{name} has an unreadable manifest"
                continue
            upload = f"{name}/{_upload(text)}"
            wrong = [
                n for n, f in files.items() if self.objects.digest(f"{upload}/{n}") != f.sha256
            ]
            yield name, f"{name}: {wrong[0]} is missing or was changed" if wrong else ""

    def unnamed_uploads(self) -> list[str]:
        """Uploads that no manifest names: killed before their end, or replaced since."""
        uploads = {"/".join(n.split("/")[:3]) for n in self.objects.names() if n.count("/") >= 3}
        named = {
            f"{name}/{_upload(self.objects.read(f'{name}/{MANIFEST}') or b'')}"
            for name in self._results()
        }
        return sorted(uploads - named)

    def _results(self) -> list[str]:
        tail = f"/{MANIFEST}"
        names = self.objects.names()
        return [n.removesuffix(tail) for n in names if n.endswith(tail) and n.count("/") == 2]

    def _shared(self, made: Artifact, replaces: str) -> Artifact:
        """`replaces`: the digest of the shared manifest that this result may overwrite."""
        path, mark = self.folder(made.stage, made.key) / MANIFEST, self._mark(made)
        if not path.exists():  # it is in the object store alone
            return made
        text = path.read_bytes()
        if _text(mark) == _digest(text):
            return made
        theirs = self._published(made.stage, made.key)
        if theirs is not None and _digest(theirs) not in (replaces, _digest(text)):
            return self._adopted(made, theirs)
        if theirs != text:
            name = f"{made.stage}/{made.key}"
            files = Manifest.model_validate_json(text).files
            self.objects.upload(path.parent, files, f"{name}/{_upload(text)}")
            try:
                self.objects.write(f"{name}/{MANIFEST}", text, new=theirs is None)
            except FileExistsError:
                return self._adopted(made, self._published(made.stage, made.key) or b"")
        _write(mark, _digest(text))
        return made

    def _adopted(self, made: Artifact, theirs: bytes) -> Artifact:
        """The result that another machine published first, in place of `made`."""
        log.warning("%s/%s: another machine was first, its result is used", made.stage, made.key)
        with self._copying(made.stage, made.key):
            if _text(self._mark(made)) != _digest(theirs):
                self._copy(made.stage, made.key, theirs)
        return self._artifact(
            Manifest.model_validate_json(theirs), self.folder(made.stage, made.key)
        )

    @contextmanager
    def _copying(self, stage: str, key: str) -> Iterator[None]:
        """The only one of this machine that copies the result; whoever waits shows that it does."""
        while True:
            with self.lock(f"fetch-{stage}-{key}", wait=False) as free:
                if free:
                    yield
                    return
            report(0, 1, f"another run copies {stage}/{key}: waiting")
            time.sleep(POLL_S)

    def _copy(self, stage: str, key: str, text: bytes) -> None:
        """Bring the files of the manifest `text` here and publish them by one rename."""
        manifest = Manifest.model_validate_json(text)
        work = self.root / ".trash" / f"fetch-{uuid.uuid4().hex}"
        work.mkdir(parents=True)
        try:
            self.objects.download(work, manifest.files, f"{stage}/{key}/{_upload(text)}")
            (work / MANIFEST).write_bytes(text)
            self.discard(stage, key)
            self.folder(stage, key).parent.mkdir(parents=True, exist_ok=True)
            work.rename(self.folder(stage, key))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _write(self.root / ".shared" / stage / key, _digest(text))

    def _published(self, stage: str, key: str) -> bytes | None:
        return self.objects.read(f"{stage}/{key}/{MANIFEST}")

    def _mark(self, made: Artifact) -> Path:
        """Holds the digest of the manifest that was shared, so that nobody asks again."""
        return self.root / ".shared" / made.stage / made.key


def _upload(text: bytes) -> str:
    """The folder of the files that a manifest lists. The MLflow run has no part in it, for it may
    be signed later; '' for what is no manifest."""
    try:
        unsigned = Manifest.model_validate_json(text).model_copy(update={"mlflow_run": ""})
    except ValidationError:
        return ""
    return hashlib.sha256(unsigned.model_dump_json().encode()).hexdigest()[:DIGITS]


def _digest(text: bytes | None) -> str:
    return "" if text is None else hashlib.sha256(text).hexdigest()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
