"""Workers of one domain (`math` or `code`): processes of this machine, by Pebble, or of a cluster.

The judge may live in a process with threads and a GPU, which must not be forked: workers are forks
of Python's fork server. One that passes its deadline is killed and replaced, and its task tried
once more. Workers get SIGKILL when the judge or the fork server ends, sandboxes with their worker.
Where there is a worker for every core, pinning each to its own, with all below it, saves a sixth.

On a Ray cluster every answer is a plain task of one CPU, and a Ray worker holds what the local
judge starts. What is lost with a node is done again; after some losses it is unscored.
"""

import contextlib
import ctypes
import fcntl
import importlib
import multiprocessing
import os
import pickle
import resource
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as DeadlinePassed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pebble import ProcessExpired, ProcessPool

from ..ray_cluster import POLL_S, LostWork, answer_of, code_digest, join, same_code
from ..records import Domain
from ..sandbox import MachineUnfit

TASKS = {"math": "klear.eval.math_answers.worker", "code": "klear.eval.programs.tested_sandbox"}
READY = "ready"  # a file: a worker of the pool has started
_MATH_BYTES = 4 << 30
_CLUSTER_ATTEMPTS, _CLEANUPS = 3, 100
_LOST = (DeadlinePassed, ProcessExpired, BrokenProcessPool)
_PR_SET_PDEATHSIG = 1
_TRIES, _PAUSE_S = 20, 0.05  # of locks on cores


class NoVerdict(RuntimeError):
    """The work was not finished: a deadline passed twice, or workers died. Unscored."""


class WorkerPool:
    """Workers of one domain, started at the first task. Thread-safe."""

    def __init__(self, domain: Domain, workers: int) -> None:
        self.domain = domain
        self.workers = workers or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._folder = tempfile.TemporaryDirectory(None, "klear-judge-", ignore_cleanup_errors=True)
        os.chmod(self._folder.name, 0o711)
        self._closed = False

    def submit(self, deadline_s: float, payload: bytes) -> Callable[[], Any]:
        """What waits for `run(*pickle.loads(payload))`; killed after `deadline_s`, retried once."""
        first = self._schedule(deadline_s, payload)

        def result() -> Any:
            with contextlib.suppress(*_LOST):
                return _result(*first)
            try:
                return _result(*self._schedule(deadline_s, payload))
            except _LOST as error:
                if main := self._script_that_no_worker_can_import(error):
                    guard = 'put `if __name__ == "__main__":` above what it does'
                    fix = guard if os.path.isfile(main) else "put that into a file"
                    raise MachineUnfit(
                        f"no worker of the judge could start: each imports {main}; {fix}"
                    ) from None
                late = isinstance(error, DeadlinePassed)
                reason = f"no verdict in {deadline_s:g} s" if late else f"the worker died: {error}"
                raise NoVerdict(f"{reason}, 2 times") from error

        return result

    def _schedule(self, deadline_s: float, payload: bytes) -> "tuple[Future[Any], ProcessPool]":
        with self._lock:
            if self._closed:
                raise NoVerdict("the judge was closed")
            if self._pool is None or not self._pool.active:
                self._pool = self._started(self._pool)
            pool = self._pool
            future = pool.schedule(work, args=[self.domain, payload], timeout=deadline_s)
        return future, pool

    def _started(self, broken: ProcessPool | None) -> ProcessPool:
        """A new pool. A pool breaks when its last idle worker or the fork server is killed."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # This is a worker that imports the script of its judge, which would begin all anew. The
            # judge says so once; what multiprocessing says here has 70 lines, for each worker.
            raise SystemExit(1)
        if broken is not None:  # in a thread: this may be one of its own, which it waits for
            threading.Thread(target=broken.join, daemon=True).start()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *TASKS.values()])
        pinned = self.domain == "code" and self.workers >= len(os.sched_getaffinity(0))
        arguments = [self.domain, self._folder.name, pinned]
        options = {"initializer": start_worker, "initargs": arguments, "context": context}
        return ProcessPool(self.workers, **options)

    def _script_that_no_worker_can_import(self, error: Exception) -> str:
        """The main script, where the pool broke and none of its workers has ever been ready."""
        ready = f"{self._folder.name}/{READY}"
        if not isinstance(error, BrokenProcessPool) or os.path.exists(ready):
            return ""
        return getattr(sys.modules["__main__"], "__file__", None) or ""

    def close(self) -> None:
        with self._lock:
            self._closed = True
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
        for _ in range(_CLEANUPS):  # a program that is ending may still write
            self._folder.cleanup()
            if not os.path.exists(self._folder.name):
                break
            time.sleep(0.05)


def _result(future: "Future[Any]", pool: ProcessPool) -> Any:
    """Wait for it. A pool that breaks while it takes a task may forget it."""
    while not wait([future], POLL_S).done:
        if not pool.active and not wait([future], POLL_S).done:
            raise BrokenProcessPool("the pool broke")
    return future.result()


def start_worker(domain: Domain, folder: str, pinned: bool) -> None:
    """In a new worker: see that it ends with the judge; set its limits and its `folder`."""
    os.setsid()  # a terminal's signals are for the judge
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # of the fork server
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
    if domain == "math":
        resource.setrlimit(resource.RLIMIT_AS, (_MATH_BYTES, _MATH_BYTES))
    os.close(os.open(os.path.join(folder, READY), os.O_CREAT | os.O_WRONLY, 0o600))


def keep_to_a_core(folder: str) -> None:
    """Run on the first core that no other worker with this `folder` has locked, if there is one:
    the sandbox of a worker that was killed may hold its lock for a moment more."""
    cores = sorted(os.sched_getaffinity(0))
    for core in cores * _TRIES:
        fd = os.open(os.path.join(folder, f"core-{core}"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            time.sleep(_PAUSE_S)
            continue
        with contextlib.suppress(OSError):  # taken away meanwhile: it stays where it may run
            os.sched_setaffinity(0, {core})
        return


def work(domain: Domain, payload: bytes) -> Any:
    return importlib.import_module(TASKS[domain]).run(*pickle.loads(payload))


_on_this_node: dict[Domain, WorkerPool] = {}


def judge_on_node(code: str, domain: Domain, deadline_s: float, payload: bytes) -> Any:
    """On a node of the cluster: what a local worker would answer."""
    same_code(code)
    return _on_this_node.setdefault(domain, WorkerPool(domain, 1)).submit(deadline_s, payload)()


class RayPool:
    """Workers of one domain on all nodes of the cluster at `address`. Thread-safe."""

    def __init__(self, domain: Domain, address: str, workers: int) -> None:
        self.domain = domain
        self.ray = join(address)
        self.workers = workers or max(1, int(self.ray.cluster_resources().get("CPU", 0)))
        self._last_answer = 0.0
        options = {"num_cpus": 1, "max_retries": _CLUSTER_ATTEMPTS - 1}
        self._task = self.ray.remote(judge_on_node).options(**options)
        self._pending: set[Any] = set()

    def submit(self, deadline_s: float, payload: bytes) -> Callable[[], Any]:
        """As of `WorkerPool`; MachineUnfit where a node turns out to run other code."""
        call = self._task.remote(code_digest(), self.domain, deadline_s, payload)
        self._pending.add(call)

        def result() -> Any:
            def idle() -> bool:
                return time.monotonic() - self._last_answer > POLL_S

            try:
                answer = answer_of(self.ray, call, self._pending, idle)
            except LostWork as error:
                lost = f"lost with its worker {_CLUSTER_ATTEMPTS} times: {error}"
                raise NoVerdict(lost) from error
            self._last_answer = time.monotonic()
            return answer

        return result

    def close(self) -> None:
        """End what is under way; the workers of the nodes end with this process."""
        for call in tuple(self._pending):
            self.ray.cancel(call, force=True)
