"""What nodes run for the tests; they import this file by name."""

import os
import signal
import time
from pathlib import Path

import ray


def write_square(part: int, folder: Path) -> None:
    (folder / "square").write_text(str(part * part))


def write_slowly(part: int, folder: Path) -> None:
    time.sleep(2)
    write_square(part, folder)


def refuse_three(part: int, folder: Path) -> None:
    if part == 3:
        raise ValueError("three is not to be squared")
    write_square(part, folder)


def die_at_zero(part: int, folder: Path) -> None:
    if part == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write_square(part, folder)


def hang(part: str, folder: Path) -> None:
    """`part` is a folder where each worker says who it is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(part) / str(os.getpid())).touch()
    time.sleep(3600)


class Other:
    """An actor that holds a CPU."""

    def is_up(self) -> bool:
        return True


def node_id() -> str:
    return ray.get_runtime_context().get_node_id()
