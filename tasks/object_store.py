"""Moving files to and from an object store: checked, tried again, and safe to be killed in."""

import errno
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from configs.explain import ConfigError
from tasks.progress import report
from tasks.store import FileEntry, file_sha256

T = TypeVar("T")
TRIES = 5
FIRST_DELAY_S = 0.5
TOGETHER = 16  # files a transfer; the library moves them, and parts of large ones, side by side
BYTES_TOGETHER = 1 << 30  # a larger file goes alone: each transfer is a sign of life
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, NotImplementedError)
_OURS = (TypeError, AttributeError, LookupError, NameError, AssertionError, ImportError)
"""Mistakes in a program, which no second try mends."""
_REFUSED = ("PreconditionFailed", "412")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# The class that gcsfs names itself asks a second service, over gRPC and for a minute if nobody
# answers, what kind of bucket it has. It would serve zonal buckets, which need that service.
for _google in ("gs", "gcs"):
    fsspec.register_implementation(_google, "gcsfs.core.GCSFileSystem", clobber=True)
log = logging.getLogger("klear")


class StoreUnreachable(RuntimeError):
    """The object store did not do what it was asked for, and again did not."""


class ObjectDamaged(OSError):
    """A file in the object store is missing, or is not what was published."""


class ObjectStore:
    """The objects below `url`, any address that fsspec knows; names are relative to it.

    Keys and endpoints come from where the library looks for them (`AWS_ACCESS_KEY_ID` and its
    like, `FSSPEC_S3_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`). Raises ConfigError for an
    address that is none.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self._fs, self._base = fsspec.core.url_to_fs(
                self.url, use_listings_cache=False, skip_instance_cache=True
            )
            if isinstance(self._fs, LocalFileSystem):
                self._fs.auto_mkdir = True  # objects have no folders; files do
        except (ImportError, ValueError) as error:  # the library's own text names the package
            raise ConfigError([f"KLEAR_STORE={url}: {error}"]) from error

    def read(self, name: str) -> bytes | None:
        """One small object; None if there is none."""
        return self._again(f"reading {name}", lambda: self._content(name))

    def write(self, name: str, content: bytes, *, new: bool) -> None:
        """One small object at once. `new`: only if there is none, else FileExistsError."""
        self._settle(name, content, lambda: self._put_at_once(self._at(name), content, new=new))

    def replace(self, name: str, content: bytes, over: bytes) -> None:
        """One small object in the place of `over`; FileExistsError if that is no longer there."""

        def put() -> None:
            try:
                facts = self._fs.info(self._at(name))
                if self._content(name) != over:
                    raise FileExistsError(name)
                seen = facts.get("ETag") or facts.get("generation") or ""
                self._put_at_once(self._at(name), content, new=False, seen=seen)
            except FileNotFoundError as error:
                raise FileExistsError(name) from error

        self._settle(name, content, put)

    def _settle(self, name: str, content: bytes, put: Callable[[], None]) -> None:
        """`put`, and a look at what is there then. FileExistsError if it is not `content`.

        A refusal is none if only the answer to our own write was lost. Where the store knows no
        conditions, of two that write at once the last one wins, and whoever looks later sees it.
        """

        def attempt() -> None:
            with suppress(FileExistsError):
                put()
            if self._content(name) != content:
                raise FileExistsError(f"{self.url}/{name} was written by another machine")

        self._again(f"writing {name}", attempt)

    def wrong(self, files: Mapping[str, FileEntry], of: str, *, verify: bool) -> list[str]:
        """Those of `files` that are not below `of` as they were published.

        Sizes are compared always, digests with `verify`, which reads every byte.
        """
        there = self._again(f"listing {of}", lambda: self._sizes(of))
        found: list[str] = []
        for number, (name, entry) in enumerate(files.items()):
            sound = there.get(name) == entry.bytes
            if sound and verify:
                report(number, len(files), "shared files read")
                sound = self.digest(f"{of}/{name}") == entry.sha256
            found += [] if sound else [name]
        return found

    def upload(
        self, folder: Path, files: Mapping[str, FileEntry], to: str, *, verify: bool = False
    ) -> None:
        """Copy `files` of `folder` below `to`; what is there is kept, unless it is `wrong`.

        Raises OSError for a file that was changed here: it would arrive damaged.
        """
        missing = self.wrong(files, to, verify=verify)
        for done, names in _batches(missing, files):
            for name in names:
                if file_sha256(folder / name) != files[name].sha256:
                    raise OSError(
                        f"{folder / name} was changed since it was published; "
                        "the same command with --verify computes it again"
                    )
            theirs = [self._at(f"{to}/{n}") for n in names]
            ours = [str(folder / n) for n in names]
            self._again(f"uploading to {to}", lambda a=ours, b=theirs: self._fs.put(a, b))
            report(done, len(missing), "files uploaded")

    def download(self, folder: Path, files: Mapping[str, FileEntry], of: str) -> None:
        """Copy `files` below `of` into `folder`. Raises ObjectDamaged for one that is damaged."""
        for done, names in _batches(list(files), files):
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)

            def attempt(names: list[str] = names) -> None:
                theirs = [self._at(f"{of}/{n}") for n in names]
                try:
                    self._fs.get(theirs, [str(folder / n) for n in names])
                except FileNotFoundError as error:
                    lost = self.wrong({n: files[n] for n in names}, of, verify=False)
                    if not lost:
                        raise
                    raise ObjectDamaged(f"{self.url}/{of}: {lost[0]} is missing") from error
                for name in names:
                    if file_sha256(folder / name) != files[name].sha256:
                        raise ObjectDamaged(f"{self.url}/{of}: {name} is not what was published")

            self._again(f"downloading {of}", attempt)
            report(done, len(files), "files downloaded")

    def digest(self, name: str) -> str:
        """SHA-256 of one object of any size, read in blocks; '' if there is none."""

        def attempt() -> str:
            with self._fs.open(self._at(name), "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]

        try:
            return self._again(f"reading {name}", attempt)
        except FileNotFoundError:
            return ""

    def names(self, below: str = "") -> list[str]:
        """Every object, sorted."""
        return sorted(self._again("listing", lambda: self._sizes(below)))

    def stamps(self, below: str = "") -> dict[str, str]:
        """What tells an object from the one that was there before, by name."""

        def attempt() -> dict[str, str]:
            base = self._at(below)
            try:
                found = self._fs.find(base, detail=True)
            except FileNotFoundError:
                return {}
            marks = ("size", "ETag", "etag", "md5Hash", "LastModified", "updated", "mtime")
            return {
                path[len(base) + 1 :]: " ".join(str(facts[m]) for m in marks if m in facts)
                for path, facts in found.items()
            }

        return self._again("listing", attempt)

    def remove_one(self, name: str) -> None:
        """Remove one object; none is no error."""
        try:
            self._again(f"removing {name}", lambda: self._fs.rm_file(self._at(name)))
        except FileNotFoundError:
            return

    def remove(self, below: str) -> None:
        """Remove every object below a folder."""
        found = [self._at(f"{below}/{n}") for n in self.names(below)]
        if found:
            self._again(f"removing {below}", lambda: self._fs.rm(found))

    def _content(self, name: str) -> bytes | None:
        try:
            return self._fs.cat_file(self._at(name))
        except FileNotFoundError:
            return None

    def _put_at_once(self, path: str, content: bytes, *, new: bool, seen: str = "") -> None:
        """`seen`: only over this ETag (S3) or generation (Google); others know no condition."""
        if not isinstance(self._fs, LocalFileSystem):  # an object appears whole
            over = {"IfMatch": seen} if seen and "s3" in self._fs.protocol else {}
            condition = {"mode": "create"} if new else over
            try:
                if seen and "gs" in self._fs.protocol:
                    self._put_over(path, content, seen)
                    return
                self._fs.pipe_file(path, content, **condition)
            except OSError as error:
                if _refused(error):
                    raise FileExistsError(path) from error
                if error.errno != errno.ENOSYS:
                    raise
                self._fs.pipe_file(path, content)  # the server knows no conditions
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{uuid.uuid4().hex}")
        partial.write_bytes(content)
        try:
            if new:
                os.link(partial, target)
            else:
                os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def _put_over(self, path: str, content: bytes, generation: str) -> None:
        """Google's own call: of all conditions the library's `pipe_file` knows "create" alone."""
        bucket, name, _ = self._fs.split_path(path)
        url = self._fs.base.removesuffix("storage/v1/") + "upload/storage/v1/b/{}/o"
        about = {"uploadType": "media", "name": name, "ifGenerationMatch": generation}
        self._fs.call("POST", url, bucket, data=content, **about)

    def _at(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def _sizes(self, below: str) -> dict[str, int]:
        base = self._at(below)
        try:
            found = self._fs.find(base, detail=True)
        except FileNotFoundError:
            return {}
        return {path[len(base) + 1 :]: facts["size"] for path, facts in found.items()}

    def _again(self, what: str, attempt: Callable[[], T]) -> T:
        """`attempt()`, with a growing pause before each new try; some errors are final."""
        for number in range(TRIES):
            try:
                return attempt()
            except (*_FINAL, *_OURS):
                raise
            except Exception as error:  # every backend has errors of its own
                if getattr(error, "errno", None) in _NO_SPACE:
                    raise
                if number == TRIES - 1:
                    if isinstance(error, ObjectDamaged):
                        raise
                    raise StoreUnreachable(
                        f"{self.url}: {what} failed {TRIES} times ({error}); "
                        "the same command continues from here"
                    ) from error
                log.warning("%s: %s failed (%s), trying again", self.url, what, error)
                time.sleep(FIRST_DELAY_S * 2**number)
        raise AssertionError("unreachable")


def _refused(error: OSError) -> bool:
    """Whether the condition of a write did not hold: the library knows AWS's answer alone."""
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response["Error"].get("Code") in _REFUSED


def _batches(
    names: Sequence[str], files: Mapping[str, FileEntry]
) -> Iterator[tuple[int, list[str]]]:
    """(how many names up to the end of this batch, those of this batch)"""
    batch: list[str] = []
    size = 0
    for number, name in enumerate(names):
        if batch and (len(batch) == TOGETHER or size + files[name].bytes > BYTES_TOGETHER):
            yield number, batch
            batch, size = [], 0
        batch.append(name)
        size += files[name].bytes
    if batch:
        yield len(names), batch
