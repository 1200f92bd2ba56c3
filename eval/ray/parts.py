"""Parts on the nodes of a Ray cluster: one Ray task of one CPU each, for `tasks.stage.parts`.

A node writes its part into the stage's scratch, so all nodes must see that folder at the same path
(a shared file system). A part that is lost with its node is computed again by Ray, from the start,
and gives the same bytes.

Plain tasks: prefect-ray needs Prefect's server, which listens on loopback, from every node, and of
parts of nothing one costs 367 ms against 5.
"""

import os
import platform
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from eval.ray.cluster import BUSY, POLL_S, code_digest, cores, has_no_cpu, join, same_code
from eval.sandbox.errors import MachineUnfit

ATTEMPTS = 4
"""Of a part whose node or worker dies."""


class NotShared(MachineUnfit):
    """A node does not see the folder that the parts belong in."""


def _compute(code: str, call: str, compute: Callable, part: Any, folder: Path) -> None:
    """On a node: compute one part into `folder`, which appears whole or not at all."""
    same_code(code)
    if not (folder.parent / call).exists():
        raise NotShared(
            f"node {platform.node()} does not see {folder.parent}: the nodes of a Ray cluster read "
            "and write the store, so KLEAR_HOME (or KLEAR_STORE) must lie on a file system that "
            "they share, at the same path; or unset KLEAR_RAY_ADDRESS to work on this machine"
        )
    work = folder.with_name(f"{uuid.uuid4().hex}.partial")
    work.mkdir()
    compute(part, work)
    os.rename(work, folder)


def parts_over_ray(
    address: str,
    scratch: Path,
    parts: Sequence[Any],
    compute: Callable[[Any, Path], None],
    at_once: int,
    waiting: Callable[[int, int, str], None],
) -> Generator[Path, None, None]:
    """The folder of each part in order.

    At most `at_once` parts are under way (0: two for each CPU of the cluster, so that none idles).
    Calls `waiting(done, parts, note)` while none runs because others hold every CPU. Raises what
    `compute` raises, and RuntimeError when a part is lost too often.
    """
    ray = join(address)
    scratch = scratch.absolute()
    task = ray.remote(_compute).options(num_cpus=1, max_retries=ATTEMPTS - 1)
    folders = [scratch / f"{number:05d}" for number in range(len(parts))]
    todo = deque(number for number, folder in enumerate(folders) if not folder.exists())
    call = scratch / f"call-{uuid.uuid4().hex}"
    live: dict[Any, int] = {}
    _clear(scratch)
    call.touch()
    try:
        for done, folder in enumerate(folders):
            while not folder.exists():
                while todo and len(live) < (at_once or 2 * cores(ray)):
                    number = todo.popleft()
                    given = (code_digest(), call.name, compute, parts[number], folders[number])
                    live[task.remote(*given)] = number
                ready, _ = ray.wait(list(live), num_returns=1, timeout=POLL_S)
                for finished in ready:
                    _check(ray, finished, live.pop(finished))
                if not ready and not any(scratch.glob("*.partial")) and has_no_cpu(ray):
                    waiting(done, len(parts), BUSY)
            yield folder
    finally:
        for left in live:
            with suppress(Exception):  # it has ended, or its node has
                ray.cancel(left, force=True)
        _clear(scratch)


def _check(ray: Any, finished: Any, number: int) -> None:
    from ray.exceptions import RayError, RayTaskError

    try:
        ray.get(finished)
    except RayTaskError as error:
        raise error.cause from error
    except RayError as error:
        raise RuntimeError(
            f"part {number} was lost {ATTEMPTS} times with its node or worker, perhaps out of "
            "memory: smaller parts need less; finished parts are kept"
        ) from error


def _clear(scratch: Path) -> None:
    for left in (*scratch.glob("*.partial"), *scratch.glob("call-*")):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
