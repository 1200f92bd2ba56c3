"""The processes of a training run: starting those of one machine, and which of them one is.

    python -m training.launch.node JOB.json --nodes 4 --processes 8 --at HOST:PORT [--rank 0]

Run it once on every machine; without `--rank` Slurm says which one this is. It is `accelerate
launch` with the files of configs/accelerate. Exits 0, 1 (training failed), 2 (nothing was tried) or
EXIT_WORKER_LOST: a process was killed or the port was taken, so another start may go further.
"""

import argparse
import ctypes
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from training.layout import rank_log

EXIT_WORKER_LOST = 75  # EX_TEMPFAIL
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "accelerate"
FILES = {"full": "fsdp2.yaml", "none": "ddp.yaml"}
SLURM = "slurm"
PORTS = range(20_000, 30_000)
"""TCP ports of which no system hands out any by itself."""
PR_SET_PDEATHSIG = 1
POLL_S = 0.2
T = TypeVar("T")


def main(arguments: list[str]) -> int:
    """Launch the processes of this machine and wait for them."""
    parser = argparse.ArgumentParser(prog="python -m training.launch.node", allow_abbrev=False)
    parser.add_argument("job")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, required=True, help="on each machine")
    parser.add_argument("--at", required=True, help="HOST:PORT of the first; slurm:PORT asks Slurm")
    parser.add_argument("--rank", type=int, default=os.environ.get("SLURM_NODEID", "0"))
    parser.add_argument("--sharding", choices=list(FILES), default="full")
    asked = parser.parse_args(arguments)
    if not Path(asked.job).is_file():
        parser.error(unseen(platform.node(), asked.job))
    host, _, port = asked.at.rpartition(":")
    place = {
        "num_machines": asked.nodes,
        "machine_rank": asked.rank,
        "main_process_ip": first_slurm_node() if host == SLURM else host,
        "main_process_port": port,
        "num_processes": asked.nodes * asked.processes,
        "module": "training.launch.child",
    }
    words = [word for name, value in place.items() for word in (f"--{name}", str(value))]
    return launch([*words, asked.job], asked.sharding)


def unseen(node: str, job: str) -> str:
    """What is wrong with a machine without the job's file."""
    return (
        f"{node} does not see {job}: all machines that train read and write the stage's folder, so "
        "the store (KLEAR_HOME or KLEAR_STORE) must lie on a file system that they share, at the "
        "same path"
    )


def launch(arguments: list[str], sharding: str) -> int:
    """`accelerate launch` in this process, with the configuration of `sharding`."""
    os.environ.pop("KLEAR_RAY_ADDRESS", None)  # each process judges on its own machine
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    given = ["--config_file", str(CONFIGS / FILES[sharding]), *arguments]
    try:
        launch_command(launch_command_parser().parse_args(given))
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        ends = {failure.exitcode for failure in error.failures.values()}
        lost = any(code < 0 and code != -signal.SIGTERM for code in ends)
    except DistNetworkError as error:
        lost = "EADDRINUSE" in str(error)
        print(error, file=sys.stderr)
    else:
        return 0
    return EXIT_WORKER_LOST if lost else 1


def first_slurm_node() -> str:
    """The first machine of this step, which need not be the first of its allocation."""
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]


def free_port(host: str = "") -> int:
    """A port on which nothing listens now; `host` is the address of this machine to listen on.

    Raises OSError where no port is free, or the address is none of this machine.
    """
    refusal = OSError()
    for port in random.sample(PORTS, 100):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            refusal = error
    raise refusal


def world_size() -> int:
    """Processes of this run, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process in its run."""
    return int(os.environ.get("RANK", "0"))


def processes_here() -> int:
    """Processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_sharded() -> bool:
    """Whether accelerate was told to spread the weights over the processes."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")


def join_run(out: Path) -> None:
    """Call first: one of several processes ends with its launcher; rank 0 prints what that prints,
    the others print to `logs/rank-N.log`."""
    if world_size() == 1:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    import torch

    # without CUDA transformers loads optimizers to "cpu:0", which torch does not know
    torch.serialization.register_package(
        100, lambda _: None, lambda storage, place: storage if place.startswith("cpu:") else None
    )
    if rank():
        log = rank_log(out, rank())
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
