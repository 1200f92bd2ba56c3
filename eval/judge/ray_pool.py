"""Judge workers on a Ray cluster: every answer is a plain Ray task of one CPU.

A Ray worker holds what the local judge starts, one worker of a kind with a sandbox of its own,
until nothing has asked for it for a while. Ray does work that is lost with a node again elsewhere;
it is unscored after some losses: the program may be what kills.
"""

import hashlib
import pickle
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from eval.judge.workers import Kind, NoVerdict, WorkerPool
from eval.ray_cluster import POLL_S, code_digest, cores, join, same_code, tell_of_waiting

ATTEMPTS = 3
LARGE_SUITE = 128 << 10
"""Bytes from which on a test suite is put into Ray's object store, once for all its answers."""
SUITES_KEPT = 64
IDLE_S = 300.0

_pools: dict[Kind, WorkerPool] = {}
_busy = threading.Lock()
_closing: threading.Timer | None = None


def judged(code: str, kind: Kind, deadline_s: float, payload: bytes, suite: Any) -> Any:
    """On a node: `run(*pickle.loads(payload))`. A `suite` apart is the first of the arguments."""
    global _closing
    same_code(code)
    if suite is not None:
        payload = pickle.dumps((suite, *pickle.loads(payload)))
    with _busy:
        if _closing is not None:
            _closing.cancel()
        pool = _pools.setdefault(kind, WorkerPool(kind, 1))
        try:
            return pool.submit(deadline_s, payload).result()
        finally:
            _closing = threading.Timer(IDLE_S, _close)
            _closing.daemon = True
            _closing.start()


def _close() -> None:
    with _busy:
        while _pools:
            _pools.popitem()[1].close()


class RayPool:
    """Workers of one kind on all nodes. Thread-safe."""

    def __init__(self, kind: Kind, address: str, workers: int) -> None:
        self.kind = kind
        self.ray = join(address)
        self.workers = workers or cores(self.ray)
        self.suites: dict[bytes, Any] = {}
        """Digest of a large suite → its reference; tasks under way hold their own."""
        self.last_answer = 0.0
        self._task = self.ray.remote(judged).options(num_cpus=1, max_retries=ATTEMPTS - 1)
        self._lock = threading.Lock()
        self._open: set[Any] = set()

    def submit(self, deadline_s: float, payload: bytes) -> "Future[Any]":
        """As of `WorkerPool`; MachineUnfit where a node turns out to run other code."""
        answer = _Answer(self)

        def done(ended: "Future[Any]") -> None:
            self._open.discard(call)
            self.last_answer = time.monotonic()
            if (error := ended.exception()) is None:
                answer.set_result(ended.result())
            elif (cause := getattr(error, "cause", None)) is not None:
                answer.set_exception(cause)  # what `judged` raised there
            else:
                lost = f"lost with its worker {ATTEMPTS} times: {type(error).__name__}"
                answer.set_exception(NoVerdict(lost))

        with self._lock:
            given = self._suite_apart(payload) if len(payload) > LARGE_SUITE else (payload, None)
            call = self._task.remote(code_digest(), self.kind, deadline_s, *given)
            self._open.add(call)
        call.future().add_done_callback(done)
        return answer

    def _suite_apart(self, payload: bytes) -> tuple[bytes, Any]:
        """The payload without its suite, and the reference to that."""
        suite, *others = pickle.loads(payload)
        key = hashlib.blake2b(pickle.dumps(suite), digest_size=16).digest()
        self.suites[key] = self.suites.pop(key, None) or self.ray.put(suite)
        if len(self.suites) > SUITES_KEPT:
            del self.suites[next(iter(self.suites))]
        return pickle.dumps(tuple(others)), self.suites[key]

    def close(self) -> None:
        """End what is under way; the workers of the nodes end when they have been idle."""
        for call in tuple(self._open):
            self.ray.cancel(call, force=True)
        self.suites.clear()


class _Answer(Future[Any]):
    """Looks every few seconds, in the thread that waits for it, whether it waits with reason."""

    def __init__(self, pool: RayPool) -> None:
        super().__init__()
        self._pool = pool

    def result(self, timeout: float | None = None) -> Any:
        while timeout is None and not wait([self], POLL_S).done:
            if time.monotonic() - self._pool.last_answer > POLL_S:
                tell_of_waiting(self._pool.ray)
        return super().result(timeout)
