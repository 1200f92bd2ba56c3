"""Runs a command and ends everything it started: when asked, or when the parent goes away.

    python -I tasks/supervise.py PARENT_PID GRACE_SECONDS -- COMMAND ...

TERM or INT to the supervisor, or the death of PARENT_PID (even by SIGKILL), sends TERM to the
whole tree, and KILL after the grace; a second signal skips the grace. The tree is the command, its
descendants, and what they left behind: the supervisor is their subreaper, so a grandchild that
called setsid or lost its parent is still found. Exits with the command's code, 128 + n if signal n
ended it. Standard library only; run it with -I, since files beside it shadow standard modules.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
UNKILLABLE_S = 30.0  # a process stuck in the kernel must not keep us for ever


def supervised(grace_s: float) -> list[str]:
    """Words before a command that is to end with this process, however this one ends."""
    return [sys.executable, "-I", os.path.abspath(__file__), str(os.getpid()), f"{grace_s:g}", "--"]


class ProcessState(NamedTuple):
    parent: int
    session: int
    state: str  # one letter, as in `ps -o stat`; Z is a zombie
    start_ticks: int


def process_state(pid: int) -> ProcessState | None:
    """Fields 3, 4, 6 and 22 of /proc/<pid>/stat; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name may hold spaces
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessState(int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def all_processes() -> dict[int, ProcessState]:
    """Every process of this machine, zombies included."""
    found = {int(n): process_state(int(n)) for n in os.listdir("/proc") if n.isdigit()}
    return {pid: state for pid, state in found.items() if state}


def descendants(root: int) -> list[int]:
    """Living processes below `root`, parents first; zombies are left out but looked through."""
    processes = all_processes()
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    tree, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        queue += below
        tree += [pid for pid in below if processes[pid].state not in "ZX"]
    return tree


def end_tree(grace_s: float, hurry: Sequence[int] = ()) -> None:
    """TERM to every descendant, KILL to those alive after `grace_s` (or once `hurry` has two)."""
    deadline = time.monotonic() + grace_s
    _signal_all(signal.SIGTERM)
    while descendants(os.getpid()) and time.monotonic() < deadline and len(hurry) < 2:
        _reap()
        time.sleep(POLL_S)
    deadline = time.monotonic() + UNKILLABLE_S
    # Again and again: one may fork between the look and the KILL.
    while descendants(os.getpid()) and time.monotonic() < deadline:
        _signal_all(signal.SIGKILL)
        _reap()
        time.sleep(0.01)


def _signal_all(sign: signal.Signals) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, sign)
        except (ProcessLookupError, PermissionError):
            continue


def _reap() -> None:
    """Collect every ended child, so that no zombie stays."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _die_with_supervisor() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(argv: Sequence[str]) -> int:
    parent, grace_s, command = int(argv[0]), float(argv[1]), list(argv[3:])
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)

    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, note)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_supervisor)
    code: int | None = None
    while code is None and not asked and os.getppid() == parent:
        code = _wait(child.pid)
    if code is None:
        end_tree(grace_s, hurry=asked)
        return 128 + (asked[0] if asked else signal.SIGTERM)
    end_tree(0.0)  # what the command left behind
    return code


def _wait(child: int) -> int | None:
    """The exit code of `child` once it ended, polling; other ended children are collected too."""
    time.sleep(POLL_S)
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 1
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        if pid == 0:
            return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
