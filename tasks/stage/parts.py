"""Work in parts: each is computed once, whatever is killed in between.

A finished part is a folder below the stage's scratch, renamed into place when all of it is
written; the same stage started again uses it. What a stage publishes is made from its parts in
order, so that neither their size nor who computed them shows in the result: this process, worker
processes, or the nodes of a Ray cluster.
"""

import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from configs.machine import load_machine
from tasks.stage.progress import report
from tasks.stage.workers import end, mapped, worker_pool

P = TypeVar("P")
Compute = Callable[[P, Path], None]
"""(part, empty folder to fill). With more than one worker it travels to them by pickle."""


def computed_parts(
    scratch: Path, parts: Sequence[P], compute: Compute[P], workers: int = 1
) -> Generator[Path, None, None]:
    """The folder of each part in order, computed now unless an earlier run finished it.

    With `KLEAR_RAY_ADDRESS` set, several parts go to that cluster: one on each of its CPUs, or
    `workers` at once if there are to be more than one. A single part is computed here.

    Name `scratch` after everything that decides what a part is (its number of rows, say).
    Raises what `compute` raises, and RuntimeError when a worker dies (on a cluster: repeatedly).
    An error ends what is still computed, whatever it does; so does closing the generator.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    run, address = partial(_computed, scratch, compute), load_machine().ray_address
    if len(parts) > 1 and address:
        from eval.ray_cluster import parts_over_ray

        at_once = workers if workers > 1 else 0
        with closing(parts_over_ray(address, scratch, parts, compute, at_once)) as folders:
            yield from _reported(folders, len(parts))
    elif len(parts) > 1 and workers > 1:
        yield from _on_workers(run, parts, min(workers, len(parts)))
    else:
        yield from _reported(map(run, range(len(parts)), parts), len(parts))


def _on_workers(
    run: Callable[[int, P], Path], parts: Sequence[P], workers: int
) -> Generator[Path, None, None]:
    pool = worker_pool(workers)
    try:
        yield from _reported(mapped(pool, run, range(len(parts)), parts), len(parts))
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
