"""The processes of a training run: which of them this one is, and what they do in turns."""

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .result_files import LOGS

PR_SET_PDEATHSIG = 1
POLL_S = 0.2


def world_size() -> int:
    """Processes of this run, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def processes_here() -> int:
    """Processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def join_run(out: Path) -> None:
    """Call first: processes end with their launcher; all but rank 0 print to `logs/rank-N.log`."""
    if world_size() == 1:
        return
    os.environ.pop("KLEAR_RAY_ADDRESS", None)  # each process judges on its own machine
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    import torch

    # without CUDA transformers loads optimizers to "cpu:0", which torch does not know
    torch.serialization.register_package(
        100, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    if rank():
        log = out / LOGS / f"rank-{rank()}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)


def rank0_first(done: Path, work: Callable[[], Any]) -> Any:
    """Run `work()` on rank 0 first; the others wait for the file `done`, however long it takes."""
    while world_size() > 1 and rank() and not done.exists():
        time.sleep(POLL_S)
    result = work()
    if not rank():
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    return result
