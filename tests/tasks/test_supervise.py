"""The supervisor leaves no process behind, whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.supervise import descendants

SUPERVISOR = Path(__file__).resolve().parents[2] / "tasks" / "supervise.py"
FAMILY = """
import os, subprocess, sys, time
mark = sys.argv[1]
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)", mark]
subprocess.Popen(sleep)                              # a child
subprocess.Popen(sleep, start_new_session=True)      # one in a session of its own
if os.fork() == 0:                                   # one whose parent is gone
    os.setsid()
    subprocess.Popen(sleep)
    os._exit(0)
print("ready", flush=True)
{ending}
"""


def supervised(word: str, ending: str, grace_s: float = 5.0) -> "subprocess.Popen[bytes]":
    """A supervisor, child of this process, over a family of four; returns once they run."""
    family = [sys.executable, "-c", FAMILY.format(ending=ending), word]
    process = subprocess.Popen(
        [sys.executable, "-I", str(SUPERVISOR), str(os.getpid()), str(grace_s), "--", *family],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_tree(marked: Any, sign: signal.Signals) -> None:
    process = supervised(marked.word, "time.sleep(300)")
    assert len(marked.pids()) >= 4
    process.send_signal(sign)
    assert process.wait(15) == 128 + sign
    assert marked.pids() == []


def test_what_a_finished_command_left_behind_is_ended(marked: Any) -> None:
    process = supervised(marked.word, "sys.exit(3)")
    assert process.wait(15) == 3
    assert marked.pids() == []


def test_a_command_that_ignores_term_is_killed_after_the_grace(marked: Any) -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); "
    process = supervised(marked.word, ignoring + "sys.stdout.flush(); time.sleep(300)", grace_s=0.5)
    process.send_signal(signal.SIGTERM)
    process.wait(15)
    assert marked.pids() == []


def test_a_second_signal_skips_the_grace(marked: Any) -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    process = supervised(marked.word, ignoring + "time.sleep(300)", grace_s=120.0)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert time.monotonic() - began < 30
    assert marked.pids() == []


def test_killing_the_parent_ends_the_whole_tree(marked: Any) -> None:
    parent = subprocess.Popen(
        [
            sys.executable, "-c",
            "import os, subprocess, sys; subprocess.run("
            "[sys.executable, '-I', sys.argv[2], str(os.getpid()), '5', '--', "
            "sys.executable, '-c', sys.argv[3], sys.argv[1]])",
            marked.word, str(SUPERVISOR), FAMILY.format(ending="time.sleep(300)"),
        ],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    parent.stdout.readline()
    parent.kill()
    parent.wait()
    assert marked.gone()


def test_killing_the_supervisor_ends_the_command(marked: Any) -> None:
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(300)", marked.word]
    process = subprocess.Popen(
        [sys.executable, "-I", str(SUPERVISOR), str(os.getpid()), "5", "--", *command],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    assert marked.gone()


def test_the_exit_code_says_which_signal_ended_the_command() -> None:
    suicide = [
        sys.executable,
        "-S",
        "-c",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ]
    command = [sys.executable, "-I", str(SUPERVISOR), str(os.getpid()), "5", "--", *suicide]
    assert subprocess.run(command, timeout=15).returncode == 128 + signal.SIGKILL


def test_descendants_lists_grandchildren() -> None:
    process = subprocess.Popen(["sh", "-c", "sleep 300 & echo ready; wait"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    below = descendants(process.pid)
    assert len(below) == 1
    assert process.pid in descendants(os.getpid())
    for pid in (*below, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
