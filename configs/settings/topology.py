"""Which machines a run is meant for, the processes that training starts there, and what a plan
takes for granted. All of it says how and not what, and enters no key: SFT and each update of RL are
the same for every way to launch, up to rounding. A stage under way keeps its sharding."""

from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from .base import Price, Runtime, Settings, read_catalogue
from .explain import nearest


class Gpu(NamedTuple):
    """A card: memory a program can have, GiB; dense bf16 tensor throughput, TFLOP/s."""

    memory_gib: float
    tflops: float


GPUS = {name: Gpu(**facts) for name, facts in read_catalogue("gpus").items()}
Sharding = Literal["full", "none"]
Launcher = Literal["auto", "local", "ray", "slurm"]
Share = Annotated[float, Field(gt=0, le=1)]


class Assumptions(Settings):
    """What a plan takes for granted until the store holds a measurement; all of it is printed. What
    follows from an empty one is not estimated."""

    sft_prompts: PositiveInt | None = None
    """Prompts the teacher answers"""
    rl_prompts: PositiveInt | None = None
    """Prompts that pass the RL filter"""
    rl_kept: Share | None = None
    """Share of the asked prompts that pass it; not in the paper"""
    prompt_tokens: PositiveInt | None = None
    """Mean tokens of a prompt; empty: the longest"""
    answer_tokens: PositiveInt | None = None
    """Mean tokens of a long-thinking answer, below max_tokens; empty: the longest"""
    train_mfu: Share = 0.4
    """Training: share of the GPU's peak, at 6·N FLOPs a token, 2·N for log-probabilities. Llama 3
    reports 0.38 to 0.43 on H100 (arXiv 2407.21783, Table 4); on one H200 a model of 0.6B had 0.11,
    four layers of an 8B with its head 0.32"""
    generate_mfu: Share = 0.05
    """Generation, bound by memory: 2·N FLOPs a token; not measured: vLLM's benchmark gives yours"""
    judged_per_core: PositiveFloat = 25.0
    """Answers judged a second and core: 16 tests of 2.4 ms each, by bench_judge.py"""


class Topology(Settings):
    """The machines: nodes × GPUs, of which card, at what price. No GPUs: this machine as it is."""

    nodes: PositiveInt = 1
    """Machines of one kind"""
    gpus_per_node: NonNegativeInt = 0
    """0: none named, nothing is checked"""
    gpu: str = ""
    """A100-40GB, A100-80GB, L40S, H100, H200 or B200"""
    gpu_hour_price: Price | None = None
    """Money an hour of one GPU; empty: not counted"""
    cores_per_node: NonNegativeInt = 0
    """CPU cores for judging; 0: as many as this machine has"""
    rl_gpus: NonNegativeInt = 0
    """GPUs that train in RL; must divide a mini-batch; 0: all GPUs"""
    sharding: Sharding = "full"
    """full: FSDP2 over all training GPUs; none: a copy on each"""
    launcher: Launcher = "auto"
    """auto: local for one node, else Ray where KLEAR_RAY_ADDRESS is set, else Slurm"""
    restarts: NonNegativeInt = 3
    """From the checkpoint, of several processes that lost one, or a node"""
    assume: Assumptions = Assumptions()
    """Used by plans where nothing was measured, and printed"""

    @model_validator(mode="after")
    def the_card_is_known(self) -> Self:
        rl, node = self.rl_gpus, self.gpus_per_node
        if rl and (rl > self.gpus or rl % min(node, rl)):
            choice = f"nodes × gpus_per_node = {self.nodes} × {node}"
            raise ValueError(f"rl_gpus={rl} must be whole nodes, or a part of one, of {choice}")
        if self.gpus_per_node and self.gpu not in GPUS:
            choice = f"{nearest(self.gpu, GPUS)} (known: {', '.join(GPUS)})"
            raise ValueError(f"gpu {self.gpu!r} is no known card{choice}")
        return self

    @property
    def gpus(self) -> int:
        """All GPUs; 0 when none is named."""
        return self.nodes * self.gpus_per_node

    @property
    def card(self) -> Gpu:
        """Memory and speed of one GPU; zeros when none is named."""
        return GPUS.get(self.gpu, Gpu(0.0, 0.0))

    def __str__(self) -> str:
        if not self.gpus:
            return "this machine (no GPUs named)"
        each = "{:g} GiB, {:g} TFLOP/s bf16 each".format(*self.card)
        return f"{self.nodes} × {self.gpus_per_node} = {self.gpus} {self.gpu} ({each})"


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
    wait_minutes: ClassVar = 15.0  # for nodes that the Ray cluster does not have yet

    @property
    def world(self) -> int:
        return self.nodes * self.processes
