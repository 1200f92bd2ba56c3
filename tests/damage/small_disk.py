"""Runs the three stages on a disk that is nearly full, a little less so each time, until all fits.

    python tests/damage/small_disk.py DISK blocks|inodes

Prints one JSON line: for each attempt how much was free, what was said, and what was published
whole or not; last whether the run went through, and the digests of what it published.
"""

import errno
import json
import os
import sys
from pathlib import Path

from damage.three_stages import run_all, settings_of

from klear.tasks.store.gc import damaged
from klear.tasks.store.store import MANIFEST, Store

FREE_KB = (0, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 192)
FREE_INODES = (0, 1, 2, 3, 4, 6, 8, 10, 13, 17, 22, 28, 40)
BLOCK = 1024


def fill(disk: Path, free_kb: int) -> None:
    """Leave `free_kb` kilobytes on the disk."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        room = os.statvfs(disk)
        size = room.f_bavail * room.f_frsize - free_kb * BLOCK
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)


def fill_inodes(disk: Path, free: int) -> None:
    """Leave `free` inodes on the disk."""
    folder = disk / "fillers"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for number in range(max(os.statvfs(disk).f_ffree - free, 0)):
        (folder / str(number)).touch()


def attempt(store: Path) -> dict[str, object]:
    """One run: what it said when it failed, and every published folder that is not whole."""
    reason, code = "", 0
    try:
        run_all(store)
    except OSError as error:
        reason, code = str(error), error.errno or 0
    folders = {f"{p.parent.name}/{p.name}" for p in store.glob("[!.]*/*")}
    wrong = [problem for _, problem in damaged(Store(store)) if problem]
    return {"said": reason, "full": code == errno.ENOSPC, "published": len(folders), "wrong": wrong}


def main(disk: Path, what: str) -> None:
    store = disk / "store"
    leave, amounts = (fill, FREE_KB) if what == "blocks" else (fill_inodes, FREE_INODES)
    settings_of(store)  # the problems lie on this disk too
    attempts = []
    for free in amounts:
        leave(disk, free)
        attempts.append({"free": free, **attempt(store)})
    digests = {
        p.parent.parent.name: json.loads(p.read_text())["digest"]
        for p in store.glob(f"[!.]*/*/{MANIFEST}")
    }
    print(json.dumps({"attempts": attempts, "digests": digests}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
