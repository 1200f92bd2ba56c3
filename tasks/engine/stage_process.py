"""Runs the work of a stage in a process of its own: it can be killed whatever it does, and says
where it was.

The process is forked from Python's own fork server, which has imported the stages once. Up a pipe
come progress, log records and questions, and at the end the result or the error. It ends when the
run's process does; it gets SIGTERM when the run ends early, which is an `Interrupted` at the next
line of Python, and SIGKILL when that was not enough.
"""

import faulthandler
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from logging.handlers import QueueHandler
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil

from ...eval.progress import Listener, listening
from .scheduler import Interrupted, check_interrupt
from .supervise import descendants

POLL_S = 0.2
GRACE_S = 7.0
"""Between SIGTERM and SIGKILL; within it a child of the stage gets SIGKILL (child.py)."""
REPORT_S = 0.1
STACK_POLLS = 10
TAIL_LINES = 20
INTERRUPTED = 128 + signal.SIGTERM
UNKNOWN_EXIT = 255
"""Of a process whose fork server has ended: it may still be there."""
STOPPED_S = 60.0
"""Between two looks at a process: then this one was stopped meanwhile, and the stage with it."""
RUN_JOB = ("-m", "klear.training.launch.run_job")
LIBRARIES = ("pyarrow.compute", "pyarrow.parquet", "orjson", "pydantic_settings")
_start = threading.Lock()


class StageDied(RuntimeError):
    """The process of a stage ended without a word."""


class Stalled(RuntimeError):
    """A stage made no progress for too long; the message ends with its log or where it waited."""


def run_process(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    stage: str,
    stall_minutes: float,
    listen: Listener,
    log: Path,
    answer: Callable[..., Any],
    preload: Collection[str] = (),
) -> Any:
    """`function(ask, **arguments)`, computed in a process of its own; `ask` calls `answer` in this
    one.

    Raises what the function raises, with its traceback as a note; Interrupted; StageDied; Stalled,
    with the end of `log` where the work of the stage has one.
    """
    context = fork_server([*LIBRARIES, *sorted(preload)])
    levels = {name: logging.getLogger(name).getEffectiveLevel() for name in ("", "klear")}
    call = pickle.dumps((function, arguments))  # unpickled in the environment of this moment
    ours, theirs = context.Pipe()
    with ours, NamedTemporaryFile(prefix="klear-stack-") as stack:
        setting = dict(os.environ), levels, stack.name
        process = context.Process(target=_serve, args=(theirs, call, *setting))
        with main_hidden(b"__main__" not in call):  # unless the stage itself stands there
            process.start()
        theirs.close()
        last, moved, looked = "nothing", time.monotonic(), time.perf_counter()
        try:
            for kind, value in _messages(ours, process):
                if (pause := time.perf_counter() - looked) > STOPPED_S:
                    moved += pause
                looked = time.perf_counter()
                if kind == "result":
                    return value
                if kind == "error":
                    raise value
                if kind == "log":
                    logging.getLogger(value.name).handle(value)
                elif kind == "report":
                    last = f"{value[0]:g} of {value[1]:g} {value[2]}".rstrip()
                    moved = time.monotonic()
                    listen(*value)
                elif kind == "question":
                    ours.send(answer(*value))
                check_interrupt()
                if time.monotonic() > moved + stall_minutes * 60:
                    place = _stack_of(process, Path(stack.name))
                    _end(process)
                    raise Stalled(
                        f"{stage} made no progress for {stall_minutes:g} minutes (last: {last}), "
                        "so it was ended. A slow stage needs a larger stall_minutes"
                        f"{log_tail(log) if log.exists() else place}"
                    )
        finally:
            _end(process)
        check_interrupt()  # what ended the process may have ended the run
        if process.exitcode == INTERRUPTED:
            raise Interrupted
        why = " (SIGKILL: often the machine ran out of memory)" * (process.exitcode == -9)
        raise StageDied(f"{stage}'s process ended with exit code {process.exitcode}{why}")


def _messages(pipe: Connection, process: ForkServerProcess) -> Iterator[tuple[str, Any]]:
    """What the process says, and ("", None) now and then, until it has ended."""
    while True:
        if pipe in wait([pipe, process.sentinel], POLL_S):
            try:
                yield pipe.recv()
            except (EOFError, OSError):
                return
        elif process.is_alive():
            yield "", None
        else:
            return


def _end(process: ForkServerProcess) -> None:
    """End the process, if it has not ended: SIGTERM, then SIGKILL."""
    process.join(POLL_S)  # most have said their result and go
    if process.is_alive():
        process.terminate()
        process.join(GRACE_S)
    if process.is_alive():
        process.kill()
    process.join()
    if process.exitcode == UNKNOWN_EXIT:
        with suppress(psutil.NoSuchProcess):
            _, left = psutil.wait_procs([psutil.Process(process.pid)], GRACE_S)
            for orphan in left:
                orphan.kill()


def _stack_of(process: ForkServerProcess, stack: Path) -> str:
    """Where the process is; the jobs below it write that into their log."""
    jobs = [p.pid for p in descendants(process.pid or 0) if _runs_a_job(p)]
    for pid in (process.pid or 0, *jobs):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)  # faulthandler's
    for _ in range(STACK_POLLS):
        if stack.stat().st_size:
            break
        process.join(POLL_S)
    lines = stack.read_text().splitlines()[1:TAIL_LINES]
    return "\n".join(["; it was at, the last call first:", *lines])


def _runs_a_job(process: psutil.Process) -> bool:
    """One that dumps its stack at SIGUSR2; others would end of it."""
    with suppress(psutil.Error):
        return RUN_JOB in pairwise(process.cmdline()[:5])  # its supervisor has that behind a `--`
    return False


def log_tail(log: Path, start: int = 0) -> str:
    """The end of an error message: where the log is, and its last lines after byte `start`."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 65_536))
        lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    return "\n".join([f"; the log is {log}, its last lines:", *lines]) if lines else f"; see {log}"


def fork_server(preload: Sequence[str]) -> ForkServerContext:
    """Where processes are forked from; the first call in a process says what it imports."""
    # or what Python starts for us would import a `numba.py` of the current folder
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    context = get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    return context


@contextmanager
def main_hidden(hidden: bool) -> Iterator[None]:
    """multiprocessing runs the main module of a process, be it all of Prefect, again in those that
    it starts: not while it is hidden."""
    with _start:
        main = sys.modules["__main__"]
        if hidden:
            sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def begin(environment: Mapping[str, str]) -> None:
    """The start of a forked process: the environment of the one that wants it, and its end."""
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C: the run's process says what follows

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _serve(
    pipe: Connection, call: bytes, environment: dict[str, str], levels: dict[str, int], stack: str
) -> None:
    """In the process: run the call, and say how it goes."""
    begin(environment)
    lock = threading.Lock()
    last_report, last_note = 0.0, ""

    def send(kind: str, value: object) -> None:
        with lock:
            pipe.send((kind, value))

    def ask(*question: object) -> object:
        with lock:
            pipe.send(("question", question))
            return pipe.recv()

    def report(done: float, total: float, note: str) -> None:
        nonlocal last_report, last_note
        now = time.monotonic()
        if now - last_report >= REPORT_S or done == total or note != last_note:
            last_report, last_note = now, note
            send("report", (done, total, note))

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # once: cleaning up is not interrupted
        raise Interrupted

    signal.signal(signal.SIGTERM, interrupt)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    # Prefect, where a stage imports it, replaces handlers without a formatter.
    records: Any = SimpleNamespace(put_nowait=partial(send, "log"))
    handler = QueueHandler(records)
    handler.setFormatter(logging.Formatter())
    logging.getLogger().addHandler(handler)
    faulthandler.register(signal.SIGUSR2, os.open(stack, os.O_WRONLY), all_threads=False)
    try:
        function, arguments = pickle.loads(call)
        with listening(report):
            result = function(ask, **arguments)
    except Interrupted:
        sys.exit(INTERRUPTED)
    except BaseException as error:
        send("error", portable(error))
    else:
        send("result", result)


def portable(error: BaseException) -> BaseException:
    """The error as it can travel, with its traceback as a note."""
    text = "".join(traceback.format_exception(error))
    try:
        same = str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:
        same = False
    if not same:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in the process of the stage:\n{text.rstrip()}")
    return error
