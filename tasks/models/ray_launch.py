"""`srun` for a Ray cluster: the launch command of `tasks.models.launch` on every node.

    python -m tasks.models.ray_launch JOB.json LAUNCH_JSON

Ray finds the nodes and says when one dies; what trains is `training.launch.node`, as under any
other launcher. Exits as `training.launch.node` does; however it ends, all launchers end with it.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from configs.machine import load_machine
from configs.settings.topology import Launch
from eval.ray_cluster import code_digest, join, same_code
from eval.sandbox import MachineUnfit
from tasks.models.launch import node_command
from tasks.stage.child import GRACE_S, environment
from tasks.stage.supervise import UNKILLABLE_S, supervised
from tasks.stage.watchdog import log_tail
from tasks.store.store import LOGS
from training.launch.node import EXIT_WORKER_LOST, free_port, unseen
from training.layout import ProgressFile

POLL_S = 2.0
SETTLE_S = 90.0  # after a failure: others fail in turn, and Ray declares a silent node dead
END_S = GRACE_S + UNKILLABLE_S + 10.0  # until a launcher and all that it started are gone


class _Node:
    """The actor: one machine's launcher."""

    process: "subprocess.Popen[bytes] | None" = None

    def look(self, code: str, job_file: str) -> str:
        """This node's address and a free port, if it has our code and sees our files."""
        same_code(code)
        import ray

        address = ray.util.get_node_ip_address()
        if not Path(job_file).is_file():
            raise MachineUnfit(f"node {unseen(address, job_file)}")
        return f"{address}:{free_port()}"

    def run(self, command: list[str], log: str) -> int:
        """The exit code of `command`; its output goes to `log`."""
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [*supervised(GRACE_S), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(os.environ),
            )
        return self.process.wait()

    def end(self) -> None:
        """Return when nothing is left of what it started."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(END_S)


def main(arguments: list[str]) -> int:
    """Launch on all nodes and wait for them."""
    job_file, launch = Path(arguments[0]), Launch.model_validate_json(arguments[1])
    ray = join(load_machine().ray_address)
    try:
        nodes, hosts = _ready(ray, job_file, launch)
    except (MachineUnfit, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        return _trained(ray, nodes, hosts, job_file, launch)
    finally:
        # the next launch writes the same files: nothing of this one may be left
        ray.wait([node.end.remote() for node in nodes], num_returns=len(nodes), timeout=END_S)
        _end(ray, nodes)


def _ready(ray: Any, job_file: Path, launch: Launch) -> tuple[list[Any], list[str]]:
    """One actor a node and its address, once there are as many nodes, all of which can train.

    The cluster may still count a node that has just died: then it is asked for others again.
    """
    from ray.exceptions import RayError, RayTaskError

    wanted = f"{launch.nodes} nodes with {launch.gpus} free GPUs each"
    deadline = time.monotonic() + launch.wait_minutes * 60
    while True:
        group, nodes = _asked(ray, launch)
        looks = [node.look.remote(code_digest(), str(job_file)) for node in nodes]
        try:
            while len(ray.wait(looks, num_returns=len(looks), timeout=POLL_S)[0]) < len(looks):
                if time.monotonic() > deadline:
                    minutes = f"{launch.wait_minutes:g} minutes"
                    raise TimeoutError(f"the Ray cluster had no {wanted} in {minutes}: add nodes")
                # progress that is none: the watchdog sees that somebody waits on purpose
                ProgressFile(job_file.parents[1]).note(f"waiting for {wanted}")
            return nodes, ray.get(looks)
        except BaseException as error:
            _end(ray, nodes)
            ray.util.remove_placement_group(group)
            if isinstance(error, RayTaskError):
                raise error.cause from error
            if not isinstance(error, RayError) or time.monotonic() > deadline:
                raise


def _asked(ray: Any, launch: Launch) -> tuple[Any, list[Any]]:
    """A group of nodes, and on each an actor that starts when there is one and holds its GPUs."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # no CPU: launchers wait, and the judge of another run may hold every CPU for days
    bundle = {"memory": 1, **({"GPU": launch.gpus} if launch.gpus else {})}
    group = ray.util.placement_group([bundle] * launch.nodes, strategy="STRICT_SPREAD")
    actor = ray.remote(_Node)
    nodes = [
        actor.options(
            num_cpus=0,
            num_gpus=launch.gpus,
            max_concurrency=2,  # `end` answers while `run` runs
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        ).remote()
        for number in range(launch.nodes)
    ]
    return group, nodes


def _end(ray: Any, nodes: list[Any]) -> None:
    for node in nodes:
        with suppress(Exception):  # dead, or its node is
            ray.kill(node)


def _trained(ray: Any, nodes: list[Any], hosts: list[str], job_file: Path, launch: Launch) -> int:
    """0 if all ended well, EXIT_WORKER_LOST if one was lost, else the code of one that failed."""
    from ray.exceptions import RayError

    calls, failed, deadline = {}, list[int](), float("inf")
    for rank, node in enumerate(nodes):
        log = job_file.parents[1] / LOGS / f"node-{rank}.log"
        log.touch()
        command = node_command(job_file, launch, hosts[0], rank)
        calls[node.run.remote(command, str(log))] = rank, log, log.stat().st_size
    while calls and time.monotonic() < deadline:
        left = deadline - time.monotonic() if failed else None
        for call in ray.wait(list(calls), timeout=left)[0]:
            rank, log, start = calls.pop(call)
            try:
                code, how = ray.get(call), "failed"
            except RayError as error:
                code, how = EXIT_WORKER_LOST, f"was lost: {type(error).__name__}"
            if code:
                print(f"node {rank} ({hosts[rank]}) {how}{log_tail(log, start)}", file=sys.stderr)
                failed.append(code)
                deadline = min(deadline, time.monotonic() + SETTLE_S)
    lost = any(code == EXIT_WORKER_LOST or code > 128 for code in failed)
    return EXIT_WORKER_LOST if lost else max(failed, default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
