"""One machine's share of a training run: `accelerate launch` with the files of configs/accelerate.

    python -m training.launch.node JOB.json --nodes 4 --processes 8 --at HOST:PORT [--rank 0]

Run it once on every machine; without `--rank` Slurm says which one this is. Exits 0, 1 (training
failed), 2 (nothing was tried), EXIT_WORKER_LOST: a process was killed, so another start may go
further, or PORT_TAKEN: another program has the port at which the machines meet.
"""

import argparse
import os
import platform
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

EXIT_WORKER_LOST = 75  # EX_TEMPFAIL
PORT_TAKEN = 76
LAUNCHER = "KLEAR_LAUNCHER"
"""Environment variable that tells a training process the number of its parent."""
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "accelerate"
FILES = {"full": "fsdp2.yaml", "none": "ddp.yaml"}
SLURM = "slurm"
PORTS = range(20_000, 30_000)
"""TCP ports of which no system hands out any by itself."""


def main(arguments: list[str]) -> int:
    """Launch the processes of this machine and wait for them."""
    parser = argparse.ArgumentParser(prog="python -m training.launch.node", allow_abbrev=False)
    parser.add_argument("job")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, required=True, help="on each machine")
    parser.add_argument("--at", required=True, help="HOST:PORT of the first; slurm:PORT asks Slurm")
    parser.add_argument("--rank", type=int, default=os.environ.get("SLURM_NODEID", "0"))
    parser.add_argument("--meet-s", type=int, default=0, help="wait so long for the others")
    parser.add_argument("--sharding", choices=list(FILES), default="full")
    asked = parser.parse_args(arguments)
    if not Path(asked.job).is_file():
        parser.error(
            f"{platform.node()} does not see {asked.job}: all machines that train read and write "
            "the stage's folder, so the store (KLEAR_HOME or KLEAR_STORE) must lie on a file "
            "system that they share, at the same path"
        )
    host, _, port = asked.at.rpartition(":")
    place = [
        *("--num_machines", str(asked.nodes), "--machine_rank", str(asked.rank)),
        *("--main_process_ip", slurm_nodes()[0] if host == SLURM else host),
        *("--main_process_port", port, "--num_processes", str(asked.nodes * asked.processes)),
        *(("--rdzv_conf", f"timeout={asked.meet_s}") if asked.meet_s else ()),
    ]
    return launch([*place, "--module", "training.launch.child", asked.job], asked.sharding)


def launch(arguments: list[str], sharding: str) -> int:
    """`accelerate launch` in this process, with the configuration of `sharding`."""
    os.environ.pop("KLEAR_RAY_ADDRESS", None)  # each process judges on its own machine
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ[LAUNCHER] = str(os.getpid())
    given = ["--config_file", str(CONFIGS / FILES[sharding]), *arguments]
    try:
        launch_command(launch_command_parser().parse_args(given))
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        ends = {failure.exitcode for failure in error.failures.values()}
        killed = any(code < 0 and code != -signal.SIGTERM for code in ends)
        return EXIT_WORKER_LOST if killed else 1
    except DistNetworkError as error:
        print(error, file=sys.stderr)
        return PORT_TAKEN if "EADDRINUSE" in str(error) else 1
    return 0


def slurm_nodes(*, whole_allocation: bool = False) -> list[str]:
    """The machines of this step, or of the allocation outside of one; none outside of Slurm."""
    # of the step: `srun` may have been given other nodes than the first of the allocation
    step = "" if whole_allocation else os.environ.get("SLURM_STEP_NODELIST", "")
    nodes = step or os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        return []
    command = ["scontrol", "show", "hostnames", nodes]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def free_port(host: str = "") -> int:
    """A port on which nothing listens now; `host` is the address of this machine to listen on.

    Another program may take it before it is used. Raises OSError where no port is free, or the
    address is none of this machine.
    """
    refusal = OSError()
    for port in random.sample(PORTS, 100):
        try:
            with socket.create_server((host, port)):
                return port
        except OSError as error:
            refusal = error
    raise refusal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
