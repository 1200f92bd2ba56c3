"""Starting a training stage's processes, here or on many machines, and starting them again.

Each way to launch is one local command, so that one supervisor watches and ends it: the processes
of this machine, `srun` for those of a Slurm allocation, or a driver for those of a Ray cluster. A
launch that lost a node or process begins again at its last checkpoint.
"""

import json
import logging
import os
import random
import shlex
import sys
import time
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from configs.machine import load_machine
from configs.settings.launching import Launch
from tasks.stage.child import ChildFailed, alone, run_child
from tasks.store.store import LOGS, SCRATCH
from training.launch.node import EXIT_WORKER_LOST, PORT_TAKEN, PORTS, SLURM, free_port, slurm_nodes
from training.layout import CHECKPOINTS, latest, step_of_checkpoint

RESTARTS = "restarts.jsonl"
MEET_BESIDE_S = 3_600
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
            # `srun` has one exit code for all nodes, and others end by it too
            taken = failure.code == PORT_TAKEN or (failure.code and "EADDRINUSE" in str(failure))
            refused = refused + 1 if taken else 0
            if 0 < refused < PORT_TRIES:
                log.warning("the port of a launch was taken meanwhile: another one is tried")
                continue
            reached = _reached(out)
            _check(failure, launch, losses, further=reached > begun)
            losses, begun = losses + 1, reached
            where = f"the checkpoint of step {reached}" if reached >= 0 else "the beginning"
            said = str(failure).partition("\n")[0]
            log.warning("training starts again from %s: %s", where, said)
            line = {"time": time.time(), "step": max(0, reached), "why": str(failure)}
            restarts.parent.mkdir(parents=True, exist_ok=True)
            with restarts.open("a") as file:
                file.write(json.dumps(line) + "\n")


def launcher_of(launch: Launch) -> str:
    """`alone`, `local`, `ray` or `slurm`. Raises ValueError where the nodes cannot be reached."""
    asked, machines = launch.launcher, launch.machines
    if asked == SLURM or (asked == "local" and machines == 1):
        return asked
    if asked == "auto" and machines == 1:
        return "alone" if launch.processes == 1 else "local"
    if asked != "local" and load_machine().ray_address:
        return "ray"
    if asked == "auto" and int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) >= machines:
        return SLURM
    raise ValueError(
        f"the topology trains on {machines} nodes (launcher={asked}), and there is no way to "
        "them: set KLEAR_RAY_ADDRESS to a Ray cluster, run inside a Slurm allocation of so many "
        "nodes with launcher=auto, or set topology.nodes=1"
    )


def command_of(job_file: Path, launch: Launch, launcher: str) -> list[str]:
    """The local command behind which all processes of `launch` are started."""
    if launcher == "alone":
        return [*vllm_sidecar(job_file, launch), *alone(job_file)]
    if launcher == "ray":
        module, job = [sys.executable, "-P", "-m", "tasks.models.ray_launch"], str(job_file)
        return [*module, job, launch.model_dump_json()]
    if launcher == SLURM:
        return _by_slurm(job_file, launch)
    at = f"127.0.0.1:{free_port('127.0.0.1')}"
    return [*vllm_sidecar(job_file, launch), *node_command(job_file, launch, at, rank=0)]


def vllm_sidecar(job_file: Path, launch: Launch, *more: str) -> list[str]:
    """Words before the command of the first machine, where the stage starts a vLLM server."""
    if launch.server is None:
        return []
    module = [sys.executable, "-P", "-m", "training.vllm.sidecar", str(job_file)]
    trainers = 0 if launch.server.apart else launch.processes
    counts = ["--trainers", str(trainers), "--minutes", f"{launch.server.minutes:g}"]
    return [*module, *counts, *more, "--"]


def _by_slurm(job_file: Path, launch: Launch) -> list[str]:
    at = f"{SLURM}:{random.choice(PORTS)}"  # of another machine: nobody here knows which are free
    tasks = [f"--ntasks={launch.nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    step = ["srun", f"--nodes={launch.nodes}", *tasks, *_cpus()]
    node = node_command(job_file, launch, at)
    if launch.server is None or not launch.server.apart:
        return [*step, *vllm_sidecar(job_file, launch, "--slurm"), *node]
    # the step that trains takes the first nodes, so that the one behind them is free
    nodes = slurm_nodes(whole_allocation=True)
    if len(nodes) < launch.machines:
        raise ValueError(
            f"the topology trains and serves on {launch.machines} nodes, and the Slurm allocation "
            f"has {len(nodes)}: ask for more (--nodes), or set topology.rl_gpus to fewer"
        )
    host = nodes[launch.nodes]
    by = ["srun", f"--relative={launch.nodes}", "--nodes=1", "--ntasks=1", *_cpus()]
    outside = vllm_sidecar(job_file, launch, "--host", host, "--by", shlex.join(by))
    return [*outside, *step, "--relative=0", *node]


def _cpus() -> list[str]:
    """A step does not inherit what its job asked for, and would be bound to one CPU a node."""
    count = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return [f"--cpus-per-task={count}"] if count else []


def node_command(job_file: Path, launch: Launch, at: str, rank: int | None = None) -> list[str]:
    """What runs on each node; without `rank` it finds out itself which one it is."""
    counts = ["--nodes", str(launch.nodes), "--processes", str(launch.processes)]
    place = ["--at", at, *([] if rank is None else ["--rank", str(rank)])]
    module = [sys.executable, "-P", "-m", "training.launch.node", str(job_file)]
    # the first machine starts its vLLM server before it comes to where all meet
    beside = launch.server is not None and not launch.server.apart
    meet = ["--meet-s", str(MEET_BESIDE_S)] if beside and launch.nodes > 1 else []
    return [*module, *counts, *place, *meet, "--sharding", launch.sharding]


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
    """Optimizer updates behind the newest whole checkpoint; -1 without one."""
    newest = latest(out / SCRATCH / CHECKPOINTS)
    return step_of_checkpoint(newest) if newest else -1
