"""Two stages that need the one GPU take turns; a holder that dies blocks nobody."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.stage.child import WAITING, gpu_slot, sharing_gpus
from tasks.stage.progress import listening

HOLDER = """
import sys, time
from pathlib import Path
from tasks.stage.child import gpu_slot, sharing_gpus
with sharing_gpus(Path(sys.argv[1]), 1), gpu_slot():
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[3],
        stdout=subprocess.PIPE,
        text=True,
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
        holder.kill()  # it has been seen to wait

    with sharing_gpus(tmp_path, 1), listening(listen), gpu_slot() as held:
        assert set(said) == {WAITING}
        assert len(held) == 1


def test_the_slot_is_taken_while_the_process_that_computes_lives(tmp_path: Path):
    """Not while we live: a killed run's child may be on the GPU a little longer."""
    with sharing_gpus(tmp_path, 1):
        with gpu_slot() as held:
            child = subprocess.Popen(["sleep", "300"], pass_fds=held)

        def listen(done: float, total: float, note: str) -> None:
            child.kill()
            child.wait()

        with listening(listen), gpu_slot():
            assert child.poll() is not None
