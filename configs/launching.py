"""Which processes a training stage starts, and on which machines: read off the topology.

All of it says how and not what, so it is no part of a key. SFT and each update of RL are the same
for every way to launch, up to rounding; RL's answers are drawn by another generator a process.
A stage under way goes on with the sharding that it began with.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from configs.base import Runtime
from configs.topology import Launcher, Sharding, Topology


class OwnServer(Runtime):
    """The vLLM server that an RL stage starts for itself and ends with itself."""

    gpus: Annotated[NonNegativeInt, Field(description="Of its machine; 0: none named")] = 0
    apart: Annotated[
        bool, Field(description="On a machine of its own, else beside the first that trains")
    ] = False
    minutes: Annotated[PositiveFloat, Field(description="Until it answers")] = 20.0


class Launch(Runtime):
    """The processes of one training stage."""

    nodes: Annotated[PositiveInt, Field(description="Machines that train")] = 1
    processes: Annotated[PositiveInt, Field(description="On each of them")] = 1
    gpus: Annotated[NonNegativeInt, Field(description="Of each node, one a process; 0: none")] = 0
    sharding: Annotated[
        Sharding, Field(description="full: FSDP2; zero3: DeepSpeed; none: a copy on each GPU")
    ] = "full"
    launcher: Annotated[
        Launcher, Field(description="auto: local, Ray where KLEAR_RAY_ADDRESS is set, else Slurm")
    ] = "auto"
    restarts: Annotated[
        NonNegativeInt, Field(description="From the last checkpoint, after a lost node or process")
    ] = 3
    server: Annotated[
        OwnServer | None, Field(description="vLLM that the stage starts; empty: none")
    ] = None
    wait_minutes: Annotated[
        PositiveFloat, Field(description="For nodes that the Ray cluster does not have yet")
    ] = 15.0

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
    """The processes of a stage on the machines of `t`.

    RL takes the first `rl_gpus` of them. Raises ValueError where those are no whole nodes.
    """
    nodes, processes = t.nodes, t.gpus_per_node or t.processes_per_node
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
