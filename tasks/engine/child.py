"""Runs a heavy job in its own process: on a free GPU, its output in a log, its progress passed on.

The job travels as `<out>/.resume/job.json`; `python -m klear.training.launch.run_job JOB` reads it.
Between them sits tasks/engine/supervise.py, which ends the whole tree when this process cancels,
fails or is killed.

A GPU slot is an flock on a file that the whole process tree has open, so it is taken exactly as
long as something may be on the GPU, whoever is killed. (The lease of a concurrency limit of Prefect
lapses while its server is down, and is freed before the processes of a killed run have ended.)
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from ...configs.files import PACKAGE, locked, replace_text
from ...configs.machine import load_machine
from ...eval.progress import report
from ...training.launch.result_files import LOGS, PROGRESS, RESULT, SCRATCH
from .stage_process import log_tail
from .supervise import supervised

POLL_S = 0.2
GRACE_S = 5.0  # a cancelled run must be gone in ten seconds, whatever its child does with TERM
WAITING = "waiting for the GPU"


class ChildFailed(RuntimeError):
    """The job ended with an error; `code` is its exit code, 128 + n for signal n."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


def alone(job_file: Path) -> list[str]:
    """One process of its own for the job."""
    # -P: the current folder may hold modules that shadow the standard library's
    return [sys.executable, "-P", "-m", "klear.training.launch.run_job", str(job_file)]


def run_child(
    job: BaseModel, out: Path, *, command: Callable[[Path], Sequence[str]] = alone
) -> dict[str, float]:
    """Run `command` on the file of `job`, on the GPU once it is free; returns its result.

    Its output goes to `<out>/logs/child.log`; what it writes to `<out>/.resume/progress.json`
    ({"done", "total", "note"}) is reported. Raises ChildFailed with the end of the log.
    """
    job_file = out / SCRATCH / "job.json"
    replace_text(job_file, job.model_dump_json(indent=2))
    log = out / LOGS / "child.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # The supervisor of a killed run may take some seconds to end its child: two at once would write
    # the same files. Its open lock file goes when it goes.
    with gpu_slot() as held, locked(out / SCRATCH / "child.lock") as lock:
        assert lock is not None
        log_start = log.stat().st_size if log.exists() else 0
        progress, seen, ended = out / PROGRESS, 0, False
        progress.unlink(missing_ok=True)  # an earlier attempt's
        process = start_supervised(command(job_file), log, pass_fds=(lock.fileno(), *held))
        try:
            while not ended:
                time.sleep(POLL_S)
                ended = process.poll() is not None  # before the look at what it wrote last
                if progress.exists() and (stamp := progress.stat().st_mtime_ns) != seen:
                    seen, now = stamp, json.loads(progress.read_text(encoding="utf-8"))
                    report(float(now["done"]), float(now["total"]), str(now.get("note", "")))
        finally:
            process.terminate()  # the supervisor, which ends the whole tree
            process.wait()
    if code := process.returncode:
        why = " (SIGKILL: often the machine ran out of memory)" if code == 137 else ""
        raise ChildFailed(
            f"the child failed with exit code {code}{why}{log_tail(log, log_start)}", code
        )
    result = out / RESULT
    return json.loads(result.read_text()) if result.exists() else {}


def start_supervised(
    command: Sequence[str], log: Path, pass_fds: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a command that ends with this process; its output is added to `log`."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(PACKAGE.parent), *filter(None, inherited)]  # it imports this code from any folder
    with log.open("ab") as file:
        return subprocess.Popen(
            [*supervised(GRACE_S), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
        )


@contextmanager
def gpu_slot() -> Iterator[list[int]]:
    """Hold one of this machine's slots, if any; yields descriptors that a child keeps open."""
    machine = load_machine()
    slots = [machine.home / "gpu" / f"gpu-{n}.lock" for n in range(machine.gpu_slots)]
    while slots:
        for path in slots:
            with locked(path, wait=False) as file:
                if file:
                    yield [file.fileno()]
                    return
        report(0, 0, WAITING)
        time.sleep(POLL_S)
    yield []
