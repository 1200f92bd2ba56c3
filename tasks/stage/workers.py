"""Worker processes that start and end in a moment, and never outlive who wants their results.

A process that starts by itself imports numba and Arrow for a second, and takes half a second to
end. A worker here is forked from Python's own fork server, which has imported them once. The
server starts with the first pool of a process and ends with that process.
"""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver, get_context
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

GRACE_S = 2.0  # for a worker to go after TERM
PRELOADED = (
    *("numba", "numba.np.arraymath", "scipy.linalg"),
    *("pyarrow.compute", "pyarrow.parquet"),
    *("orjson", "pydantic_settings"),
)
"""What the server imports: installed packages alone, for it is not told our `sys.path`."""
_ONE_AT_A_TIME = threading.Lock()
T = TypeVar("T")


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes end when this one does.

    They see the environment of this moment. What the preloaded libraries read of it when they were
    imported (`OMP_NUM_THREADS`, say) is of the moment when the server began.
    """
    start = (os.getpid(), dict(os.environ))
    return ProcessPoolExecutor(workers, mp_context=_ways(), initializer=_begin, initargs=start)


def _ways() -> BaseContext:
    """The fork server, started now unless it runs; without it every worker starts by itself."""
    ways = get_context("forkserver")
    ways.set_forkserver_preload(list(PRELOADED))
    with _ONE_AT_A_TIME:
        before = os.environ.get("PYTHONSAFEPATH", "")
        os.environ["PYTHONSAFEPATH"] = "1"  # or it would import a `numba.py` of the current folder
        try:
            forkserver.ensure_running()
        except OSError:  # the folder of temporary files is too long a name for a socket's
            return get_context("spawn")
        finally:
            os.environ["PYTHONSAFEPATH"] = before  # to Python, set to nothing is not set
    return ways


def mapped(pool: ProcessPoolExecutor, work: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
    """`pool.map`. Raises BrokenProcessPool also where the server ends before its workers begin."""
    try:
        return pool.map(work, *items)
    except (EOFError, ConnectionError) as error:
        raise BrokenProcessPool("what starts the workers has ended") from error


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
