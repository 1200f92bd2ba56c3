"""Starting a training stage's processes, here or on many machines, and starting them again.

Each way to launch is one local command, so that one supervisor watches and ends it: `accelerate
launch` (with the files of configs/accelerate) on this machine, `srun` with it on the nodes of a
Slurm allocation, or a driver with it on those of a Ray cluster.
"""

import logging
import os
import random
import sys
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from klear.configs.files import PACKAGE
from klear.configs.machine import load_machine
from klear.configs.settings.topology import Launch
from klear.tasks.stage.child import ChildFailed, alone, run_child
from klear.tasks.store.store import SCRATCH
from klear.training.layout import CHECKPOINTS, latest, number_of

SLURM = "slurm"
PORTS = range(20_000, 30_000)  # TCP ports of which no system hands out any by itself
REFUSED = 2  # exit code of a launch that tried nothing
FILES = {"full": "fsdp2.yaml", "none": "ddp.yaml"}
ACCELERATE = (sys.executable, "-P", "-m", "accelerate.commands.launch")
ON_A_SLURM_NODE = (  # the first node of this step need not be the first of its allocation
    'first=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1) && exec "${@:1:4}" '
    '--machine_rank "$SLURM_NODEID" --main_process_ip "$first" "${@:5}"'
)
log = logging.getLogger("klear")


def run_launched(job: BaseModel, out: Path, launch: Launch) -> int:
    """Run the job in all processes of `launch`; returns how often it had to start again.

    A launch of several processes that failed begins again at its last checkpoint. Raises
    ChildFailed when it did so `launch.restarts` times, or came no further than the time before;
    ValueError when there is no such launcher here.
    """
    command = partial(command_of, launch=launch, launcher=launcher_of(launch))
    restarts, begun = 0, _reached(out)
    while True:
        try:
            run_child(job, out, command=command)
            return restarts
        except ChildFailed as failure:
            reached = _reached(out)
            if launch.world == 1 or failure.code == REFUSED:
                raise
            why = ""
            if restarts == launch.restarts:
                why = f"it was started again {restarts} times already (topology.restarts)"
            elif restarts and reached == begun:
                why = "the last restart reached no new checkpoint"
            if why:
                raise ChildFailed(f"{why}; {failure}", failure.code) from failure
            restarts, begun = restarts + 1, reached
            log.warning("training starts again from step %d: %s", reached, failure)


def _reached(out: Path) -> int:
    """Optimizer updates behind the newest whole checkpoint."""
    newest = latest(out / SCRATCH / CHECKPOINTS)
    return number_of(newest) if newest else 0


def launcher_of(launch: Launch) -> str:
    """`alone`, `local`, `ray` or `slurm`. Raises ValueError where the nodes cannot be reached."""
    asked, nodes = launch.launcher, launch.nodes
    if asked == SLURM or (asked == "local" and nodes == 1):
        return asked
    if asked == "auto" and nodes == 1:
        return "alone" if launch.processes == 1 else "local"
    if asked != "local" and load_machine().ray_address:
        return "ray"
    if asked == "auto" and int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) >= nodes:
        return SLURM
    raise ValueError(
        f"the topology trains on {nodes} nodes (launcher={asked}), and there is no way to them: "
        "set KLEAR_RAY_ADDRESS to a Ray cluster, run inside a Slurm allocation of so many nodes "
        "with launcher=auto, or set topology.nodes=1"
    )


def command_of(job_file: Path, launch: Launch, launcher: str) -> list[str]:
    """The local command behind which all processes of `launch` are started."""
    if launcher == "alone":
        return alone(job_file)
    if launcher == "ray":
        module = [sys.executable, "-P", "-m", "klear.tasks.models.ray_launch"]
        return [*module, str(job_file), launch.model_dump_json()]
    if launcher == SLURM:
        tasks = [f"--nodes={launch.nodes}", f"--ntasks={launch.nodes}", "--ntasks-per-node=1"]
        # a step does not inherit what its job asked for, and would be bound to one CPU a node
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
        tasks += ["--kill-on-bad-exit=1", *([f"--cpus-per-task={cpus}"] if cpus else [])]
        node = node_command(job_file, launch, random.choice(PORTS))
        return ["srun", *tasks, "bash", "-c", ON_A_SLURM_NODE, "bash", *node]
    return node_command(job_file, launch, 0)  # accelerate looks for a free port


def node_command(
    job_file: Path, launch: Launch, port: int, place: dict[str, object] | None = None
) -> list[str]:
    """What runs on each node; `place`: which one it is, and the address of the first."""
    options = {
        **(place or {}),
        "config_file": PACKAGE / "configs" / "accelerate" / FILES[launch.sharding],
        "num_machines": launch.nodes,
        "num_processes": launch.world,
        "main_process_port": port,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*ACCELERATE, *words, "--module", "klear.training.launch.child", str(job_file)]
