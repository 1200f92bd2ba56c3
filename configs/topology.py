"""Which machines a run is meant for.

All of it says how and not what: it enters no stage's key. `klear plan` checks the profile against
these machines and counts time, GPU-hours and money on them.
"""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from configs.assumptions import Assumptions
from configs.base import Settings
from configs.explain import nearest


class Gpu(NamedTuple):
    """A card: memory a program can have, GiB; dense bf16 tensor throughput, TFLOP/s."""

    memory_gib: float
    tflops: float


GPUS = {  # memory as the driver reports it, rounded down; throughput from the vendor's data sheets
    "A100-40GB": Gpu(39.0, 312.0),
    "A100-80GB": Gpu(79.0, 312.0),
    "L40S": Gpu(44.0, 362.0),
    "H100": Gpu(79.0, 989.0),
    "H200": Gpu(139.0, 989.0),
    "B200": Gpu(178.0, 2250.0),
}
Sharding = Literal["full", "zero3", "none"]
Launcher = Literal["auto", "local", "ray", "slurm"]


class Topology(Settings):
    """The machines: nodes × GPUs, of which card, at what price. No GPUs: this machine as it is."""

    name: Annotated[str, Field(description="How the plan calls these machines")] = ""
    nodes: Annotated[PositiveInt, Field(title="Nodes", description="Machines of one kind")] = 1
    gpus_per_node: Annotated[
        NonNegativeInt, Field(title="GPUs a node", description="0: none named, nothing is checked")
    ] = 0
    gpu: Annotated[
        str, Field(title="GPU", description=f"One of {', '.join(GPUS)}, or your own")
    ] = ""
    gpu_memory_gib: Annotated[
        float | None, Field(gt=0, description="Memory of one GPU; default: that of the card")
    ] = None
    gpu_tflops: Annotated[
        float | None, Field(gt=0, description="Dense bf16 TFLOP/s; default: those of the card")
    ] = None
    gpu_hour_price: Annotated[
        float | None, Field(ge=0, description="Money an hour of one GPU; empty: not counted")
    ] = None
    cores_per_node: Annotated[
        NonNegativeInt, Field(description="CPU cores for judging; 0: as many as this machine has")
    ] = 0
    rl_gpus: Annotated[
        NonNegativeInt,
        Field(title="GPUs that train in RL", description="Must divide a mini-batch; 0: all GPUs"),
    ] = 0
    sharding: Annotated[
        Sharding,
        Field(description="full: FSDP2 over all training GPUs; zero3: DeepSpeed's (SFT only); "
              "none: a copy on each"),
    ] = "full"  # fmt: skip
    processes_per_node: Annotated[
        PositiveInt, Field(description="Training processes of a node without GPUs")
    ] = 1
    launcher: Annotated[
        Launcher,
        Field(description="Starts training on the nodes; auto: local for one node, else Ray where "
              "KLEAR_RAY_ADDRESS is set, else Slurm within an allocation"),
    ] = "auto"  # fmt: skip
    restarts: Annotated[
        NonNegativeInt,
        Field(description="From the checkpoint, of several processes that lost one, or a node"),
    ] = 3
    assume: Annotated[
        Assumptions, Field(description="Used by plans where nothing was measured, and printed")
    ] = Assumptions()

    @model_validator(mode="after")
    def the_card_is_known(self) -> Self:
        if not self.gpus_per_node or self.gpu in GPUS:
            return self
        missing = [n for n in ("gpu_memory_gib", "gpu_tflops") if getattr(self, n) is None]
        if missing:
            raise ValueError(
                f"gpu {self.gpu!r} is no known card{nearest(self.gpu, GPUS)} (known: "
                f"{', '.join(GPUS)}); for another one set {' and '.join(missing)}"
            )
        return self

    @model_validator(mode="after")
    def rl_gpus_are_there(self) -> Self:
        if self.gpus_per_node and self.rl_gpus > self.gpus:
            raise ValueError(
                f"rl_gpus={self.rl_gpus} is more than nodes × gpus_per_node = {self.nodes} × "
                f"{self.gpus_per_node} = {self.gpus}"
            )
        return self

    @property
    def gpus(self) -> int:
        """All GPUs; 0 when none is named."""
        return self.nodes * self.gpus_per_node

    @property
    def card(self) -> Gpu:
        """Memory and speed of one GPU; zeros when none is named."""
        known = GPUS.get(self.gpu, Gpu(0.0, 0.0))
        return Gpu(self.gpu_memory_gib or known.memory_gib, self.gpu_tflops or known.tflops)

    def __str__(self) -> str:
        if not self.gpus:
            return "this machine (no GPUs named)"
        card, label = self.card, f"{self.name}: " if self.name else ""
        return (
            f"{label}{self.nodes} × {self.gpus_per_node} = {self.gpus} {self.gpu or 'GPU'} "
            f"({card.memory_gib:g} GiB, {card.tflops:g} TFLOP/s bf16 each)"
        )
