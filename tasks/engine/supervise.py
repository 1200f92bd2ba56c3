"""Runs a command and ends everything it started: when asked, or when the parent goes away.

    python -I tasks/engine/supervise.py PARENT_PID GRACE_SECONDS -- COMMAND ...

TERM or INT to the supervisor, or the death of PARENT_PID (even by SIGKILL), sends TERM to the
whole tree, and KILL after the grace. The tree is the command, its descendants, and what they left
behind: the supervisor is their subreaper, so a grandchild that called setsid or lost its parent is
still found. Exits with the command's code, 128 + n if signal n ended it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1


def supervised(grace_s: float) -> list[str]:
    """Words before a command that is to end with this process, however this one ends."""
    return [sys.executable, "-I", os.path.abspath(__file__), str(os.getpid()), f"{grace_s:g}", "--"]


def descendants(root: int) -> list[psutil.Process]:
    """Living processes below `root`; zombies are left out but looked through."""
    with suppress(psutil.NoSuchProcess):
        return [p for p in psutil.Process(root).children(recursive=True) if is_alive(p)]
    return []


def is_alive(process: psutil.Process) -> bool:
    """Whether it is the same process still, and no zombie."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _end_tree(grace_s: float) -> None:
    """TERM to every descendant, KILL to those alive after `grace_s`."""
    deadline, sign = time.monotonic() + grace_s, signal.SIGTERM
    while alive := descendants(os.getpid()):
        for process in alive if sign else ():
            with suppress(psutil.Error):
                process.send_signal(sign)
        time.sleep(POLL_S)
        _reap()
        # KILL again and again: one may fork between look and KILL
        sign = signal.SIGKILL if time.monotonic() > deadline else 0


def _reap(command: int = 0) -> int | None:
    """Collect every ended child, so that no zombie stays; the exit code of `command` if it has."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == command:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def main(argv: Sequence[str]) -> int:
    parent, grace_s, command = int(argv[0]), float(argv[1]), list(argv[3:])
    signals: list[int] = []
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, lambda number, _: signals.append(number))
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    die_with_supervisor = partial(prctl, PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_supervisor)
    code: int | None = None
    while code is None and not signals and os.getppid() == parent:
        time.sleep(POLL_S)
        code = _reap(child.pid)
    if code is None:
        _end_tree(grace_s)
        return 128 + (signals[0] if signals else signal.SIGTERM)
    _end_tree(0.0)  # what the command left behind
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
