"""Workers of one kind (`math` or `code`): processes of this machine, run by Pebble.

The judge may live in a process with threads, gigabytes of memory and a GPU, which must not be
forked. So workers are forks of Python's fork server, a small process that has imported what they
need. A worker that passes its deadline is killed and replaced, and its task is tried once more.
Whoever is killed, all below it end: workers get SIGKILL when the judge or the fork server ends, and
a sandbox ends with its worker.

A worker, its sandbox and the program of the moment take turns, thousands of times a second. So
where there is a worker for every core, each is pinned to one of its own with all below it: without
that a sixth of the time went into waking processes on other cores.
"""

import contextlib
import fcntl
import importlib
import multiprocessing
import os
import pickle
import resource
import select
import signal
import tempfile
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as DeadlinePassed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal

from pebble import ProcessExpired, ProcessPool

from eval.sandbox.system_calls import die_with_parent

Kind = Literal["math", "code"]
TASKS = {"math": "eval.math_answers.task", "code": "eval.programs.task"}
_MATH_BYTES = 4 << 30
_ATTEMPTS = 2
_LOST = (DeadlinePassed, ProcessExpired, BrokenProcessPool)


class NoVerdict(RuntimeError):
    """The work was not finished: a deadline passed twice, or workers died. Unscored."""


class WorkerPool:
    """Workers of one kind, started at the first task. Thread-safe."""

    def __init__(self, kind: Kind, workers: int) -> None:
        self.kind = kind
        self.workers = workers or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False
        self._open: set[Future[Any]] = set()

    def submit(self, deadline_s: float, payload: bytes) -> "Future[Any]":
        """The future of `run(*pickle.loads(payload))`; killed after `deadline_s`, retried once."""
        answer: Future[Any] = Future()
        self._open.add(answer)
        answer.add_done_callback(self._open.discard)
        self._attempt(answer, deadline_s, payload, 1)
        return answer

    def _attempt(
        self, answer: "Future[Any]", deadline_s: float, payload: bytes, number: int
    ) -> None:
        def done(ended: "Future[Any]") -> None:
            error = ended.exception()
            if error is None:
                answer.set_result(ended.result())
            elif not isinstance(error, _LOST):
                answer.set_exception(error)
            elif number < _ATTEMPTS:
                self._attempt(answer, deadline_s, payload, number + 1)
            else:
                late = isinstance(error, DeadlinePassed)
                reason = f"no verdict in {deadline_s:g} s" if late else f"the worker died: {error}"
                answer.set_exception(NoVerdict(f"{reason}, {_ATTEMPTS} times"))

        with self._lock:
            if self._closed:
                answer.set_exception(NoVerdict("the judge was closed"))
                return
            if self._pool is None or not self._pool.active:
                self._pool = self._started(self._pool)
            future = self._pool.schedule(work, args=[self.kind, payload], timeout=deadline_s)
        future.add_done_callback(done)

    def _started(self, broken: ProcessPool | None) -> ProcessPool:
        """A new pool. A pool breaks when its last idle worker or the fork server is killed."""
        if broken is not None:  # in a thread: this may be one of its own, which it waits for
            threading.Thread(target=broken.join, daemon=True).start()
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="klear-judge-", ignore_cleanup_errors=True
            )
            os.chmod(self._folder.name, 0o711)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *TASKS.values()])
        pinned = self.kind == "code" and self.workers >= len(os.sched_getaffinity(0))
        arguments = [self.kind, self._folder.name, pinned]
        return ProcessPool(
            self.workers, initializer=start_worker, initargs=arguments, context=context
        )

    def close(self) -> None:
        """End the workers, whatever they are doing; unfinished work gets NoVerdict."""
        with self._lock:
            self._closed = True
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
        for answer in tuple(self._open):
            answer.set_exception(NoVerdict("the judge was closed"))
        if self._folder is not None:
            self._folder.cleanup()


def start_worker(kind: Kind, folder: str, pinned: bool) -> None:
    """In a new worker: see that it ends with the judge; set its limits and its `folder`."""
    os.setsid()  # a terminal's signals are for the judge
    die_with_parent()  # the fork server
    judge = multiprocessing.parent_process()
    assert judge is not None
    # The kernel kills this process when the judge's end of the pipe closes, whatever runs here.
    fcntl.fcntl(judge.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(judge.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(judge.sentinel, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([judge.sentinel], [], [], 0)[0]:
        os._exit(1)  # it ended before the lines above
    tempfile.tempdir = folder
    if pinned:
        keep_to_a_core(folder)
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


def work(kind: Kind, payload: bytes) -> Any:
    """One task in a worker: `run(*arguments)` of the module for this kind."""
    return importlib.import_module(TASKS[kind]).run(*pickle.loads(payload))
