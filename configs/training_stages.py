"""Settings of SFT, RL and evaluation (§3.1, §3.2, §4). Defaults are the paper's math stage."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from configs.base import Runtime, Settings
from configs.engines import EngineRuntime, Sampling
from configs.judging import JudgeSettings


class TrainRuntime(Runtime):
    """How the weights are computed; the loss does not depend on any of it."""

    micro_batch_tokens: Annotated[
        PositiveInt, Field(description="Tokens, padding included, in one forward pass")
    ] = 36_864
    threads: Annotated[int, Field(ge=0, title="CPU threads (0 = all cores)")] = 0
    gradient_checkpointing: bool = True
    bf16: bool = True
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    stall_minutes: Annotated[
        PositiveFloat, Field(description="No progress for this long fails the stage")
    ] = 120.0


class BaseModelSettings(Settings):
    """The base model: a pretrained one, or a small Qwen3 created from a seed (tiny profile)."""

    kind: Literal["pretrained", "random"] = "pretrained"
    model: str = "Qwen/Qwen3-8B-Base"  # §4.1
    revision: str = "main"
    hidden: PositiveInt = 96
    layers: PositiveInt = 3
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 32
    mlp: PositiveInt = 256
    vocabulary: PositiveInt = 400
    max_positions: PositiveInt = 512
    initializer_range: PositiveFloat = 0.06


class SFTSettings(Settings):
    """Long chain-of-thought SFT (§3.1, §4.1)."""

    epochs: PositiveFloat = 4  # §4.1
    learning_rate: PositiveFloat = 8e-5  # §4.1
    min_learning_rate: Annotated[float, Field(ge=0)] = 4e-5  # §4.1
    warmup_share: Annotated[float, Field(ge=0, lt=1)] = 0.03
    batch_tokens: Annotated[
        PositiveInt, Field(description="Tokens in one optimizer step, over all devices")
    ] = 4_194_304  # 128 sequences of 32K; not stated in the paper
    max_length: PositiveInt = 32_768  # §4.1
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_learning_rate: PositiveFloat = 0.02
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_grad_norm: PositiveFloat = 1.0
    packing: Annotated[bool, Field(description="Pack sequences (needs flash attention)")] = False
    checkpoint_steps: Annotated[PositiveInt, Field(description="Save every N steps")] = 200
    runtime: TrainRuntime = TrainRuntime()


class RLSettings(Settings):
    """One GPPO stage (§3.2, §4.1). The defaults are the paper's math stage."""

    domain: Annotated[Literal["math", "code"], Field(description="Problems to train on")] = "math"
    loss: Annotated[
        Literal["gppo", "clip_higher", "grpo", "cispo"],
        Field(description="gppo: Eq. 11; clip_higher: Eq. 7; grpo: Eq. 3 bounds; cispo: Eq. 15"),
    ] = "gppo"
    beta1: Annotated[float, Field(ge=0, title="β1 (Eq. 17, low side)")] = 1.0  # §3.2.2
    beta2: Annotated[float, Field(ge=0, title="β2 (Eq. 17, high side)")] = 1.0  # §3.2.2
    eps_low: Annotated[float, Field(gt=0, lt=1, title="ε low (Eq. 5)")] = 0.2  # §2.3
    eps_high: Annotated[PositiveFloat, Field(title="ε high (Eq. 5)")] = 0.28  # §4.1
    dual_clip: Annotated[
        float | None,
        Field(gt=1, description="c of the authors' code (10); absent from the paper: off"),
    ] = None
    lm_weight: Annotated[float, Field(ge=0, title="α (Eq. 14)")] = 0.1  # §4.1
    steps: Annotated[PositiveInt, Field(title="Rollout steps")] = 100
    prompts_per_step: PositiveInt = 128  # §4.1
    rollouts_per_prompt: PositiveInt = 8  # §4.1
    mini_batch_prompts: PositiveInt = 16  # §4.1: 16 for math, 32 for code
    learning_rate: PositiveFloat = 1e-6  # §4.1: 1e-6 for math, 5e-7 for code; constant
    warmup_steps: Annotated[
        int, Field(ge=0, description="In rollout steps, as the authors' code")
    ] = 10
    weight_decay: Annotated[float, Field(ge=0)] = 0.1  # authors' code
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    max_grad_norm: PositiveFloat = 1.0  # authors' code
    temperature: PositiveFloat = 1.0  # authors' code
    max_prompt_tokens: PositiveInt = 4_096  # authors' code
    max_tokens: Annotated[PositiveInt, Field(title="Longest answer, tokens")] = 32_768  # §4.1
    advantage_std: Annotated[
        Literal["population", "unbiased"],
        Field(description="Eq. 4 is population; the authors' code is unbiased"),
    ] = "population"
    drop_zero_advantage: bool = True  # §5.2.5
    judge: JudgeSettings = JudgeSettings()
    engine: Annotated[
        Literal["transformers", "vllm_colocate", "vllm_server"], Field(title="Rollout engine")
    ] = "vllm_colocate"
    checkpoint_steps: Annotated[PositiveInt, Field(description="Save every N rollout steps")] = 5
    audit_rollouts: Annotated[int, Field(ge=0, description="Rollouts kept per step to read")] = 8
    runtime: TrainRuntime = TrainRuntime()
    engine_runtime: EngineRuntime = EngineRuntime()

    @model_validator(mode="after")
    def mini_batches_divide_the_step(self) -> Self:
        if self.prompts_per_step % self.mini_batch_prompts:
            raise ValueError(
                f"prompts_per_step={self.prompts_per_step} is no multiple of "
                f"mini_batch_prompts={self.mini_batch_prompts} (remainder "
                f"{self.prompts_per_step % self.mini_batch_prompts}); choose numbers that divide"
            )
        return self


_DATE = r"^(\d{4}-\d{2}-\d{2})?$"


class BenchmarkProtocol(Settings):
    """How one benchmark is scored: avg@k over a date window."""

    name: str
    source: Annotated[
        str, Field(description="Source of its problems; empty: the one called `name`")
    ] = ""
    k: Annotated[PositiveInt, Field(description="Samples per problem (avg@k)")] = 64  # §4.1
    date_from: Annotated[str, Field(pattern=_DATE, description="First day (ISO)")] = ""
    date_to: Annotated[str, Field(pattern=_DATE, description="First day after the window")] = ""

    @model_validator(mode="after")
    def the_window_holds_a_day(self) -> Self:
        if self.date_from and self.date_to and self.date_from >= self.date_to:
            raise ValueError(
                f"protocol {self.name!r}: date_to={self.date_to} is the first day after the "
                f"window, so it must come after date_from={self.date_from}"
            )
        return self


PAPER_PROTOCOLS = (  # §4.1, Table 1
    BenchmarkProtocol(name="aime24"),
    BenchmarkProtocol(name="aime25"),
    BenchmarkProtocol(name="hmmt25"),
    BenchmarkProtocol(
        name="lcb_v5", source="livecodebench", k=8, date_from="2024-08-01", date_to="2025-02-01"
    ),
    BenchmarkProtocol(
        name="lcb_v6", source="livecodebench", k=8, date_from="2025-02-01", date_to="2025-05-01"
    ),
)


class EvaluateSettings(Settings):
    """Generation and judging of a checkpoint on the benchmarks (§4)."""

    protocols: tuple[BenchmarkProtocol, ...] = PAPER_PROTOCOLS
    sampling: Sampling = Sampling()  # Table 1: T 0.6, top_p 0.95
    yarn_factor: Annotated[
        float | None, Field(gt=1, description="2.5 for the 64K budget (§4.3)")
    ] = None
    engine: Literal["vllm", "transformers"] = "vllm"
    judge: JudgeSettings = JudgeSettings()
    bootstrap: PositiveInt = 1_000
    seed: Annotated[int, Field(description="Part of the protocol, not of the run")] = 1234
    engine_runtime: EngineRuntime = EngineRuntime()

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        names = [p.name for p in self.protocols]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"two protocols are called {twice[0]!r}; names must be unique")
        return self


class ReportSettings(Settings):
    """The page a run ends with."""

    profile: Annotated[
        str, Field(description="Label of every figure; anything but `paper` is marked as such")
    ] = ""
    rollouts_to_read: Annotated[int, Field(ge=0)] = 6
