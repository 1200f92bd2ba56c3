"""One of several processes of a training run: it ends with its launcher and keeps a log of its own.

The first one's output is that of the launcher; that of the others goes to `out/logs/rank-N.log`.
What ends a run is on both.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from configs.judging import JudgeSettings
from training.node import LAUNCHER
from training.schedule import world_size

PR_SET_PDEATHSIG = 1
POLL_S = 0.2
T = TypeVar("T")


def rank() -> int:
    """The number of this process in its run."""
    return int(os.environ.get("RANK", "0"))


def processes_here() -> int:
    """Training processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def join_the_run(out: Path) -> None:
    """Call first, in every process of a run; one that runs alone is left as it is."""
    if world_size() == 1:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    launcher = os.environ.get(LAUNCHER)
    if launcher and os.getppid() != int(launcher):  # it ended before the line above
        sys.exit("the launcher is gone")
    _prepare_for_gloo()
    if rank():
        log = out / "logs" / f"rank-{rank()}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        _launcher_output.append(os.dup(2))
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)


_launcher_output: list[int] = []


def tell_failure(error: BaseException) -> None:
    """Say why this process ends: in its log, to the launcher, and for torchrun's summary."""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    for stream in _launcher_output:
        os.write(stream, f"process {rank()} of {world_size()}:\n{text}".encode())
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def after_the_first(done: Path, work: Callable[[], T]) -> T:
    """`work()` in the first process, and once it has ended there in the others.

    They wait for the file `done`, for as long as it takes: a barrier would give up after minutes.
    """
    if world_size() > 1 and rank():
        while not done.exists():
            time.sleep(POLL_S)
        return work()
    made = work()
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()
    return made


def share_of_judge(s: JudgeSettings) -> JudgeSettings:
    """`s` for one of the processes of a machine: together they have the workers of one judge."""
    if processes_here() == 1:
        return s
    workers = max(1, (s.runtime.workers or len(os.sched_getaffinity(0))) // processes_here())
    runtime = s.runtime.model_copy(update={"workers": workers})
    return s.model_copy(update={"runtime": runtime})


def _prepare_for_gloo() -> None:
    """Two things that work on GPUs and have to be told to torch and accelerate without them."""
    import torch

    if torch.cuda.is_available():
        return
    # transformers loads optimizers to "cpu:0", which torch does not know
    torch.serialization.register_package(
        100, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        from training.fsdp_on_cpu import allow_fsdp_on_cpu

        allow_fsdp_on_cpu()
