"""The Ray cluster that `KLEAR_RAY_ADDRESS` names: joining it, its code, and parts on its nodes.
Work is plain Ray tasks of one CPU each, which Ray does again where a node is lost."""

import hashlib
import logging
import os
import platform
import re
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..configs.files import PACKAGE
from .progress import report
from .sandbox import MachineUnfit

_CODE = (
    *(f"{folder}/**/*.py" for folder in ("configs", "eval", "tasks", "training")),
    *("configs/catalogue/*.toml", "configs/accelerate/*.yaml", "eval/benchmarks/*.jsonl"),
    *("eval/sandbox/*.txt", "eval/math_answers/notation/*.toml", "eval/rows/*.toml"),
    "requirements-[cg]pu.lock",
)
"""The code and what it reads beside itself. Profiles are read by the machine that asks alone."""
_PINNED = re.compile(r"^([\w.-]+)==", re.MULTILINE)

BUSY = "waiting for a free CPU of the Ray cluster"
POLL_S = 2.0
PARTIAL = ".partial"  # ends the names of folders of parts that are under way
_ATTEMPTS = 4
_JOINING = threading.Lock()


def join(address: str) -> Any:
    """The module `ray`, connected to `address` ("host:port", or "auto"). Raises RuntimeError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    with _JOINING:  # stages begin beside each other
        if not ray.is_initialized():
            before = signal.getsignal(signal.SIGTERM)
            quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init(address=address, namespace="klear", **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise RuntimeError(
                    f"no Ray cluster at KLEAR_RAY_ADDRESS={address} ({error}): start a node here "
                    "with `ray start --address=HOST:PORT`, or unset the variable to work locally"
                ) from error
            finally:  # Ray takes SIGTERM over; a run ends by the handler it had
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, before)
    return ray


class LostWork(RuntimeError):
    """A task was lost with its node or worker as often as it may be tried."""


def answer_of(ray: Any, call: Any, pending: set[Any], idle: Callable[[], bool]) -> Any:
    """What a task returns, or raises; then it is no longer `pending`: cancelled as it completes, it
    aborts us. Reports `BUSY` while no CPU is free and nothing of ours runs (`idle`): others may
    hold all CPUs for days, and whoever waits for one has not stalled."""
    while not ray.wait([call], timeout=POLL_S)[0]:
        free = 1.0
        with suppress(Exception):  # a cluster that cannot say is no reason
            free = ray.available_resources().get("CPU", 0)
        if free < 1 and idle():
            report(0, 0, BUSY)
    pending.discard(call)
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise LostWork(type(error).__name__) from error


@lru_cache
def code_digest() -> str:
    """Of all that decides the bytes of a result: our sources and their data, Python, packages."""
    digest = hashlib.sha256(platform.python_version().encode())
    files = sorted(file for pattern in _CODE for file in PACKAGE.glob(pattern))
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    locks = [set(_PINNED.findall(file.read_text())) for file in files if file.suffix == ".lock"]
    for package in sorted(set.intersection(*locks)):
        with suppress(PackageNotFoundError):  # without "+cpu": a node with GPUs has another build
            digest.update(f"{package} {version(package).partition('+')[0]}\n".encode())
    return digest.hexdigest()


def same_code(code: str, path: Path | None = None) -> None:
    """On a node: raise MachineUnfit unless it runs the `code` of who asks, and sees its `path`."""
    if code_digest() != code:
        fix = "install the same commit and the same lock file on every node"
        wrong = "has other code or packages than the machine that asks"
        raise MachineUnfit(f"node {platform.node()} {wrong}: {fix}")
    if path and not path.exists():
        raise MachineUnfit(
            f"node {platform.node()} does not see {path}: the nodes of a Ray cluster read and "
            "write the store, so KLEAR_HOME (or KLEAR_STORE) must lie on a file system that they "
            "share, at the same path; or unset KLEAR_RAY_ADDRESS to work on this machine"
        )


def parts_over_ray(
    address: str, scratch: Path, parts: Sequence[Any], compute: Callable[[int, Any], Path]
) -> Generator[Path, None, None]:
    """What `compute` makes of each part and its number, in order: a folder of `scratch`, which all
    nodes see. Raises what it raises, and RuntimeError when a part is lost too often."""
    ray = join(address)
    task = ray.remote(_on_node).options(num_cpus=1, max_retries=_ATTEMPTS - 1)
    calls = [task.remote(code_digest(), scratch, compute, *part) for part in enumerate(parts)]
    pending = set(calls)
    try:
        for number, call in enumerate(calls):
            try:
                folder = answer_of(ray, call, pending, lambda: not any(scratch.glob(f"*{PARTIAL}")))
            except LostWork as error:
                raise RuntimeError(
                    f"part {number:05d} was lost {_ATTEMPTS} times with its node or worker, "
                    "perhaps out of memory: smaller parts need less; finished parts are kept"
                ) from error
            yield folder
    finally:
        for call in pending:
            ray.cancel(call, force=True)


def _on_node(code: str, scratch: Path, compute: Callable[..., Path], *part: Any) -> Path:
    same_code(code, scratch)
    return compute(*part)
