"""Files that travel with a part: what it reads goes to its node, and what it wrote comes back.

A file that a node sees at the same path, of the same size and time, is read in place. Others reach
a node once a run, however many stages and parts read them: it keeps a copy, known by path, size and
time, until the process that asks ends. Where disk is short the copies that were not used for the
longest time go first. The object store holds a few chunks a part at any time.
"""

import hashlib
import io
import os
import pickle
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eval.held_folders import hold, sweep

CHUNK = 4 << 20
PREFIX = "klear-parts-"
COPIES, PARTIAL = "inputs", ".partial"
MOST_OF_THE_DISK = 0.25
"""Copies that stay after a call take this share of what is free without them."""
Fetch = Callable[[str, int], bytes]
"""(path, offset) → up to `CHUNK` bytes of a file of the machine that asks."""


class NotHere(Exception):
    """A node does not see the files of the machine that asks: they must be sent."""


class _Input(NamedTuple):
    """A path of the machine that asks. A folder is only a name: it has size -1 and stays there."""

    path: str
    size: int
    time_ns: int


class _Packer(pickle.Pickler):
    def persistent_id(self, obj: Any) -> _Input | None:
        if not isinstance(obj, Path):
            return None
        facts = _facts(obj.absolute())
        return facts or _Input(str(obj.absolute()), -1, 0)


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, inputs: "Inputs") -> None:
        super().__init__(io.BytesIO(packed))
        self._inputs = inputs

    def persistent_load(self, pid: Any) -> Path:
        return self._inputs.local(_Input(*pid))


def pack(value: Any) -> bytes:
    """`value` for another machine, where the files its paths name will be found."""
    buffer = io.BytesIO()
    _Packer(buffer).dump(value)
    return buffer.getvalue()


def _facts(path: Path) -> _Input | None:
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return _Input(str(path), found.st_size, found.st_mtime_ns)


def _is(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


_held: dict[str, int] = {}


class Inputs:
    """The input files of the parts of one run, on a node; copies are shared by its processes."""

    def __init__(self, run: str, fetch: Fetch | None) -> None:
        self._folder = folder_of(run)
        self._fetch = fetch

    def unpack(self, packed: bytes) -> Any:
        """What was packed, with paths that this node can open.

        Raises NotHere when a file must be sent and nothing fetches it.
        """
        return _Unpacker(packed, self).load()

    def local(self, wanted: _Input) -> Path:
        path = Path(wanted.path)
        if wanted.size < 0 or _facts(path) == wanted:
            return path
        key = hashlib.sha256(repr(tuple(wanted)).encode()).hexdigest()[:16]
        copy = self.folder() / COPIES / key / path.name
        copied = wanted._replace(path=str(copy))
        if _facts(copy) != copied:
            if self._fetch is None:
                raise NotHere(wanted.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            lock = hold(str(copy.parent))  # one process fetches, the others wait for it
            try:
                if _facts(copy) != copied:
                    self._copy(wanted, copy, self._fetch)
            finally:
                os.close(lock)
        os.utime(copy, ns=(time.time_ns(), wanted.time_ns))  # when it was used last
        return copy

    def folder(self) -> Path:
        """A temporary folder of the run on this node; a later one removes it if this is killed."""
        name = str(self._folder)
        if name in _held and not _is(_held[name], self._folder):  # somebody removed it
            os.close(_held.pop(name))
        while name not in _held:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):
                held = hold(name, shared=True)
                if _is(held, self._folder):
                    _held[name] = held
                    sweep(str(self._folder.parent), PREFIX)
                else:  # it was swept while this waited for the lock
                    os.close(held)
        return self._folder

    def _copy(self, wanted: _Input, copy: Path, fetch: Fetch) -> None:
        partial = copy.with_name(f"{copy.name}{PARTIAL}")
        with partial.open("wb") as file:
            while file.tell() < wanted.size:
                file.write(fetch(wanted.path, file.tell()))
        os.utime(partial, ns=(wanted.time_ns, wanted.time_ns))
        os.replace(partial, copy)


def folder_of(run: str) -> Path:
    """Where a node keeps what is of one run: copies of files, and parts on their way back."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{run}"


def trim(run: str, most: float | None = None) -> None:
    """Remove the copies that were used least recently until all take at most `most` bytes."""
    folder = folder_of(run)
    found = [(p, p.stat()) for p in folder.glob(f"{COPIES}/*/*") if p.suffix != PARTIAL]
    total = sum(facts.st_size for _, facts in found)
    if found and most is None:
        most = MOST_OF_THE_DISK * (shutil.disk_usage(folder).free + total)
    for path, facts in sorted(found, key=lambda f: f[1].st_atime_ns):
        if total <= (most or 0):
            return
        shutil.rmtree(path.parent, ignore_errors=True)
        total -= facts.st_size


def read_chunk(path: str, offset: int) -> bytes:
    """Up to `CHUNK` bytes. Raises EOFError at the end: a reader expects a byte there."""
    with open(path, "rb") as file:
        file.seek(offset)
        chunk = file.read(CHUNK)
    if not chunk:
        raise EOFError(f"{path} became shorter than {offset + 1:,} bytes while it was sent")
    return chunk


def sent(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a folder in chunks, and last ("", a digest of all of them)."""
    whole = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        with path.open("rb") as file:
            chunk = file.read(CHUNK)
            while True:
                whole.update(f"{name}\0{len(chunk)}\0".encode() + chunk)
                yield name, chunk
                if not (chunk := file.read(CHUNK)):
                    break
    yield "", whole.digest()


class Received:
    """The other end of `sent`: fills a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole = hashlib.sha256()

    def take(self, name: str, chunk: bytes) -> bool:
        """Whether this was the end. Raises OSError if what arrived is not what was sent."""
        if not name:
            if chunk != self._whole.digest():
                raise OSError(f"{self.folder} did not arrive as it was sent")
            return True
        self._whole.update(f"{name}\0{len(chunk)}\0".encode() + chunk)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(chunk)
        return False
