"""Temporary folders that outlive a killed process until the next one of their kind removes them.

Whoever uses a folder holds a lock on it, which the kernel frees; `sweep` removes the others.
"""

import contextlib
import fcntl
import os
import shutil
import time

_SWEEP_AFTER_S = 60.0


def hold(folder: str, *, shared: bool = False) -> int:
    """Lock `folder` until the returned descriptor is closed, or its process ends."""
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    return fd


def sweep(parent: str, prefix: str) -> None:
    """Remove what could not be removed by who made it: folders that nobody holds."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(prefix):
            continue
        with contextlib.suppress(OSError):  # held, another user's, or gone
            if time.time() - entry.stat().st_mtime < _SWEEP_AFTER_S:
                continue  # perhaps not locked yet
            fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(fd)
