"""Looking for processes, for the tests that promise to leave none."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from processes import commanded, eventually, left


class Marked:
    """Living processes (no zombies) that carry one unique word on their command line."""

    def __init__(self) -> None:
        self.word = f"klear-test-{uuid.uuid4().hex}"

    def processes(self) -> list[psutil.Process]:
        return left(commanded(self.word, psutil.process_iter()), seconds=0)

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes()]

    def gone(self, seconds: float = 60.0) -> bool:
        """Whether there is none, or soon will be."""
        return eventually(lambda: not self.processes(), seconds)


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Put `marked.word` on a command line; whatever is left of it ends with the test."""
    mine = Marked()
    yield mine
    for process in mine.processes():
        process.kill()


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty MLflow database that is made once: its migrations take seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def mlflow_uri(mlflow_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database, with the current folder where it keeps artifacts of new experiments."""
    monkeypatch.chdir(tmp_path)
    return mlflow_database
