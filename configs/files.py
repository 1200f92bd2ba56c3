"""Small files that are there whole or not at all, files that lock, and where our own lie."""

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


def replace_text(path: Path, text: str) -> None:
    """Write `path` by one rename: whoever reads or is killed meanwhile sees the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


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
