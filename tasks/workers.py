"""Worker processes that start and end in a moment, and never outlive who wants their results.

A process that starts by itself imports numba and Arrow for a second, and takes half a second to
end. A worker here is forked from Python's own fork server, which has imported them once. The
server starts with the first pool of a process and ends with that process.
"""

import os
import select
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context

GRACE_S = 2.0  # for a worker to go after TERM
PRELOADED = (
    *("numba", "numba.np.arraymath", "scipy.linalg"),
    *("pyarrow.compute", "pyarrow.parquet"),
    *("orjson", "pydantic_settings"),
)
"""What the server imports. No module of ours: it looks for modules before it is told where this
process does, and the folder it was started in may well have a `tasks` of its own."""


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes see the environment of this moment and end when this process does."""
    ways = get_context("forkserver")
    ways.set_forkserver_preload(list(PRELOADED))
    start = (os.getpid(), dict(os.environ))
    return ProcessPoolExecutor(workers, mp_context=ways, initializer=_begin, initargs=start)


def end(pool: ProcessPoolExecutor) -> None:
    """End the workers whatever they do: one that hangs would never let `shutdown` return."""
    workers = list((pool._processes or {}).values())  # Python 3.14 has `kill_workers` for this
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + GRACE_S
    living = {worker.sentinel for worker in workers}
    try:
        while living and time.monotonic() < deadline:
            living -= set(connection.wait(living, deadline - time.monotonic()))
    finally:  # also when somebody cannot wait
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def _begin(parent: int, environment: Mapping[str, str]) -> None:
    """A worker's start. What it inherits is the environment that the server was started in."""
    os.environ.clear()
    os.environ.update(environment)

    def watch() -> None:
        try:
            ended = os.pidfd_open(parent)
        except ProcessLookupError:
            os._exit(1)
        select.select([ended], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
