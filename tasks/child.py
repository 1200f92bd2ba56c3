"""Runs a heavy job in its own process: output to a log, progress passed on, nothing left behind.

The job travels as `<out>/.resume/job.json`; `python -m training.child JOB` reads it. Between them
sits tasks/supervise.py, which ends the whole tree when this process cancels, fails or is killed.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from tasks.gpu_slot import gpu_slot
from tasks.progress import report
from tasks.supervise import supervised

ROOT = Path(__file__).resolve().parents[1]
POLL_S = 0.2
GRACE_S = 4.0  # a cancelled run must be gone in ten seconds, whatever its child does with TERM
SUPERVISOR_TIMEOUT_S = 60.0
TAIL_LINES = 20


class ChildFailed(RuntimeError):
    """The job ended with an error, or made no progress for too long."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """Its exit code, 128 + n for signal n; None where it was ended here."""


Command = Callable[[Path], Sequence[str]]
"""What to run for the job in a file."""


def alone(job_file: Path) -> list[str]:
    """One process of its own for the job."""
    # -P: the current folder may hold modules that shadow the standard library's
    return [sys.executable, "-P", "-m", "training.child", str(job_file)]


def run_child(
    job: BaseModel,
    out: Path,
    *,
    on_poll: Callable[[], None] | None = None,
    stall_minutes: float | None = None,
    command: Command = alone,
) -> None:
    """Run `training.child` on `job` and wait for it.

    Args:
        job: written to `<out>/.resume/job.json`.
        out: the stage's work folder; the output goes to `<out>/logs/child.log`.
        on_poll: called about five times a second, and once more when the job has ended.
        stall_minutes: fail if `<out>/.resume/progress.json` stays unchanged for this long.
        command: starts the job's processes, if it is not one.

    Raises:
        ChildFailed: with the end of the log and its path.
    """
    job_file = out / ".resume" / "job.json"
    job_file.parent.mkdir(parents=True, exist_ok=True)
    partial = job_file.with_suffix(".partial")
    partial.write_text(job.model_dump_json(indent=2), encoding="utf-8")
    os.replace(partial, job_file)
    run_command(command(job_file), out, on_poll=on_poll, stall_minutes=stall_minutes)


def run_command(
    command: Sequence[str],
    out: Path,
    *,
    on_poll: Callable[[], None] | None = None,
    stall_minutes: float | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Run any command as `run_child` does; call it from the main thread (cancel needs that)."""
    with gpu_slot() as held:
        _run_and_watch(command, out, held, on_poll, stall_minutes, grace_s)


def _run_and_watch(
    command: Sequence[str],
    out: Path,
    held: Sequence[int],
    on_poll: Callable[[], None] | None,
    stall_minutes: float | None,
    grace_s: float,
) -> None:
    log = out / "logs" / "child.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log_start = log.stat().st_size if log.exists() else 0
    watch = _Progress(out / ".resume" / "progress.json")
    process = _launch(command, log, grace_s, held)
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            watch.forward()
            if on_poll:
                on_poll()
            if stall_minutes is not None and watch.idle_s() > stall_minutes * 60:
                raise ChildFailed(
                    f"no progress for {stall_minutes:g} minutes, so it was ended"
                    f"{_log_tail(log, log_start)}"
                )
    except BaseException:
        _end(process)
        raise
    watch.forward()
    if on_poll:
        on_poll()
    if process.returncode:
        said = f"{_how_it_ended(process.returncode)}{_log_tail(log, log_start)}"
        raise ChildFailed(said, process.returncode)


def _launch(
    command: Sequence[str], log: Path, grace_s: float, held: Sequence[int]
) -> "subprocess.Popen[bytes]":
    scratch = log.parent.parent / ".resume"
    scratch.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file, (scratch / "child.lock").open("w") as lock:
        # The supervisor of a killed run may take some seconds to end its child: two at once would
        # write the same files. Its open lock file goes when it goes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.Popen(
            [*supervised(grace_s), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock.fileno(), *held],
            env=environment(os.environ),
        )


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process that imports this code wherever it starts."""
    paths = [str(ROOT), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the tree, whatever interrupts the waiting: a second TERM makes the supervisor hurry."""
    while process.poll() is None:
        try:
            process.terminate()
            process.wait(SUPERVISOR_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        except BaseException as interrupt:
            print(f"{interrupt!r}: not waiting for a clean end", file=sys.stderr)


def _how_it_ended(code: int) -> str:
    if code > 128:
        memory = " (SIGKILL: often the machine ran out of memory)" if code == 137 else ""
        return f"the child was ended by signal {code - 128}{memory}"
    if code < 0:
        return f"the supervisor was ended by signal {-code}"
    return f"the child failed with exit code {code}"


def _log_tail(log: Path, start: int) -> str:
    """Where the log is, and the last lines that this attempt wrote."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 65_536))
        lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    return "\n".join([f"; the log is {log}, its last lines:", *lines]) if lines else f"; see {log}"


class _Progress:
    """Passes changes of progress.json on and knows how long there was none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()
        self._changed_at = time.monotonic()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_ino

    def forward(self) -> None:
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        try:
            now = json.loads(self._path.read_text(encoding="utf-8"))
            done, total, note = float(now["done"]), float(now["total"]), str(now.get("note", ""))
        except (ValueError, KeyError, FileNotFoundError):
            return  # half written: the next poll sees it whole
        self._seen, self._changed_at = stamp, time.monotonic()
        report(done, total, note)

    def idle_s(self) -> float:
        return time.monotonic() - self._changed_at
