"""A store that several machines share: an object store holds the results, this folder a copy.

    <url>/<stage>/<key>/manifest.json        what makes the result exist; written last
    <url>/<stage>/<key>/<upload>/<file>      `upload`: digits of the manifest's SHA-256

An object store has no rename and no lock, so files are never changed in place: each manifest has
a folder of its own, an upload that is killed leaves one that no manifest names and that the next
attempt fills up, and of two machines that computed one key at once the first manifest wins and
the other machine takes over its result. A file that is damaged is never handed out; the machine
that met it looks at every byte of that result next time, and sends its copy or computes it again.
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
from tasks.manifest import MANIFEST, FileEntry, InputRef, Manifest, damage
from tasks.object_store import TRIES, ObjectDamaged, ObjectStore, StoreUnreachable
from tasks.progress import report
from tasks.shared_marks import DIGITS, SharedMarks
from tasks.store import About, Artifact, Store, nothing

POLL_S = 0.5
log = logging.getLogger("klear")


def open_store(machine: Machine) -> Store:
    """The store of this machine: a local folder, alone or in front of an object store."""
    return SharedStore(machine.store, machine.shared) if machine.shared else Store(machine.store)


class SharedStore(Store):
    """The folder `root` in front of the object store at `url` (`s3://bucket/folder`, `gs://…`).

    A result is found by its manifest and the sizes of its files; `fetch` brings the files of
    those that are read.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.objects = ObjectStore(url)
        self._seen: dict[tuple[str, str], str] = {}
        """The digest of the shared manifest when a key was looked for last; '' for none."""
        self._closely: set[tuple[str, str]] = set()
        """Results that `find` was to verify: `share` verifies what it finds of them."""
        self._asked: set[tuple[str, str]] = set()
        """Results of which this process knows that everybody can find them."""
        self._away = False
        self.marks = SharedMarks(self.root, self.objects.url)

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """As `Store.find`; what is in the object store alone is found too, by the same rules.

        With `verify`, a damaged copy here counts no more where the shared result is sound.
        """
        found, wrong = super().find(stage, key, verify=verify)
        if found:
            if verify:
                self._closely.add((stage, key))
            return found, wrong
        text = self._published(stage, key)
        self._seen[stage, key] = _digest(text)
        if text is None:
            return None, wrong
        name, manifest = f"{self.objects.url}/{stage}/{key}", _parsed(text)
        if manifest is None:
            return None, f"{name} has an unreadable manifest"
        closely = verify or self.marks.damaged(stage, key)
        upload = f"{stage}/{key}/{_upload(text)}"
        if lost := self.objects.wrong(manifest.files, upload, verify=closely):
            return None, f"{name}: {lost[0]} is missing or was changed"
        if closely:
            self.marks.note_sound(stage, key)
        if verify and wrong:  # `fetch` compares sizes alone and would keep what is here
            with self._copying(stage, key):
                if not super().find(stage, key, verify=True)[0]:  # nor has another run mended it
                    (self.folder(stage, key) / MANIFEST).unlink(missing_ok=True)
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

        Raises FileNotFoundError when it is nowhere, ObjectDamaged when a file is not as it was
        published; whoever looks for the result next on this machine verifies it first.
        """
        with self._copying(ref.stage, ref.key):
            if super().find(ref.stage, ref.key)[0]:
                return
            text = self._published(ref.stage, ref.key)
            if text is None:
                raise FileNotFoundError(
                    f"{ref.stage}/{ref.key} is not in {self.objects.url}; the next run that makes "
                    "it computes it again"
                )
            try:
                self._copy(ref.stage, ref.key, text)
            except ObjectDamaged as error:
                self.marks.note_damaged(ref.stage, ref.key)
                raise ObjectDamaged(
                    f"{error}; the next run that makes {ref.stage} computes it again"
                ) from error

    def publish(self, work: Path, about: About = nothing, **fields: Any) -> Artifact:
        """As `Store.publish`, then share the result."""
        made = super().publish(work, about, **fields)
        known = self._seen.get((made.stage, made.key)) or self.marks.shared(made.stage, made.key)
        return self._shared(made, replaces=known)

    def share(self, artifact: Artifact) -> Artifact:
        """The result as everybody sees it: uploaded, unless it is, or the one that was first.

        Whether it is still there is asked once a process; after `find` with `verify`, every byte
        is read, and files that are damaged there are sent again.
        """
        return self._shared(artifact, self.marks.shared(artifact.stage, artifact.key))

    def shared_damage(self) -> Iterator[tuple[str, str]]:
        """(stage/key, what is wrong, '' for a sound result) of every shared result, by digests.

        This machine looks closely at a damaged one before it uses it or counts it as shared.
        """
        for name in self._results():
            text = self.objects.read(f"{name}/{MANIFEST}") or b""
            manifest = _parsed(text)
            if manifest is None:
                yield name, f"{name} has an unreadable manifest"
                continue
            lost = self.objects.wrong(manifest.files, f"{name}/{_upload(text)}", verify=True)
            if lost:
                self.marks.note_damaged(*name.split("/"))
            yield name, f"{name}: {lost[0]} is missing or was changed" if lost else ""

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
        at = (made.stage, made.key)
        if not super().find(*at)[0]:  # it is in the object store alone
            return made
        text = (self.folder(*at) / MANIFEST).read_bytes()
        closely = at in self._closely or self.marks.damaged(*at)
        marked = self.marks.shared(*at) == _digest(text) and not closely
        if marked and (self._away or at in self._asked):
            return made
        for _ in range(TRIES):
            try:
                theirs = self._published(*at)
            except StoreUnreachable as error:
                if not marked:
                    raise
                log.warning("%s; what was shared before counts as shared", error)
                self._away = True
                return made
            try:
                shared = self._settled(made, text, theirs, replaces, closely)
            except FileExistsError:  # another machine was faster
                continue
            except ObjectDamaged:  # theirs is of no use to anybody
                replaces = _digest(theirs)
                continue
            self._asked.add(at)
            self._closely.discard(at)
            return shared
        raise StoreUnreachable(
            f"{self.objects.url}/{made.stage}/{made.key} is replaced again and again; is another "
            "machine forcing this stage? The same command continues from here"
        )

    def _settled(
        self, made: Artifact, text: bytes, theirs: bytes | None, replaces: str, closely: bool
    ) -> Artifact:
        """What everybody sees once `theirs` was there and this machine has `made`.

        Raises FileExistsError when it is no longer `theirs`, ObjectDamaged when theirs is to be
        taken over and cannot be.
        """
        name, upload = f"{made.stage}/{made.key}", _upload(text)
        other = _parsed(theirs or b"")
        known = other is None or _digest(theirs) == replaces
        if other and not known and _upload(theirs or b"") != upload:
            return self._adopted(made, theirs or b"")
        if theirs != text or closely:
            files = Manifest.model_validate_json(text).files
            folder = self.folder(made.stage, made.key)
            self.objects.upload(folder, files, f"{name}/{upload}", verify=closely)
        if theirs is None:
            self.objects.write(f"{name}/{MANIFEST}", text, new=True)
        elif known and theirs != text:
            self.objects.replace(f"{name}/{MANIFEST}", text, over=theirs)
        self.marks.note_shared(made.stage, made.key, _digest(text))
        return made

    def _adopted(self, made: Artifact, theirs: bytes) -> Artifact:
        """The result that another machine published first, in place of `made`."""
        log.warning("%s/%s: another machine was first, its result is used", made.stage, made.key)
        folder = self.folder(made.stage, made.key)
        with self._copying(made.stage, made.key):
            if not folder.exists() or (folder / MANIFEST).read_bytes() != theirs:
                self._copy(made.stage, made.key, theirs)
        return self._artifact(Manifest.model_validate_json(theirs), folder)

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
        """Bring the files of the manifest `text` here and publish them by one rename.

        Files that an older copy has with the same digest are taken from there.
        """
        manifest = _parsed(text)
        if manifest is None:
            raise ObjectDamaged(f"{self.objects.url}/{stage}/{key} has an unreadable manifest")
        work = self.root / ".trash" / f"fetch-{uuid.uuid4().hex}"
        work.mkdir(parents=True)
        try:
            missing = _take(self.folder(stage, key), work, manifest.files)
            self.objects.download(work, missing, f"{stage}/{key}/{_upload(text)}")
            (work / MANIFEST).write_bytes(text)
            self.discard(stage, key)
            self.folder(stage, key).parent.mkdir(parents=True, exist_ok=True)
            work.rename(self.folder(stage, key))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self.marks.note_shared(stage, key, _digest(text))

    def _published(self, stage: str, key: str) -> bytes | None:
        return self.objects.read(f"{stage}/{key}/{MANIFEST}")


def _take(folder: Path, work: Path, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Copy the sound ones of `files` that are in `folder` to `work`; the others."""
    missing: dict[str, FileEntry] = {}
    for name, entry in files.items():
        if damage(folder / name, entry, verify=True):
            missing[name] = entry
        else:
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, work / name)
    return missing


def _parsed(text: bytes) -> Manifest | None:
    """The manifest; None for what is none, or is one of a newer klear."""
    try:
        return Manifest.model_validate_json(text)
    except ValidationError:
        return None


def _upload(text: bytes) -> str:
    """The folder of the files that a manifest lists. The MLflow run has no part in it, for it may
    be signed later; '' for what is no manifest."""
    manifest = _parsed(text)
    if manifest is None:
        return ""
    unsigned = manifest.model_copy(update={"mlflow_run": ""})
    return hashlib.sha256(unsigned.model_dump_json().encode()).hexdigest()[:DIGITS]


def _digest(text: bytes | None) -> str:
    return "" if text is None else hashlib.sha256(text).hexdigest()
