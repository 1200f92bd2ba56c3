"""The small home of the kills: each run writes to a log that is read while it goes on."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from home import KLEAR, ROOT, Home


@dataclass
class Attempt:
    """A run under way: a `klear run`, or a run of the web form that the worker started."""

    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    flow_run: str = ""
    until: str = ""
    """The stage after which it ends."""
    began: float = field(default_factory=time.time)
    offset: int = 0

    def text(self) -> str:
        """What it has said so far."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self.offset)
            return file.read().decode(errors="replace")


class Place(Home):
    """A home whose store is apart, with one thread a process."""

    def __init__(self, folder: Path) -> None:
        (folder / "tmp").mkdir(exist_ok=True)
        super().__init__(
            folder,
            KLEAR_STORE=str(folder / "store"),
            KLEAR_WORKER_LIMIT="2",
            TMPDIR=str(folder / "tmp"),
            OMP_NUM_THREADS="1",
            PYTHONUNBUFFERED="1",
            NO_PROXY="127.0.0.1",
        )
        self._attempts = 0

    def attempt(self, *words: str, until: str = "report") -> Attempt:
        """`klear run` in the background."""
        self._attempts += 1
        log = self.folder / f"run-{self._attempts:03d}.log"
        command = [*KLEAR, "run", str(self.profile), "--until", until, *words]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Attempt(log, process, until=until)

    def attempt_by_form(self, settings: Mapping[str, Any], until: str) -> Attempt:
        """The Submit button of the profile's web form, with the small profile's values in it."""
        log = self.home / "logs" / "worker.log"
        offset = log.stat().st_size if log.exists() else 0
        run = self.submit("tiny", settings=dict(settings), until=until)
        return Attempt(log, flow_run=run, until=until, offset=offset)


@contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    """A place whose servers run inside of the block."""
    place = Place(folder)
    place.klear("up")
    try:
        yield place
    finally:
        place.command("down")
