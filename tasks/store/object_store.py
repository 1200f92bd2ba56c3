"""Objects below one address: read, written for the first time only, moved and checked.

Addresses, keys, endpoints and retries are those of fsspec and its libraries (s3fs, gcsfs).
"""

import errno
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from configs.settings.explain import ConfigError
from tasks.stage.progress import report
from tasks.store.manifest import FileEntry, file_sha256

TOGETHER = 16  # files a transfer: the library moves them side by side, and each is a sign of life
_AS_THEY_ARE = (
    *(FileNotFoundError, FileExistsError, PermissionError),  # answers of the store
    *(TypeError, AttributeError, LookupError, NameError, AssertionError, ImportError),  # mistakes
)


class StoreUnreachable(RuntimeError):
    """The object store did not do what it was asked for, however often the library asked."""


class ObjectDamaged(OSError):
    """A file in the object store is missing, or is not what was published."""


class ObjectStore:
    """The objects below `url`, any address that fsspec knows; names are relative to it.

    Keys and endpoints come from where the library looks for them (`AWS_ACCESS_KEY_ID` and its
    like, `AWS_ENDPOINT_URL_S3`, `GOOGLE_APPLICATION_CREDENTIALS`). Raises ConfigError for an
    address that is none.
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

    def wrong(self, files: Mapping[str, FileEntry], of: str, *, verify: bool) -> list[str]:
        """Those of `files` that are not below `of` as they were published.

        Sizes are compared always, digests with `verify`, which reads every byte.
        """
        there = self._sizes(of)
        found = [n for n, f in files.items() if there.get(n) != f.bytes]
        for number, (name, entry) in enumerate(files.items() if verify else ()):
            report(number, len(files), "shared files read")
            if name not in found and self._digest(f"{of}/{name}") != entry.sha256:
                found.append(name)
        return found

    def upload(
        self, folder: Path, files: Mapping[str, FileEntry], to: str, *, verify: bool = False
    ) -> None:
        """Copy `files` of `folder` below `to`; what is there is kept, unless it is `wrong`.

        Raises OSError for a file that was changed here: it would arrive damaged.
        """
        for names in _batches(self.wrong(files, to, verify=verify), "files uploaded"):
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
        if lost := self.wrong(files, of, verify=False):
            raise ObjectDamaged(f"{self.url}/{of}: {lost[0]} is missing or was changed")
        for names in _batches(list(files), "files downloaded"):
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
        sha = hashlib.sha256()
        with self._asked(f"reading {name}"), self._fs.open(self._at(name), "rb") as file:
            while block := file.read(1 << 22):
                sha.update(block)
        return sha.hexdigest()

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _sizes(self, below: str) -> dict[str, int]:
        base = self._at(below)
        with self._asked("listing"):
            try:
                found = self._fs.find(base, detail=True)
            except FileNotFoundError:
                return {}
        return {path[len(base) + 1 :]: facts["size"] for path, facts in found.items()}

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """StoreUnreachable for what the library gave up: every backend has errors of its own."""
        try:
            yield
        except _AS_THEY_ARE:
            raise
        except Exception as error:
            raise StoreUnreachable(
                f"{self.url}: {what} failed ({error}); the same command continues from here"
            ) from error


def _batches(names: Iterable[str], what: str) -> Iterator[list[str]]:
    """Some names at a time; says how many are done once they are."""
    every, done = list(names), 0
    remaining = iter(every)
    while batch := list(islice(remaining, TOGETHER)):
        yield batch
        done += len(batch)
        report(done, len(every), what)
