"""Looking for processes, for the tests that promise to leave none, and a judge that only reads."""

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import commanded, left

from klear.eval.judge import judge
from klear.eval.records import Problem, Score
from tests.eval.evaluations_by_hand import scored


class Marked:
    """Living processes (no zombies) that carry one unique word on their command line."""

    def __init__(self) -> None:
        self.word = f"klear-test-{uuid.uuid4().hex}"

    def processes(self, seconds: float = 0.0) -> list[psutil.Process]:
        """Those that are there, and still are so much later."""
        return left(commanded(self.word, psutil.process_iter()), seconds)


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Put `marked.word` on a command line; whatever is left of it ends with the test."""
    processes_marked = Marked()
    yield processes_marked
    for process in processes_marked.processes():
        process.kill()


class ScriptedJudge:
    """Right answers say "right"; raises KeyboardInterrupt at the text "kill"."""

    judged: list[str]

    def __init__(self, settings: object) -> None:
        ScriptedJudge.judged = []

    def __enter__(self) -> "ScriptedJudge":
        return self

    def __exit__(self, *_: object) -> None: ...

    def judge_many(self, items: Iterable[tuple[Problem, str, int]]) -> Iterator[Score]:
        ahead = []  # looks one item ahead, as a pool of workers does
        for item in items:
            ahead.append(item)
            if len(ahead) > 1:
                yield self._score(*ahead.pop(0))
        for item in ahead:
            yield self._score(*item)

    def _score(self, problem: Problem, text: str, index: int) -> Score:
        if text == "kill":
            raise KeyboardInterrupt
        ScriptedJudge.judged.append(text)
        return scored(problem.id, text == "right", index, seconds=0.25)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedJudge]:
    """The judge of this test; `judged` are the texts that it has scored since it began."""
    monkeypatch.setattr(judge, "Judge", ScriptedJudge)
    return ScriptedJudge


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty MLflow database that is made once: its migrations take seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def mlflow_uri(mlflow_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database, with the current folder where it keeps artifacts of new experiments."""
    monkeypatch.chdir(tmp_path)
    return mlflow_database
