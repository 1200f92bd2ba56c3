"""A store that several machines share: an object store holds the results, this folder a copy.

    <url>/<stage>/<key>/manifest.json        what makes the result exist; written last
    <url>/<stage>/<key>/<upload>/<file>      `upload`: digits of the manifest's SHA-256
    <store>/.shared/<digits of url>/<stage>/<key>    the shared manifest that was seen here last

An object store has no rename and no lock, so files are never changed in place: each manifest has
a folder of its own, an upload that is killed leaves one that no manifest names and that the next
attempt fills up, and of two machines that computed one key at once the first manifest wins and
the other machine takes over its result. Whoever forces a stage replaces the manifest that it saw.
A file that is damaged is never handed out; the machine that met it looks at every byte of that
result next time, and sends its copy or computes it again.
"""

import hashlib
import logging
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.machine import Machine
from tasks.store.manifest import MANIFEST, InputRef, Manifest
from tasks.store.object_store import ObjectDamaged, ObjectStore, StoreUnreachable
from tasks.store.store import About, Artifact, Store, nothing

DIGITS = 16
TRIES = 5
log = logging.getLogger("klear")


def open_store(machine: Machine) -> Store:
    """The store of this machine: a local folder, alone or in front of an object store."""
    return SharedStore(machine.store, machine.shared) if machine.shared else Store(machine.store)


class SharedStore(Store):
    """The folder `root` in front of the object store at `url` (`s3://bucket/folder`, `gs://…`).

    A result is found by its manifest and the sizes of its files; `fetch` brings the files of
    those that are read. Whether a result is still shared is asked once a process; after `find` with
    `verify`, `share` looks at every byte.
    """

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root)
        self.objects = ObjectStore(url)
        self._settled: set[tuple[str, str]] = set()
        """Results of which this process knows that everybody can find them."""
        self._marks = self.root / ".shared" / _digest(self.objects.url.encode())[:DIGITS]

    def find(self, stage: str, key: str, *, verify: bool = False) -> tuple[Artifact | None, str]:
        """As `Store.find`; what is in the object store alone is found too, by the same rules.

        With `verify`, a damaged copy here counts no more where the shared result is sound.
        """
        found, wrong = super().find(stage, key, verify=verify)
        seen, doubted = self._seen(stage, key)
        if found:
            if verify:
                self._note(stage, key, seen, doubted=True)
            return found, wrong
        text = self._published(stage, key)
        self._note(stage, key, _digest(text) if text else "", doubted=doubted)
        if text is None:
            return None, wrong
        name, manifest = f"{self.objects.url}/{stage}/{key}", _parsed(text)
        if manifest is None:
            return None, f"{name} has an unreadable manifest"
        upload = f"{stage}/{key}/{_upload(text)}"
        if lost := self.objects.wrong(manifest.files, upload, verify=verify or doubted):
            return None, f"{name}: {lost[0]} is missing or was changed"
        if verify or doubted:
            self._note(stage, key, _digest(text))
        if verify and wrong:  # `fetch` compares sizes alone and would keep what is here
            with self.lock(f"fetch-{stage}-{key}"):
                if not super().find(stage, key, verify=True)[0]:  # nor has another run mended it
                    self.discard(stage, key)
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
        seen, doubted = self._seen(stage, key)
        if (stage, key) in self._settled and seen == _digest(text) and not doubted:
            return artifact
        files, to = Manifest.model_validate_json(text).files, f"{name}/{_upload(text)}"
        for _ in range(TRIES):
            theirs = self._published(stage, key)
            if theirs and _digest(theirs) != seen and _upload(theirs) not in ("", _upload(text)):
                try:
                    return self._adopted(artifact, theirs)
                except ObjectDamaged:  # theirs is of no use to anybody
                    seen = _digest(theirs)
            if theirs != text or doubted:
                self.objects.upload(self.folder(stage, key), files, to, verify=doubted)
            try:
                if theirs != text:
                    self.objects.write(f"{name}/{MANIFEST}", text, new=theirs is None)
            except FileExistsError:  # another machine was faster
                continue
            self._note(stage, key, _digest(text))
            self._settled.add((stage, key))
            return artifact
        raise StoreUnreachable(
            f"{self.objects.url}/{name}: the manifest is refused, and there is none; does the "
            "server know the condition If-None-Match?"
        )

    def shared_damage(self) -> Iterator[tuple[str, str]]:
        """(stage/key, what is wrong, '' for a sound result) of every shared result, by digests.

        This machine looks closely at a damaged one before it uses it or counts it as shared.
        """
        for name, text in self.manifests().items():
            manifest = _parsed(text)
            if manifest is None:
                yield name, f"{name} has an unreadable manifest"
            elif lost := self.objects.wrong(manifest.files, f"{name}/{_upload(text)}", verify=True):
                stage, key = name.split("/")
                self._note(stage, key, self._seen(stage, key)[0], doubted=True)
                yield name, f"{name}: {lost[0]} is missing or was changed"
            else:
                yield name, ""

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

    def remove_shared(self, stage: str, key: str) -> None:
        """Remove a result from the object store, its manifest first: nobody finds half of it."""
        self.objects.remove(f"{stage}/{key}/{MANIFEST}")
        self.objects.remove(f"{stage}/{key}")
        self._note(stage, key, "")

    def _adopted(self, made: Artifact, theirs: bytes) -> Artifact:
        """The result that another machine published first, in place of `made`."""
        log.warning("%s/%s: another machine was first, its result is used", made.stage, made.key)
        with self.lock(f"fetch-{made.stage}-{made.key}"):
            self._copy(made.stage, made.key, theirs)
        return self._artifact(
            Manifest.model_validate_json(theirs), self.folder(made.stage, made.key)
        )

    def _copy(self, stage: str, key: str, text: bytes) -> None:
        """Bring the files of the manifest `text` here and publish them by one rename."""
        manifest = _parsed(text)
        if manifest is None:
            raise ObjectDamaged(f"{self.objects.url}/{stage}/{key} has an unreadable manifest")
        work = self.root / ".trash" / f"fetch-{uuid.uuid4().hex}"
        work.mkdir(parents=True)
        try:
            self.objects.download(work, manifest.files, f"{stage}/{key}/{_upload(text)}")
            (work / MANIFEST).write_bytes(text)
            self.discard(stage, key)
            self.folder(stage, key).parent.mkdir(parents=True, exist_ok=True)
            work.rename(self.folder(stage, key))
        except ObjectDamaged as error:
            self._note(stage, key, _digest(text), doubted=True)
            raise ObjectDamaged(
                f"{error}; the next run that makes {stage} computes it again"
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self._note(stage, key, _digest(text))

    def _published(self, stage: str, key: str) -> bytes | None:
        return self.objects.read(f"{stage}/{key}/{MANIFEST}")

    def _seen(self, stage: str, key: str) -> tuple[str, bool]:
        """SHA-256 of the shared manifest that this machine saw last ('': none), and whether its
        files are doubted."""
        try:
            digest, _, doubt = (self._marks / stage / key).read_text().partition(" ")
        except FileNotFoundError:
            return "", False
        return digest, bool(doubt)

    def _note(self, stage: str, key: str, digest: str, *, doubted: bool = False) -> None:
        path = self._marks / stage / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{digest} doubted" if doubted else digest)


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
    return _digest(unsigned.model_dump_json().encode())[:DIGITS]


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
