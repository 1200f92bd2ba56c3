"""Two stages that need the one GPU take turns; a holder that dies blocks nobody."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks import gpu_lease
from tasks.gpu_slot import WAITING, gpu_slot, sharing_gpus
from tasks.progress import listening

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys, time, types
from contextlib import nullcontext
from pathlib import Path
fake = types.SimpleNamespace(leased=lambda wait: nullcontext())
sys.modules["tasks.gpu_lease"] = fake  # the real one loads Prefect
from tasks.gpu_slot import gpu_slot, sharing_gpus
with sharing_gpus(Path(sys.argv[1]), 1), gpu_slot():
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock files alone, as when Prefect is away."""

    @contextmanager
    def nothing(wait: Callable[[], None]) -> Iterator[None]:
        yield

    monkeypatch.setattr(gpu_lease, "leased", nothing)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_waits_and_says_so_until_the_first_is_killed(
    tmp_path: Path, holder: "subprocess.Popen[str]"
):
    said: list[str] = []

    def listen(done: float, total: float, note: str) -> None:
        said.append(note)
        os.kill(holder.pid, signal.SIGKILL)  # it has been seen to wait

    with sharing_gpus(tmp_path, 1), listening(listen), gpu_slot() as held:
        assert said
        assert set(said) == {WAITING}
        assert len(held) == 1


def test_there_are_as_many_slots_as_were_given(tmp_path: Path, holder: "subprocess.Popen[str]"):
    with sharing_gpus(tmp_path, 2), gpu_slot() as held:
        assert len(held) == 1
        assert holder.poll() is None


def test_the_slot_is_taken_while_the_process_that_computes_lives(tmp_path: Path):
    """Not while we live: a killed run's child may be on the GPU a little longer."""
    with sharing_gpus(tmp_path, 1):
        with gpu_slot() as held:
            child = subprocess.Popen(["sleep", "300"], pass_fds=held)
        ended = threading.Event()

        def listen(done: float, total: float, note: str) -> None:
            if not ended.is_set():
                ended.set()
                child.kill()
                child.wait()

        with listening(listen), gpu_slot():
            assert ended.is_set()


def test_without_slots_nobody_waits(tmp_path: Path, holder: "subprocess.Popen[str]"):
    with sharing_gpus(tmp_path, 0), gpu_slot() as held:
        assert held == []
