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
from tasks.store.store import LOGS
from training.launch.node import EXIT_WORKER_LOST, PORT_TAKEN, free_port
from training.layout import ProgressFile
from training.vllm.server import TOKEN, URL, without_proxy

POLL_S = 2.0
SETTLE_S = 10.0  # after a failure: the processes that waited for the lost one fail in turn
TAIL_BYTES = 4_000
ANNOUNCE = (  # the token is in a file that nobody else may read, and in no command line
    f'umask 077 && echo "${URL} ${TOKEN}" > "$0.partial" && mv "$0.partial" "$0" '
    "&& exec sleep infinity"
)
END_S = GRACE_S + UNKILLABLE_S + 10.0  # until a launcher and all that it started are gone


class NotShared(RuntimeError):
    """A node does not see the stage's folder."""


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
            raise NotShared(
                f"node {address} does not see {job_file}: all machines that train read and write "
                "the stage's folder, so the store (KLEAR_HOME or KLEAR_STORE) must lie on a file "
                "system that they share, at the same path"
            )
        return f"{address}:{free_port()}"

    def train(
        self,
        job_file: str,
        launch: str,
        at: str,
        rank: int,
        log: str,
        url: str = "",
        token: str = "",
    ) -> int:
        """The exit code of this node's launcher; its output goes to `log`. `url` and `token` are
        those of a server on another node."""
        job, how = Path(job_file), Launch.model_validate_json(launch)
        command = node_command(job, how, at, rank)
        told = {URL: url, TOKEN: token, **without_proxy(url)} if url else {}
        first = rank == 0 and not url
        return self._run([*(vllm_sidecar(job, how) if first else []), *command], log, **told)

    def serve(self, job_file: str, launch: str, host: str, place: str, log: str) -> int:
        """The exit code of a vLLM server; once it answers, the file `place` holds its
        address and token."""
        how = Launch.model_validate_json(launch)
        words = vllm_sidecar(Path(job_file), how, "--host", host)
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
        """Return when nothing is left of what `train` started."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(END_S)

    def alive(self) -> bool:
        return True


def main(arguments: list[str]) -> int:
    """Launch on all nodes and wait for them."""
    job_file, launch = Path(arguments[0]), Launch.model_validate_json(arguments[1])
    ray = join(load_machine().ray_address)
    try:
        nodes, hosts = _ready(ray, job_file, launch)
    except (MachineUnfit, NotShared, TimeoutError) as error:
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
            max_concurrency=3,  # `alive` and `end` answer while `train` runs
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
    at = hosts[0]
    logs = [job_file.parents[1] / LOGS / f"node-{rank}.log" for rank in range(len(nodes))]
    starts = [log.stat().st_size if log.exists() else 0 for log in logs]
    job, packed = str(job_file), launch.model_dump_json()
    live, codes, url = dict[Any, int](), dict[int, int](), []
    if len(nodes) > launch.nodes:  # the last one serves
        place, last = job_file.with_name("vllm.url"), launch.nodes
        place.unlink(missing_ok=True)
        host = hosts[last].rpartition(":")[0]
        call = nodes[last].serve.remote(job, packed, host, str(place), str(logs[last]))
        while not place.exists() and not ray.wait([call], num_returns=1, timeout=POLL_S)[0]:
            pass
        if not place.exists():
            _show_end(logs[last], starts[last], last, hosts[last])
            return _code(ray, call, last, hosts[last]) or 1
        live[call], url = last, place.read_text().split()
        place.unlink()  # it holds the token
    for rank, node in enumerate(nodes[: launch.nodes]):
        live[node.train.remote(job, packed, at, rank, str(logs[rank]), *url)] = rank
    deadline: float | None = None  # for the others, once one has failed
    while set(live.values()) - {launch.nodes} and (deadline is None or time.monotonic() < deadline):
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        ended, _ = ray.wait(list(live), num_returns=1, timeout=patience)
        for call in ended:
            rank = live.pop(call)
            code = _code(ray, call, rank, hosts[rank])
            codes[rank] = (
                code if rank < launch.nodes else EXIT_WORKER_LOST
            )  # a server does not end by itself
            if codes[rank]:
                _show_end(logs[rank], starts[rank], rank, hosts[rank])
        if deadline is None and any(codes.values()):
            deadline = time.monotonic() + SETTLE_S
    running = list(live.values()) if any(codes.values()) else []  # a server has done its work
    return _verdict(ray, nodes, codes, running, hosts)


def _code(ray: Any, call: Any, rank: int, host: str) -> int:
    from ray.exceptions import RayError

    try:
        return ray.get(call)
    except RayError as error:
        print(f"node {rank} ({host}) was lost: {type(error).__name__}", file=sys.stderr)
        return EXIT_WORKER_LOST


def _verdict(
    ray: Any, nodes: list[Any], codes: dict[int, int], running: list[int], hosts: list[str]
) -> int:
    """0 if all ended well; EXIT_WORKER_LOST if one was lost, as those that still run may be."""
    asked = {nodes[rank].alive.remote(): rank for rank in running}
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=SETTLE_S)
    for call in answered:
        if _code(ray, call, asked[call], hosts[asked[call]]) > 1:
            codes[asked[call]] = EXIT_WORKER_LOST
    for call in silent:
        print(f"node {asked[call]} ({hosts[asked[call]]}) does not answer", file=sys.stderr)
        codes[asked[call]] = EXIT_WORKER_LOST
    failed = [code for code in codes.values() if code]
    if PORT_TAKEN in failed:
        return PORT_TAKEN  # the others waited for a first machine that never was there
    if any(code == EXIT_WORKER_LOST or code > 128 for code in failed):
        return EXIT_WORKER_LOST
    return max(failed, default=0)


def _show_end(log: Path, start: int, rank: int, host: str) -> None:
    """The end of what a failed launcher said, where whoever waits reads it."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - TAIL_BYTES))
        said = file.read().decode(errors="replace").rstrip()
    print(f"node {rank} ({host}), {log}:\n{said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
