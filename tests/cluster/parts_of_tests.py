"""Parts that nodes compute for the tests; they import this file by name."""

import os
import shutil
import signal
import time
from pathlib import Path

MEGABYTE = bytes(range(256)) * 4096


def write_square(part: int, folder: Path) -> None:
    (folder / "square").write_text(str(part * part))


def refuse_three(part: int, folder: Path) -> None:
    if part == 3:
        raise ValueError("three is not to be squared")
    write_square(part, folder)


def copy_twice(part: tuple[Path, str], folder: Path) -> None:
    """The input two times, and where it was found. Two parts meet, so that each node has one."""
    source, meeting = part
    (Path(meeting) / source.name).touch()
    while len(os.listdir(meeting)) < 2:
        time.sleep(0.05)
    (folder / "deep").mkdir()
    for name in ("first", "deep/second"):
        shutil.copyfile(source, folder / name)
    (folder / "found").write_text(str(source))


def read_one_table(part: tuple[Path, str, str], folder: Path) -> None:
    """Where the table was found, and its bytes. Two parts meet, so that each node has one."""
    source, name, meeting = part
    (Path(meeting) / name).touch()
    while len(os.listdir(meeting)) < 2:
        time.sleep(0.05)
    shutil.copyfile(source, folder / "read")
    (folder / "found").write_text(str(source))


def die_at_zero(part: int, folder: Path) -> None:
    if part == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write_square(part, folder)


def hang(part: str, folder: Path) -> None:
    """`part` is a folder where each worker says who it is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(part) / str(os.getpid())).touch()
    time.sleep(3600)
