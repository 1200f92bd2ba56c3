"""Looking for processes, for the tests that promise to leave none."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.supervise import process_state


class Marked:
    """Living processes (no zombies) that carry one unique word on their command line."""

    def __init__(self) -> None:
        self.word = f"klear-test-{uuid.uuid4().hex}"

    def pids(self) -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            state = process_state(int(name))
            if state and state.state not in "ZX" and self.word in _words(name):
                found.append(int(name))
        return found

    def gone(self, seconds: float = 15.0) -> bool:
        """Whether there is none, or soon will be."""
        return eventually(lambda: not self.pids(), seconds)


def _words(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Put `marked.word` on a command line; whatever is left of it ends with the test."""
    mine = Marked()
    yield mine
    for pid in mine.pids():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty MLflow database that is made once: its migrations take seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def mlflow_uri(mlflow_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database, with the current folder where it keeps artifacts of new experiments."""
    monkeypatch.chdir(tmp_path)
    return mlflow_database
