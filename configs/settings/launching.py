"""Which processes a training stage starts, and on which machines: read off the topology.

All of it says how and not what, so it is no part of a key. SFT and each update of RL are the same
for every way to launch, up to rounding; RL's answers are drawn by another generator a process.
A stage under way goes on with the sharding that it began with.
"""

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from configs.settings.base import Runtime
from configs.settings.topology import Launcher, Sharding, Topology


class OwnServer(Runtime):
    """The vLLM server that an RL stage starts for itself and ends with itself."""

    gpus: NonNegativeInt = 0
    """Of its machine; 0: none named"""
    apart: bool = False
    """On a machine of its own, else beside the first that trains"""
    minutes: PositiveFloat = 20.0
    """Until it answers"""


class Launch(Runtime):
    """The processes of one training stage."""

    nodes: PositiveInt = 1
    """Machines that train"""
    processes: PositiveInt = 1
    """On each of them"""
    gpus: NonNegativeInt = 0
    """Of each node, one a process; 0: none"""
    sharding: Sharding = "full"
    """full: FSDP2; none: a copy on each GPU"""
    launcher: Launcher = "auto"
    """auto: local, Ray where KLEAR_RAY_ADDRESS is set, else Slurm"""
    restarts: NonNegativeInt = 3
    """From the last checkpoint, after a lost node or process"""
    server: OwnServer | None = None
    """vLLM that the stage starts; empty: none"""
    wait_minutes: ClassVar = 15.0  # for nodes that the Ray cluster does not have yet

    @property
    def world(self) -> int:
        """All processes."""
        return self.nodes * self.processes

    @property
    def machines(self) -> int:
        """Those that train, and that of a server apart."""
        return self.nodes + bool(self.server and self.server.apart)

    @property
    def several(self) -> bool:
        """Whether one may be lost without the others: then the launch starts again."""
        return self.world > 1 or self.server is not None


def launch_of(t: Topology, kind: Literal["sft", "rl"]) -> Launch:
    """The processes of a stage on the machines of `t`; RL takes the first `rl_gpus` of them.

    Raises ValueError where those are no whole nodes.
    """
    nodes, processes = t.nodes, t.gpus_per_node or 1
    if kind == "rl" and t.gpus_per_node and t.rl_gpus:
        nodes, rest = divmod(t.rl_gpus, t.gpus_per_node)
        if not nodes:
            nodes, processes = 1, rest
        elif rest:
            raise ValueError(
                f"rl_gpus={t.rl_gpus} are no whole nodes of {t.gpus_per_node} GPUs: set it to "
                f"{nodes * t.gpus_per_node} or {(nodes + 1) * t.gpus_per_node}"
            )
    return Launch(
        nodes=nodes,
        processes=processes,
        gpus=processes if t.gpus_per_node else 0,
        sharding=t.sharding,
        launcher=t.launcher,
        restarts=t.restarts,
    )
