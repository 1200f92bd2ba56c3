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
from typing import Any, TypeVar

from configs.settings.judging import JudgeSettings
from training.launch.node import LAUNCHER
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


def rank0_first(done: Path, work: Callable[[], T]) -> T:
    """Run `work()` on rank 0 first, then on the other ranks.

    They wait for the file `done`, for as long as it takes: a barrier would give up after minutes.
    """
    while world_size() > 1 and rank() and not done.exists():
        time.sleep(POLL_S)
    made = work()
    if not rank():
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
    """What works on GPUs and has to be told to torch and accelerate without them."""
    import torch

    if torch.cuda.is_available():
        return
    # transformers loads optimizers to "cpu:0", which torch does not know
    torch.serialization.register_package(
        100, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        _allow_fsdp_on_cpu()


def _allow_fsdp_on_cpu() -> None:
    """FSDP2 over gloo: accelerate shards on GPUs only, and what is not run cannot be trusted."""
    from accelerate import state
    from accelerate.utils import DistributedType

    original = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        plugin = fsdp_plugin or vars(self).get("fsdp_plugin")  # every call resets the type
        if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = plugin

    state.AcceleratorState.__init__ = init  # type: ignore[method-assign]
