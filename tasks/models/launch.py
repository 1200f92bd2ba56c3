"""Starting a training stage's processes, here or on many machines, and starting them again.

Each way to launch is one local command, so that one supervisor watches and ends it: the processes
of this machine, `srun` for those of a Slurm allocation, or a driver for those of a Ray cluster. A
launch that lost a node or process begins again at its last checkpoint.
"""

import json
import logging
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from configs.machine import load_machine
from configs.settings.topology import Launch
from tasks.stage.child import ChildFailed, alone, run_child
from tasks.store.store import LOGS, SCRATCH
from training.launch.node import EXIT_WORKER_LOST, PORTS, SLURM, free_port
from training.layout import CHECKPOINTS, latest, step_of_checkpoint

RESTARTS = "restarts.jsonl"
PORT_TRIES = 5  # in a row: of which another program took each between the look and the launch
log = logging.getLogger("klear")


def run_launched(job: BaseModel, out: Path, launch: Launch) -> int:
    """Run the job in all processes of `launch`; returns how often it had to start again.

    Every restart is a line of `<out>/logs/restarts.jsonl`. Raises ChildFailed when the job failed
    by itself, when it was lost more than `launch.restarts` times, and when a restart came no
    further than the one before it; ValueError when there is no such launcher here.
    """
    command = partial(command_of, launch=launch, launcher=launcher_of(launch))
    restarts = out / LOGS / RESTARTS  # of the stage in all, those before it was resumed included
    begun, losses, refused = _reached(out), 0, 0
    while True:
        try:
            run_child(job, out, command=command)
            return len(restarts.read_text().splitlines()) if restarts.exists() else 0
        except ChildFailed as failure:
            # not by its code: `srun` has one for all nodes, and others end by it too
            refused = refused + 1 if failure.code and "EADDRINUSE" in str(failure) else 0
            if 0 < refused < PORT_TRIES:
                log.warning("the port of a launch was taken meanwhile: another one is tried")
                continue
            reached = _reached(out)
            _check(failure, launch, losses, further=reached > begun)
            losses, begun = losses + 1, reached
            log.warning("training starts again from step %d: %s", reached, failure)
            line = {"time": time.time(), "step": reached, "why": str(failure)}
            with restarts.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _check(failure: ChildFailed, launch: Launch, losses: int, *, further: bool) -> None:
    """Raise unless another start may go further."""
    lost = failure.code == EXIT_WORKER_LOST or (failure.code or 0) > 128
    if not launch.several or failure.code is None or not (lost or further):
        raise failure
    if losses == launch.restarts:
        why = f"it was started again {losses} times already (topology.restarts)"
    elif losses and not further:
        why = "the last restart reached no new checkpoint"
    else:
        return
    raise ChildFailed(f"{why}; {failure}", failure.code) from failure


def _reached(out: Path) -> int:
    """Optimizer updates behind the newest whole checkpoint."""
    newest = latest(out / SCRATCH / CHECKPOINTS)
    return step_of_checkpoint(newest) if newest else 0


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
        module = [sys.executable, "-P", "-m", "tasks.models.ray_launch"]
        return [*module, str(job_file), launch.model_dump_json()]
    if launcher == SLURM:
        tasks = [f"--nodes={launch.nodes}", f"--ntasks={launch.nodes}", "--ntasks-per-node=1"]
        # a step does not inherit what its job asked for, and would be bound to one CPU a node
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
        tasks += ["--kill-on-bad-exit=1", *([f"--cpus-per-task={cpus}"] if cpus else [])]
        at = f"{SLURM}:{random.choice(PORTS)}"  # of another machine: nobody knows which are free
        return ["srun", *tasks, *node_command(job_file, launch, at)]
    return node_command(job_file, launch, f"127.0.0.1:{free_port('127.0.0.1')}", rank=0)


def node_command(job_file: Path, launch: Launch, at: str, rank: int | None = None) -> list[str]:
    """What runs on each node; without `rank` it finds out itself which one it is."""
    module = [sys.executable, "-P", "-m", "training.launch.node", str(job_file)]
    counts = ["--nodes", str(launch.nodes), "--processes", str(launch.processes)]
    place = ["--at", at, *([] if rank is None else ["--rank", str(rank)])]
    return [*module, *counts, *place, "--sharding", launch.sharding]
