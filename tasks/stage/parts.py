"""Work in parts: each is computed once, whatever is killed in between.

A finished part is a folder below the stage's scratch, renamed into place when all of it is
written; the same stage started again uses it. Neither the size of parts nor who computes them shows
in a result: this process, its workers, or the nodes of a Ray cluster. Workers are forked from
Python's own fork server, which has imported numba and Arrow, a second's work, once.
"""

import os
import select
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from functools import partial
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import TypeVar

from configs.machine import load_machine
from tasks.stage.progress import report

GRACE_S = 2.0  # for a worker to go after TERM
PRELOADED = (
    *("numba", "numba.np.arraymath", "scipy.linalg"),
    *("pyarrow.compute", "pyarrow.parquet"),
    *("orjson", "pydantic_settings"),
)
"""What the fork server imports: installed packages alone, for it is not told our `sys.path`."""
_ONE_AT_A_TIME = threading.Lock()
P = TypeVar("P")
Compute = Callable[[P, Path], None]
"""(part, empty folder to fill). With more than one worker it travels to them by pickle."""


def computed_parts(
    scratch: Path, parts: Sequence[P], compute: Compute[P], workers: int = 1
) -> Generator[Path, None, None]:
    """The folder of each part in order, computed now unless an earlier run finished it.

    With `KLEAR_RAY_ADDRESS` set, several parts go to that cluster: one on each of its CPUs, or
    `workers` at once if there are to be more than one. Name `scratch` after everything that decides
    what a part is (its number of rows, say). Raises what `compute` raises, and RuntimeError when a
    worker dies (on a cluster: repeatedly). An error ends what is still computed, whatever it does;
    so does closing the generator.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    run, address = partial(_computed, scratch, compute), load_machine().ray_address
    if len(parts) > 1 and address:
        from eval.ray_cluster import parts_over_ray

        at_once = workers if workers > 1 else 0
        with closing(parts_over_ray(address, scratch, parts, compute, at_once)) as folders:
            yield from _reported(folders, len(parts))
        return
    if (workers := min(workers, len(parts))) < 2:
        yield from _reported(map(run, range(len(parts)), parts), len(parts))
        return
    pool = worker_pool(workers)
    try:
        try:
            folders = pool.map(run, range(len(parts)), parts)
        except (EOFError, ConnectionError) as error:
            raise BrokenProcessPool("what starts the workers has ended") from error
        yield from _reported(folders, len(parts))
    except BaseException as error:
        end(pool)
        if isinstance(error, BrokenProcessPool):
            raise RuntimeError(
                "a worker died, perhaps out of memory: fewer workers or smaller parts need less; "
                "finished parts are kept"
            ) from error
        raise
    pool.shutdown()


def _computed(scratch: Path, compute: Compute[P], number: int, part: P) -> Path:
    folder = scratch / f"{number:05d}"
    if not folder.exists():
        work = folder.with_suffix(".partial")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        compute(part, work)
        os.rename(work, folder)
    return folder


def _reported(folders: Iterator[Path], total: int) -> Iterator[Path]:
    for done, folder in enumerate(folders, 1):
        yield folder
        report(done, total, "parts")


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes end when this one does, and see the environment of this moment."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with _ONE_AT_A_TIME:
        before = os.environ.get("PYTHONSAFEPATH", "")
        os.environ["PYTHONSAFEPATH"] = "1"  # or it would import a `numba.py` of the current folder
        try:
            forkserver.ensure_running()
        except OSError:  # the folder of temporary files is too long a name for a socket's
            context = get_context("spawn")
        finally:
            os.environ["PYTHONSAFEPATH"] = before  # to Python, set to nothing is not set
    start = (os.getpid(), dict(os.environ))
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=start)


def end(pool: ProcessPoolExecutor, grace_s: float = GRACE_S) -> None:
    """End the workers whatever they do: one that hangs would never let `shutdown` return."""
    workers = list((pool._processes or {}).values())  # Python 3.14 has `kill_workers` for this
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + grace_s
    try:
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
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
        with suppress(ProcessLookupError):
            select.select([os.pidfd_open(parent)], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
