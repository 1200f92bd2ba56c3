"""Work in parts: each is computed once, whatever is killed in between.

A finished part is a folder below the stage's scratch, renamed into place when all of it is
written; the same stage started again uses it. Neither the size of parts nor who computes them shows
in a result: this process, its workers, or the nodes of a Ray cluster. Workers are forked from
Python's own fork server, which has imported numba and Arrow, a second's work, once.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from ...configs.machine import load_machine
from ...eval.progress import report
from ...eval.ray_cluster import PARTIAL, parts_over_ray
from .stage_process import LIBRARIES, begin, fork_server

PRELOADED = (*LIBRARIES, "numba", "numba.np.arraymath", "scipy.linalg")
"""What the fork server imports."""
P = TypeVar("P")
Compute = Callable[[P, Path], None]
"""(part, empty folder to fill). With more than one worker it travels to them by pickle."""


def computed_parts(
    scratch: Path, parts: Sequence[P], compute: Compute[P], workers: int = 1
) -> Generator[Path, None, None]:
    """The folder of each part in order, computed now unless an earlier run finished it.

    With `KLEAR_RAY_ADDRESS` set, several parts go to that cluster, one on each of its CPUs. Name
    `scratch` after everything that decides what a part is (its number of rows, say). Raises what
    `compute` raises, and RuntimeError when a worker dies (on a cluster: repeatedly). An error ends
    what is still computed, whatever it does; so does closing the generator.
    """
    scratch = scratch.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    for left in scratch.glob(f"*{PARTIAL}"):
        shutil.rmtree(left, ignore_errors=True)
    run, address = partial(_computed, scratch, compute), load_machine().ray_address
    if len(parts) > 1 and address:
        with closing(parts_over_ray(address, scratch, parts, run)) as folders:
            yield from _reported(folders, len(parts))
        return
    if (workers := min(workers, len(parts))) < 2:
        yield from _reported(map(run, range(len(parts)), parts), len(parts))
        return
    pool = worker_pool(workers)
    try:
        begun = [pool.submit(run, number, part) for number, part in enumerate(parts)]
        yield from _reported((future.result() for future in begun), len(parts))
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker died, perhaps out of memory: fewer workers or smaller parts need less; "
            "finished parts are kept"
        ) from error
    finally:
        end(pool)


def _computed(scratch: Path, compute: Compute[P], number: int, part: P) -> Path:
    folder = scratch / f"{number:05d}"
    if not folder.exists():
        with TemporaryDirectory(suffix=PARTIAL, dir=scratch, ignore_cleanup_errors=True) as work:
            compute(part, Path(work))
            os.rename(work, folder)
    return folder


def _reported(folders: Iterator[Path], total: int) -> Iterator[Path]:
    for done, folder in enumerate(folders, 1):
        yield folder
        report(done, total, "parts")


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool whose processes end when this one does, and see the environment of this moment."""
    context = fork_server(PRELOADED)
    start = {"initializer": begin, "initargs": (dict(os.environ),)}
    return ProcessPoolExecutor(workers, mp_context=context, **start)


def end(pool: ProcessPoolExecutor) -> None:
    """Kill the workers: one that hangs keeps `shutdown` waiting. (Python 3.14: `kill_workers`.)"""
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()
