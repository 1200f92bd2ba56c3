"""For every test: a busy machine is no failed property; the environment is as it was found."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from klear.eval.progress import listening
from klear.tasks.engine import cache, stage_process

settings.register_profile("klear", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("klear")

TRIES = 4
PYTEST_OWN = "PYTEST_CURRENT_TEST"


def pytest_collection_finish() -> None:
    """What is imported stays. To look for garbage in it is most of a small training, which does so
    when it starts."""
    gc.freeze()


@pytest.fixture(autouse=True)
def environment_put_back() -> Iterator[None]:
    """A command called in this process tells its settings to the environment, as it does for the
    processes it starts; the next test's processes must not hear them."""
    before = {n: v for n, v in os.environ.items() if n != PYTEST_OWN}
    yield
    for name in os.environ.keys() - before.keys() - {PYTEST_OWN}:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, of which no variable says more."""
    for name in [n for n in os.environ if n.startswith("KLEAR_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """`silence()`: for the watchdog an hour has passed. Else its clock stands still, so that no
    stage stalls because the machine is busy."""
    now = [0.0]

    def pass_an_hour() -> None:
        now[0] += 3600

    clocks = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(stage_process, "time", clocks)
    return pass_an_hour


def compute_here(function: Any, arguments: Any, *, listen: Any, answer: Any, **_: Any) -> Any:
    """In the place of `run_process`."""
    with listening(listen):
        return function(answer, **arguments)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages compute here: what a test replaces is replaced, and no process imports its module."""
    monkeypatch.setattr(cache, "run_process", compute_here)


@pytest.fixture(scope="session")
def quickest() -> Callable[..., float]:
    """`quickest(work, below=seconds)`: CPU seconds of the first call below the bound, else of the
    best of a few calls. A stalled machine makes a call slow; only slow code makes all of them."""

    def measure(work: Callable[[], object], below: float) -> float:
        best = float("inf")
        for _ in range(TRIES):
            began = time.process_time()
            work()
            best = min(best, time.process_time() - began)
            if best < below:
                break
        return best

    return measure
