"""Training over the nodes of a Ray cluster: one launcher a node, watched by this process.

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
from configs.settings.launching import Launch
from eval.ray_cluster import code_digest, join, same_code
from eval.sandbox.errors import MachineUnfit
from tasks.models.launch import node_command, vllm_sidecar
from tasks.stage.child import GRACE_S, environment
from tasks.stage.supervise import UNKILLABLE_S, supervised
from tasks.stage.watchdog import log_tail
from tasks.store.store import LOGS
from training.launch.node import EXIT_WORKER_LOST, PORT_TAKEN, free_port
from training.layout import ProgressFile
from training.vllm.server import TOKEN, URL, without_proxy

POLL_S = 2.0
SETTLE_S = 90.0  # after a failure: others fail in turn, and Ray declares a silent node dead
ANNOUNCE = (  # the token is in a file that nobody else may read, and in no command line
    f'umask 077 && echo "${URL} ${TOKEN}" > "$0.partial" && mv "$0.partial" "$0" '
    "&& exec sleep infinity"
)
END_S = GRACE_S + UNKILLABLE_S + 10.0  # until a launcher and all that it started are gone


class _Node:
    """The actor: one machine's launcher."""

    process: "subprocess.Popen[bytes] | None" = None

    def look(self, code: str, job_file: str) -> str:
        """This node's address and a port that is free on it, if it can train: it has our code and
        sees our files."""
        same_code(code)
        import ray

        address = ray.util.get_node_ip_address()
        if not Path(job_file).is_file():
            raise MachineUnfit(
                f"node {address} does not see {job_file}: all machines that train read and write "
                "the stage's folder, so the store (KLEAR_HOME or KLEAR_STORE) must lie on a file "
                "system that they share, at the same path"
            )
        return f"{address}:{free_port()}"

    def train(self, job: str, launch: str, log: str, at: str, rank: int, *server: str) -> int:
        """The exit code of this node's launcher; its output goes to `log`. `server` is the address
        and the token of a server on another node."""
        how = Launch.model_validate_json(launch)
        command = node_command(Path(job), how, at, rank)
        if rank == 0 and not server:
            command = [*vllm_sidecar(Path(job), how), *command]
        more = dict(zip((URL, TOKEN), server, strict=False))
        return self._run(command, log, **more, **(without_proxy(server[0]) if server else {}))

    def serve(self, job: str, launch: str, log: str, at: str, place: str) -> int:
        """The exit code of a vLLM server; once it answers, the file `place` holds its
        address and token."""
        how, host = Launch.model_validate_json(launch), at.rpartition(":")[0]
        words = vllm_sidecar(Path(job), how, "--host", host)
        return self._run([*words, "sh", "-c", ANNOUNCE, place], log)

    def _run(self, command: list[str], log: str, **more: str) -> int:
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                [*supervised(GRACE_S), *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment({**os.environ, **more}),
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

    wanted = f"{launch.machines} nodes with {launch.gpus} free GPUs each"
    deadline = time.monotonic() + launch.wait_minutes * 60
    while True:
        group, nodes = _asked(ray, launch)
        looks = [node.look.remote(code_digest(), str(job_file)) for node in nodes]
        try:
            while len(ray.wait(looks, num_returns=len(looks), timeout=POLL_S)[0]) < len(looks):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the Ray cluster had no {wanted} in {launch.wait_minutes:g} minutes: add "
                        "nodes, end what holds them, or change the topology"
                    )
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
            print(f"a node was lost before it began ({type(error).__name__})", file=sys.stderr)


def _asked(ray: Any, launch: Launch) -> tuple[Any, list[Any]]:
    """A group of nodes, and on each an actor that starts when there is one and holds its GPUs."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    gpus = [launch.gpus] * launch.nodes
    if launch.server is not None and launch.server.apart:
        gpus.append(launch.server.gpus)
    elif launch.server is not None:
        gpus[0] += launch.server.gpus
    group = ray.util.placement_group(
        # no CPU: launchers wait, and the judge of another run may hold every CPU for days
        [{"memory": 1, **({"GPU": count} if count else {})} for count in gpus],
        strategy="STRICT_SPREAD",
    )
    nodes = [
        ray.remote(_Node)
        .options(
            num_cpus=0,
            num_gpus=gpus[bundle],
            max_concurrency=2,  # `end` answers while `train` runs
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle),
        )
        .remote()
        for bundle in range(launch.machines)
    ]
    return group, nodes


def _end(ray: Any, nodes: list[Any]) -> None:
    for node in nodes:
        with suppress(Exception):  # dead, or its node is
            ray.kill(node)


def _trained(ray: Any, nodes: list[Any], hosts: list[str], job_file: Path, launch: Launch) -> int:
    """0 if all ended well, EXIT_WORKER_LOST if one was lost, else the code of one that failed."""
    job = str(job_file), launch.model_dump_json()
    logs = [job_file.parents[1] / LOGS / f"node-{rank}.log" for rank in range(len(nodes))]
    for log in logs:
        log.touch()
    starts = [log.stat().st_size for log in logs]
    ranks = dict[Any, int]()

    def code_of(call: Any) -> int:
        rank = ranks.pop(call)
        code = _code(ray, call, rank, hosts[rank])
        if code:
            tail = log_tail(logs[rank], starts[rank])
            print(f"node {rank} ({hosts[rank]}){tail}", file=sys.stderr, flush=True)
        return code

    server: list[str] = []
    if len(nodes) > launch.nodes:  # the last one serves
        place = job_file.with_name("vllm.url")
        place.unlink(missing_ok=True)
        call = nodes[-1].serve.remote(*job, str(logs[-1]), hosts[-1], str(place))
        ranks[call] = launch.nodes
        while not (started := place.exists()) and not ray.wait([call], timeout=POLL_S)[0]:
            pass
        if not started:
            return code_of(call) or 1
        server = place.read_text().split()
        place.unlink()  # it holds the token
    for rank, node in enumerate(nodes[: launch.nodes]):
        ranks[node.train.remote(*job, str(logs[rank]), hosts[0], rank, *server)] = rank
    failed, deadline = list[int](), float("inf")
    while min(ranks.values(), default=launch.nodes) < launch.nodes and time.monotonic() < deadline:
        left = deadline - time.monotonic() if failed else None
        for call in ray.wait(list(ranks), timeout=left)[0]:
            serves = ranks[call] == launch.nodes
            if (code := code_of(call)) or serves:  # a server does not end by itself
                failed.append(EXIT_WORKER_LOST if serves else code)
                deadline = min(deadline, time.monotonic() + SETTLE_S)
    if PORT_TAKEN in failed:
        return PORT_TAKEN  # the others waited for a first machine that never was there
    lost = any(code == EXIT_WORKER_LOST or code > 128 for code in failed)
    return EXIT_WORKER_LOST if lost else max(failed, default=0)


def _code(ray: Any, call: Any, rank: int, host: str) -> int:
    from ray.exceptions import RayError

    try:
        return ray.get(call)
    except RayError as error:
        print(f"node {rank} ({host}) was lost: {type(error).__name__}", file=sys.stderr)
        return EXIT_WORKER_LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
