"""Starting a training stage's processes, here or on many machines, and starting them again.

Each way to launch is one local command, so that one supervisor watches and ends it: `accelerate
launch` (with the files of configs/accelerate) on this machine, `srun` with it on the nodes of a
Slurm allocation, or this module with it on those of a Ray cluster:

    python -m klear.tasks.models.launch JOB.json LAUNCH_JSON

Ray finds the nodes and says when one dies; one plain task on each runs the command. However this
ends, all that it launched ends with it.
"""

import logging
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ...configs.files import PACKAGE
from ...configs.machine import load_machine
from ...configs.settings.topology import Launch
from ...eval.ray_cluster import code_digest, join, same_code
from ...training.launch.result_files import (
    CHECKPOINTS,
    LOGS,
    SCRATCH,
    ProgressFile,
    latest,
    number_of,
)
from ..engine.child import GRACE_S, ChildFailed, alone, run_child, start_supervised
from ..engine.stage_process import log_tail

SLURM = "slurm"
PORTS = range(20_000, 30_000)  # TCP ports of which no system hands out any by itself
REFUSED = 2  # exit code of a launch that tried nothing
FILES = {"full": "fsdp2.yaml", "none": "ddp.yaml"}
ACCELERATE = (sys.executable, "-P", "-m", "accelerate.commands.launch")
ON_A_SLURM_NODE = (  # the first node of this step need not be the first of its allocation
    'first=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1) && exec "${@:1:4}" '
    '--machine_rank "$SLURM_NODEID" --main_process_ip "$first" "${@:5}"'
)
POLL_S = 0.2
END_S = 10 * GRACE_S  # until all that a node launched is gone
_LOG = logging.getLogger("klear")


def run_launched(job: BaseModel, out: Path, launch: Launch) -> dict[str, float]:
    """Run the job in all processes of `launch`; returns its result with `processes`, of several
    with `restarts`.

    A launch of several processes that failed begins again at its last checkpoint. Raises
    ChildFailed when it did so `launch.restarts` times, or came no further than the time before;
    ValueError when there is no such launcher here.
    """
    command = partial(command_of, launch=launch, launcher=launcher_of(launch))
    restarts, begun = 0, _reached(out)
    while True:
        try:
            result = {**run_child(job, out, command=command), "processes": float(launch.world)}
            return result if launch.world == 1 else {**result, "restarts": float(restarts)}
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
            _LOG.warning("training starts again from step %d: %s", reached, failure)


def _reached(out: Path) -> int:
    """Optimizer updates behind the newest whole checkpoint."""
    newest = latest(out / SCRATCH / CHECKPOINTS)
    return number_of(newest) if newest else 0


def launcher_of(launch: Launch) -> str:
    """`alone`, `local`, `ray` or `slurm`. Raises ValueError where the nodes cannot be reached."""
    launcher, nodes = launch.launcher, launch.nodes
    if launcher == SLURM or (launcher == "local" and nodes == 1):
        return launcher
    if launcher == "auto" and nodes == 1:
        return "alone" if launch.processes == 1 else "local"
    if launcher != "local" and load_machine().ray_address:
        return "ray"
    if launcher == "auto" and int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) >= nodes:
        return SLURM
    raise ValueError(
        f"the topology trains on {nodes} nodes (launcher={launcher}), and there is no way to them: "
        "set KLEAR_RAY_ADDRESS to a Ray cluster, run inside a Slurm allocation of so many nodes "
        "with launcher=auto, or set topology.nodes=1"
    )


def command_of(job_file: Path, launch: Launch, launcher: str) -> list[str]:
    """The local command behind which all processes of `launch` are started."""
    if launcher == "alone":
        return alone(job_file)
    if launcher == "ray":
        module = [sys.executable, "-P", "-m", "klear.tasks.models.launch"]
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
    job_file: Path, launch: Launch, port: int, rank: dict[str, object] | None = None
) -> list[str]:
    """What runs on each node; `rank`: which one it is, and the address of the first."""
    options = {
        **(rank or {}),
        "config_file": PACKAGE / "configs" / "accelerate" / FILES[launch.sharding],
        "num_machines": launch.nodes,
        "num_processes": launch.world,
        "main_process_port": port,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*ACCELERATE, *words, "--module", "klear.training.launch.run_job", str(job_file)]


def node_address(code: str, job_file: str) -> str:
    """On a node: its address, if it has our code and sees our files."""
    same_code(code, Path(job_file))
    import ray

    return ray.util.get_node_ip_address()


def run_node(command: list[str], log: str) -> int:
    """On a node: the exit code of `command`; its output goes to `log`. Cancelled, it ends it."""
    process = start_supervised(command, Path(log))
    try:
        while process.poll() is None:  # Ray interrupts nothing but Python
            time.sleep(POLL_S)
        return process.returncode
    finally:
        process.terminate()
        process.wait()


def main(arguments: list[str]) -> int:
    """Launch on all nodes and wait for them."""
    job_file, launch = Path(arguments[0]), Launch.model_validate_json(arguments[1])
    ray = join(load_machine().ray_address)
    task_options = node_task_options(ray, launch)
    ask, start = ray.remote(node_address), ray.remote(run_node)
    # The cluster counts a node that has just died for some seconds more: then it asks another one.
    code = code_digest(), str(job_file)
    addresses = [ask.options(**o, max_retries=-1).remote(*code) for o in task_options]
    wanted = f"{launch.nodes} nodes with {launch.gpus} free GPUs each"
    ProgressFile(job_file.parents[1]).report(0, 0, f"waiting for {wanted}")
    try:
        hosts = ray.get(addresses, timeout=launch.wait_minutes * 60)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayTaskError) as error:
        late = f"no {wanted} in {launch.wait_minutes:g} minutes: add nodes"
        print(getattr(error, "cause", None) or late, file=sys.stderr)
        return REFUSED
    port, calls = random.choice(PORTS), {}
    for rank, options in enumerate(task_options):
        log = job_file.parents[1] / LOGS / f"node-{rank}.log"
        log.write_bytes(b"")
        which = {"machine_rank": rank, "main_process_ip": hosts[0]}
        command = node_command(job_file, launch, port, which)
        call = start.options(**options, max_retries=0).remote(command, str(log))
        calls[call] = f"node {rank} ({hosts[rank]})", log
    left = list(calls)
    try:
        while left:
            [ended], left = ray.wait(left)
            node, log = calls[ended]
            try:
                failure = f"failed with exit code {code}" if (code := ray.get(ended)) else ""
            except ray.exceptions.RayError as error:
                failure = f"was lost: {type(error).__name__}"
            if failure:
                print(f"{node} {failure}{log_tail(log)}", file=sys.stderr)
                return 1
        return 0
    finally:
        for call in left:  # when one fails, the others are ended
            ray.cancel(call)
        if left:  # the next launch writes the same files
            ray.wait(left, num_returns=len(left), timeout=END_S)


def node_task_options(ray: Any, launch: Launch) -> list[dict[str, Any]]:
    """Options of a task for each node, which starts when there is one with so many GPUs free."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # no CPU: launchers wait, and the judge of another run may hold every CPU for days
    bundle = {"memory": 1, **({"GPU": launch.gpus} if launch.gpus else {})}
    group = ray.util.placement_group([bundle] * launch.nodes, strategy="STRICT_SPREAD")
    return [
        {
            "num_cpus": 0,
            "num_gpus": launch.gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, number),
        }
        for number in range(launch.nodes)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
