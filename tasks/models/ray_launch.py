"""`srun` for a Ray cluster: the launch command of `tasks.models.launch` on every node.

    python -m klear.tasks.models.ray_launch JOB.json LAUNCH_JSON

Ray finds the nodes and says when one dies; one plain task on each runs `accelerate launch`. However
this ends, all that it launched ends with it.
"""

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from klear.configs.machine import load_machine
from klear.configs.settings.topology import Launch
from klear.eval.ray_cluster import code_digest, join, same_code
from klear.tasks.models.launch import PORTS, REFUSED, node_command
from klear.tasks.stage.child import GRACE_S, start_supervised
from klear.tasks.stage.graph import log_tail
from klear.tasks.store.store import LOGS
from klear.training.layout import ProgressFile

POLL_S = 0.2
END_S = 10 * GRACE_S  # until all that a node launched is gone


def look(code: str, job_file: str) -> str:
    """On a node: its address, if it has our code and sees our files."""
    same_code(code, Path(job_file))
    import ray

    return ray.util.get_node_ip_address()


def run(command: list[str], log: str) -> int:
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
    places = places_of(ray, launch)
    asked = code_digest(), str(job_file)
    ask, start = ray.remote(look), ray.remote(run)
    # The cluster counts a node that has just died for some seconds more: then it asks another one.
    seen = [ask.options(**place, max_retries=-1).remote(*asked) for place in places]
    wanted = f"{launch.nodes} nodes with {launch.gpus} free GPUs each"
    ProgressFile(job_file.parents[1]).report(0, 0, f"waiting for {wanted}")
    try:
        hosts = ray.get(seen, timeout=launch.wait_minutes * 60)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayTaskError) as error:
        late = f"no {wanted} in {launch.wait_minutes:g} minutes: add nodes"
        print(getattr(error, "cause", None) or late, file=sys.stderr)
        return REFUSED
    port, calls = random.choice(PORTS), {}
    for rank, place in enumerate(places):
        log = job_file.parents[1] / LOGS / f"node-{rank}.log"
        log.write_bytes(b"")
        which = {"machine_rank": rank, "main_process_ip": hosts[0]}
        command = node_command(job_file, launch, port, which)
        call = start.options(**place, max_retries=0).remote(command, str(log))
        calls[call] = f"node {rank} ({hosts[rank]})", log
    return _trained(ray, calls)


def places_of(ray: Any, launch: Launch) -> list[dict[str, Any]]:
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


def _trained(ray: Any, calls: Mapping[Any, tuple[str, Path]]) -> int:
    """Wait for all calls; when one fails, the others are ended."""
    left = list(calls)
    try:
        while left:
            [ended], left = ray.wait(left)
            node, log = calls[ended]
            try:
                how = f"failed with exit code {code}" if (code := ray.get(ended)) else ""
            except ray.exceptions.RayError as error:
                how = f"was lost: {type(error).__name__}"
            if how:
                print(f"{node} {how}{log_tail(log)}", file=sys.stderr)
                return 1
        return 0
    finally:
        for call in left:
            ray.cancel(call)
        if left:  # the next launch writes the same files
            ray.wait(left, num_returns=len(left), timeout=END_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
