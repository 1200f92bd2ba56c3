"""The pool behind the judge: `python -m eval.judge_workers KIND FD PARENT` with Pebble workers.

The judge may live in a process with threads, gigabytes of memory and a GPU, which must not be
forked. So it starts this small process once per kind of work (`math` or `code`), and Pebble runs
the workers here. A worker that passes its deadline is killed and replaced. Whoever is killed, all
below it end: this process watches its parent, workers get SIGKILL when their parent ends, and a
sandbox ends with its worker.

A worker, its sandbox and the program of the moment take turns, thousands of times a second. So
where there is a worker for every core, each keeps to one of its own with all below it: what the
scheduler would spread, and wake on another core, waited a sixth of the time.
"""

import contextlib
import fcntl
import importlib
import multiprocessing
import os
import pickle
import resource
import select
import sys
import tempfile
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as DeadlinePassed
from multiprocessing.connection import Connection
from typing import Any

from pebble import ProcessExpired, ProcessPool

from eval.held_folders import hold, sweep
from eval.judge_pool import NoVerdict
from eval.sandbox_policy import die_with_parent

TASKS = {"math": "eval.math_task", "code": "eval.code_task"}
_MATH_BYTES = 4 << 30
_ATTEMPTS = 2
_STOP_S = 4.0
_PREFIX = "klear-judge-"


def start_worker(kind: str, parent: int, workers: int) -> None:
    """Pebble's initializer."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above
    if kind == "code" and workers >= len(os.sched_getaffinity(0)):  # fewer leave the choice
        keep_to_a_core(os.environ["TMPDIR"])
    if kind == "math":
        resource.setrlimit(resource.RLIMIT_AS, (_MATH_BYTES, _MATH_BYTES))


def keep_to_a_core(folder: str) -> int | None:
    """Run on the first core that no other worker with this `folder` keeps to; None: all are taken.

    The lock on a core's file is freed by the kernel, however a worker ends.
    """
    for core in sorted(os.sched_getaffinity(0)):
        fd = os.open(os.path.join(folder, f"core-{core}"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        with contextlib.suppress(OSError):  # taken away meanwhile: it stays where it may run
            os.sched_setaffinity(0, {core})
        return core
    return None


def work(kind: str, payload: bytes) -> Any:
    """One task in a worker: `run(*arguments)` of the module for this kind."""
    return importlib.import_module(TASKS[kind]).run(*pickle.loads(payload))


class _Server:
    def __init__(self, kind: str, connection: Connection, pool: ProcessPool) -> None:
        self.kind, self.connection, self.pool = kind, connection, pool
        self.sending = threading.Lock()

    def schedule(self, number: int, payload: bytes, deadline_s: float, attempt: int = 1) -> None:
        future = self.pool.schedule(work, args=[self.kind, payload], timeout=deadline_s)

        def done(ended: "Future[Any]") -> None:
            error = ended.exception()
            if isinstance(error, DeadlinePassed | ProcessExpired):
                if attempt < _ATTEMPTS:
                    self.schedule(number, payload, deadline_s, attempt + 1)
                    return
                late = isinstance(error, DeadlinePassed)
                reason = f"no verdict in {deadline_s:g} s" if late else f"the worker died: {error}"
                error = NoVerdict(f"{reason}, {_ATTEMPTS} times")
            self.reply(number, error is None, ended.result() if error is None else error)

        future.add_done_callback(done)

    def reply(self, number: int, is_result: bool, value: Any) -> None:
        try:
            message = pickle.dumps((number, is_result, value))
        except Exception:  # an exception that does not pickle
            message = pickle.dumps((number, False, NoVerdict(repr(value)[:500])))
        with self.sending:
            self.connection.send_bytes(message)


def main(kind: str, fd: int, workers: int, parent: int) -> None:
    connection = Connection(fd)
    watched = os.pidfd_open(parent)
    importlib.import_module(TASKS[kind])  # once, here: the workers are forks of this process
    context = multiprocessing.get_context("fork")
    arguments = [kind, os.getpid(), workers]
    pool = ProcessPool(workers, initializer=start_worker, initargs=arguments, context=context)
    server = _Server(kind, connection, pool)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(watched, select.POLLIN)
    poll.register(sys.stdin, 0)  # the judge closes it to end the pool
    sweep(tempfile.gettempdir(), _PREFIX)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        hold(folder)  # until the last worker ends
        os.environ["TMPDIR"] = folder
        with contextlib.suppress(EOFError, ConnectionError):
            while os.getppid() == parent and {ready for ready, _ in poll.poll()} == {fd}:
                server.schedule(*pickle.loads(connection.recv_bytes()))
        threading.Timer(_STOP_S, os._exit, [0]).start()
        pool.stop()
        pool.join()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
