"""Judge workers on a Ray cluster: every answer is a plain Ray task of one CPU.

A Ray worker holds what the local judge starts, one worker of a kind with a sandbox of its own,
until nothing has asked for it for a while. Ray does work that is lost with a node again elsewhere;
it is unscored after some losses: the program may be what kills. Whoever waits for an answer while
others hold every CPU is told so (`eval.ray.cluster.on_cluster_wait`).
"""

import hashlib
import pickle
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, wait
from typing import Any

from eval.judge.workers import Kind, NoVerdict, WorkerPool
from eval.ray.cluster import POLL_S, code_digest, cores, join, same_code, tell_of_waiting

ATTEMPTS = 3
LARGE_SUITE = 128 << 10
"""Bytes from which on a test suite is put into Ray's object store, once for all its answers."""
SUITES_KEPT = 64
IDLE_S = 300.0

_pools: dict[Kind, WorkerPool] = {}
_busy = threading.Lock()
_last_call = 0.0


def judged(code: str, kind: Kind, deadline_s: float, payload: bytes, suite: Any) -> Any:
    """On a node: `run(*pickle.loads(payload))`. A `suite` apart is the first of the arguments."""
    global _last_call
    same_code(code)
    if suite is not None:
        payload = pickle.dumps((suite, *pickle.loads(payload)))
    with _busy:
        if not _pools:
            threading.Thread(target=_close_when_idle, daemon=True).start()
        if kind not in _pools:
            _pools[kind] = WorkerPool(kind, 1)
        try:
            return _pools[kind].submit(deadline_s, payload).result()
        finally:
            _last_call = time.monotonic()


def _close_when_idle() -> None:
    while True:
        time.sleep(IDLE_S / 10)
        with _busy:
            if time.monotonic() - _last_call > IDLE_S:
                while _pools:
                    _pools.popitem()[1].close()
                return


class RayPool:
    """Workers of one kind on all nodes. Thread-safe."""

    def __init__(self, kind: Kind, address: str, workers: int) -> None:
        self.kind = kind
        self._ray = join(address)
        self.workers = workers or cores(self._ray)
        self._task = self._ray.remote(judged).options(num_cpus=1, max_retries=ATTEMPTS - 1)
        self.suites: OrderedDict[bytes, Any] = OrderedDict()
        """Digest of a large suite → its reference; tasks under way hold their own."""
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        self._last_answer = 0.0

    def submit(self, deadline_s: float, payload: bytes) -> "Future[Any]":
        """The future of `run(*pickle.loads(payload))`, as of `WorkerPool`.

        It raises MachineUnfit where a node turns out to run other code.
        """
        answer = _Answer(self)

        def done(ended: "Future[Any]") -> None:
            self._open.discard(call)
            self._last_answer = time.monotonic()
            if (error := ended.exception()) is None:
                answer.set_result(ended.result())
            elif (cause := getattr(error, "cause", None)) is not None:
                answer.set_exception(cause)  # what `judged` raised there
            else:
                lost = f"lost with its worker {ATTEMPTS} times: {type(error).__name__}"
                answer.set_exception(NoVerdict(lost))

        with self._lock:
            payload, suite = self._apart(payload)
            call = self._task.remote(code_digest(), self.kind, deadline_s, payload, suite)
            self._open.add(call)
        call.future().add_done_callback(done)
        return answer

    def _apart(self, payload: bytes) -> tuple[bytes, Any]:
        """The payload without a large suite, and the reference to that; else (payload, None)."""
        if len(payload) < LARGE_SUITE:
            return payload, None
        suite, *others = pickle.loads(payload)
        packed = pickle.dumps(suite)
        if len(packed) < LARGE_SUITE:
            return payload, None
        key = hashlib.blake2b(packed, digest_size=16).digest()
        if key not in self.suites:
            self.suites[key] = self._ray.put(suite)
        self.suites.move_to_end(key)
        if len(self.suites) > SUITES_KEPT:
            self.suites.popitem(last=False)
        return pickle.dumps(tuple(others)), self.suites[key]

    def tell_if_starved(self) -> None:
        """Nothing comes back: perhaps because others hold every CPU."""
        if time.monotonic() - self._last_answer > POLL_S:
            tell_of_waiting(self._ray)

    def close(self) -> None:
        """End what is under way; the workers of the nodes end when they have been idle."""
        for call in tuple(self._open):
            self._ray.cancel(call, force=True)
        self.suites.clear()


class _Answer(Future[Any]):
    """Looks every few seconds, in the thread that waits for it, whether it waits with reason."""

    def __init__(self, pool: RayPool) -> None:
        super().__init__()
        self._pool = pool

    def result(self, timeout: float | None = None) -> Any:
        while timeout is None and not wait([self], POLL_S).done:
            self._pool.tell_if_starved()
        return super().result(timeout)
