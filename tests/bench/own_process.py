"""A function in a process of its own: its time and memory are those of nothing else."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns there; an environment that is changed before is the process's own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(work, *arguments).result()
