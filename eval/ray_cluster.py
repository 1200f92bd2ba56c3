"""The Ray cluster that `KLEAR_RAY_ADDRESS` names: joining it, and that all of it runs this code.

Only this module and those called `ray_*` import Ray, and only once a cluster is asked for. Ray's
own task retries are off everywhere: what a lost node took along is computed again by whoever asked,
who also knows how often to try.
"""

import hashlib
import logging
import os
import platform
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from eval.sandbox_errors import MachineUnfit

_ROOT = Path(__file__).resolve().parents[1]
_CODE = ("configs", "eval", "tasks", "training")
_BYTES_DEPEND_ON = ("math-verify", "numpy", "pyarrow", "sympy")


class OtherCode(MachineUnfit):
    """A node whose results would not be those of this machine."""


def join(address: str) -> Any:
    """The module `ray`, connected to the cluster at `address` ("host:port", or "auto").

    Raises RuntimeError with the fix when there is no cluster, or Ray is not installed.
    """
    if address.startswith("ray://"):
        raise RuntimeError(
            f"KLEAR_RAY_ADDRESS={address}: files and answers travel through this machine's object "
            "store, so it must be a node: `ray start --address=HOST:PORT --num-cpus=0`, then "
            "KLEAR_RAY_ADDRESS=auto"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise RuntimeError(
            "KLEAR_RAY_ADDRESS is set and Ray is not installed: pip install --no-deps ray"
        ) from error
    if not ray.is_initialized():
        with _own_signals():
            try:
                ray.init(
                    address=address,
                    namespace="klear",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise RuntimeError(
                    f"no Ray cluster at KLEAR_RAY_ADDRESS={address} ({error}): start a node here "
                    "with `ray start --address=HOST:PORT`, or unset the variable to work locally"
                ) from error
    return ray


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM over; a run ends by the handler it had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def cores(ray: Any) -> int:
    """CPUs of the nodes that are alive, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)))


@lru_cache
def code_digest() -> str:
    """Of all that decides the bytes of a result: our sources, Python, and some packages."""
    digest = hashlib.sha256(platform.python_version().encode())
    for package in _BYTES_DEPEND_ON:
        digest.update(f"{package} {version(package)}".encode())
    for folder in _CODE:
        for file in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(str(file.relative_to(_ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def same_code(expected: str) -> None:
    """On a node: raise OtherCode unless it runs the code of the machine that asks."""
    if code_digest() != expected:
        raise OtherCode(
            f"node {platform.node()} has other code or packages than the machine that asks: "
            "install the same commit and the same lock file on every node"
        )
