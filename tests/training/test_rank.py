"""What the processes of one run share: the judge's workers, and work that one does first."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from configs.settings.judging import JudgeRuntime, JudgeSettings
from training.launch.rank import POLL_S, rank0_first, share_of_judge

ROOT = Path(__file__).parents[2]
ORPHAN = """
import os, subprocess, sys, time
# the launcher starts a process of the run and ends before that one looks for it
late = "import sys, time; time.sleep(1); from pathlib import Path; " \\
       "from training.launch import rank; " \\
       "rank.join_run(Path(sys.argv[1])); Path(sys.argv[1], 'joined').touch()"
os.environ.update(WORLD_SIZE="2", RANK="0")
os.environ["KLEAR_LAUNCHER"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", late, sys.argv[1]])
if sys.argv[2] == "stays":
    sys.exit(child.wait())
"""
"""A launcher: FOLDER, and whether it stays or ends."""
ADOPTS = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # as tasks/stage/supervise.py: orphans become our children
subprocess.run(sys.argv[1:], check=True)
codes = []
try:
    while True:
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
except ChildProcessError:
    sys.exit(max(codes, default=0))
"""
"""What runs a command and waits for its orphans too; fails as they do."""


@pytest.mark.parametrize(("workers", "here", "each"), [(8, 4, 2), (3, 4, 1), (8, 1, 8)])
def test_the_processes_of_a_machine_share_the_workers_of_one_judge(
    monkeypatch, workers, here, each
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    asked = JudgeSettings(runtime=JudgeRuntime(workers=workers))
    assert share_of_judge(asked).runtime.workers == each


def test_the_others_begin_when_the_first_has_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    done, order = tmp_path / "DONE", []
    other = threading.Thread(target=rank0_first, args=(done, lambda: order.append("other")))
    other.start()
    time.sleep(3 * POLL_S)
    order.append("first")
    done.touch()
    other.join()
    assert order == ["first", "other"]


def test_the_first_says_that_it_has_ended_and_one_that_fails_does_not(tmp_path):
    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        rank0_first(tmp_path / "DONE", fail)
    assert not (tmp_path / "DONE").exists()
    assert rank0_first(tmp_path / "new" / "DONE", lambda: 7) == 7
    assert (tmp_path / "new" / "DONE").exists()


@pytest.mark.parametrize(("ends", "joined"), [("stays", True), ("ends", False)])
def test_a_process_whose_launcher_is_gone_does_not_begin(tmp_path, ends, joined):
    """Under a supervisor an orphan's parent is not process 1, and in a container a launcher may
    be process 1."""
    launcher = [sys.executable, "-c", ORPHAN, str(tmp_path), ends]
    watched = subprocess.run(
        [sys.executable, "-c", ADOPTS, *launcher], cwd=ROOT, capture_output=True, text=True
    )
    assert watched.returncode == (0 if joined else 1), watched.stderr
    assert (tmp_path / "joined").exists() == joined
