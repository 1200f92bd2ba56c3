"""The judge's end of its workers: send a task, get a future.

The workers are processes of this machine, or with `KLEAR_RAY_ADDRESS` actors on a Ray cluster.
"""

import itertools
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Literal, Protocol

from configs.machine import load_machine

_CLOSE_S = 5.0
Kind = Literal["math", "code"]


class PoolDied(RuntimeError):
    """The pool's process is gone, and the tasks in it are lost."""


class NoVerdict(RuntimeError):
    """The work was not finished: a deadline passed twice, or workers died. Unscored."""


class Pool(Protocol):
    """Workers of one kind."""

    @property
    def workers(self) -> int:
        """How many there are, or will be."""
        ...

    def submit(self, deadline_s: float, payload: bytes) -> "Future[Any]": ...

    def close(self) -> None: ...


def open_pools(workers: int) -> tuple[Pool, Pool]:
    """Those for math and for code; `workers` 0: one per core, of this machine or of the cluster."""
    address = load_machine().ray_address
    if address:
        from eval.ray_judge import RayWorkers

        return RayWorkers(address, workers).pools()
    return WorkerPool("math", workers), WorkerPool("code", workers)


class WorkerPool:
    """Workers of one kind, started at the first task. Thread-safe."""

    def __init__(self, kind: Kind, workers: int) -> None:
        self.kind = kind
        self.workers = workers or len(os.sched_getaffinity(0))
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def submit(self, deadline_s: float, payload: bytes) -> "Future[Any]":
        """The future of `run(*pickle.loads(payload))`; killed after `deadline_s`, retried once."""
        future: Future[Any] = Future()
        with self._lock:
            if (
                self._connection is None
                or self._process is None
                or self._process.poll() is not None
            ):
                self._start()
            assert self._connection is not None
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                self._connection.send_bytes(pickle.dumps((number, payload, deadline_s)))
            except OSError as error:
                self._connection = None
                self._waiting.pop(number)
                future.set_exception(PoolDied(f"the {self.kind} workers are gone: {error}"))
        return future

    def _start(self) -> None:
        if self._process is not None:  # its connection has ended, and it may be about to
            self._process.kill()
            self._process.wait()
        ours, theirs = Pipe()
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "eval.judge_workers", self.kind, str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, str(self.workers), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            env=os.environ
            | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,  # Ctrl-C is for the judge's process, which then ends this one
        )
        theirs.close()
        self._connection = ours
        # Of this process alone: the reader of a dead one must not lose the tasks of its successor.
        self._waiting = {}
        reader = threading.Thread(target=self._read, args=[ours, self._waiting], daemon=True)
        reader.start()

    def _read(self, connection: Connection, waiting: dict[int, "Future[Any]"]) -> None:
        try:
            while True:
                number, is_result, value = pickle.loads(connection.recv_bytes())
                future = waiting.pop(number)
                if is_result:
                    future.set_result(value)
                else:
                    future.set_exception(value)
        except Exception as error:  # EOFError: the pool has ended
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                lost = list(waiting.values())
                waiting.clear()
            reason = f"the {self.kind} workers ended: {error!r}"
            for future in lost:
                future.set_exception(PoolDied(reason))

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        with self._lock:
            if self._process is not None:
                self._process.stdin.close()  # type: ignore[union-attr]
                try:
                    self._process.wait(_CLOSE_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._connection = self._process = None
