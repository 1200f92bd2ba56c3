"""Small files that are there whole or not at all, those of a folder, files that lock, and where our
own lie."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

POLL_S = 0.1
PACKAGE = Path(__file__).parents[1]
"""The folder of `klear`, installed or of the checkout; imports need the one above on the path."""


def replace_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write `path` by one rename: whoever reads or is killed meanwhile sees the old or the new;
    after a power cut only if it is `durable`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(part, path)


def files_in(folder: Path) -> list[tuple[str, Path]]:
    """Every file below, also behind links to folders, by its name there."""
    files = list[tuple[str, Path]]()
    for name, folders, names in os.walk(folder, followlinks=True):
        place = Path(name)
        above = [p for p in place.parents if p.is_relative_to(folder)]
        if any(place.samefile(p) for p in above):  # a link in a circle
            folders.clear()
            continue
        paths = [place / name for name in names]
        files += [(str(path.relative_to(folder)), path) for path in paths if path.is_file()]
    return sorted(files)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[TextIO | None]:
    """Hold an flock on the file `path`, which the kernel frees when its holder dies. Yields the
    open file; None if `wait` is off and somebody else holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    yield None
                    return
            time.sleep(POLL_S)  # and not inside of flock, where a thread cannot be interrupted
        yield file
