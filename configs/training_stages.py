"""Settings of the base model, SFT and RL (§3.1, §3.2, §4.1). Defaults are the paper's."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from configs.base import LATER, Runtime, Settings
from configs.engines import EngineRuntime, url_without_secret
from configs.judging import JudgeSettings
from configs.launching import Launch


class TrainRuntime(Runtime):
    """How the weights are computed; the loss does not depend on any of it."""

    micro_batch_tokens: Annotated[
        PositiveInt, Field(description="Tokens, padding included, in one forward pass")
    ] = 36_864
    threads: Annotated[int, Field(ge=0, title="CPU threads (0 = all cores)")] = 0
    launch: Annotated[
        Launch | None, Field(description="Processes and machines; empty: those of the topology")
    ] = None
    gradient_checkpointing: Annotated[
        bool, Field(description="Recompute activations: less memory, 4/3 of the time")
    ] = True
    bf16: Annotated[
        bool, Field(description="Compute in bfloat16, weights and optimizer in float32 (GPU)")
    ] = True
    attention: Annotated[
        Literal["sdpa", "eager", "flash_attention_2"],
        Field(description="flash_attention_2 needs the flash-attn package"),
    ] = "sdpa"
    vllm_server_url: Annotated[
        str, Field(description="For RL with engine vllm_server; empty: the stage starts its own")
    ] = ""
    stall_minutes: Annotated[
        PositiveFloat,
        Field(title="Stricter watchdog, minutes without progress",
              description="Of this stage alone; the watchdog of the whole run holds all the same, "
              "so only a smaller value than its stall_minutes has an effect"),
    ] = 120.0  # fmt: skip

    @field_validator("vllm_server_url")
    @classmethod
    def _no_secret_in_the_url(cls, url: str) -> str:
        return url_without_secret(
            "vllm_server_url", url, "the trainer sends none; let nobody else reach the server"
        )


class LoRASettings(Settings):
    """Train low-rank adapters instead of all weights, for small GPUs. Not in the paper.

    The adapters are merged into the weights when the stage ends: a checkpoint is always whole.
    """

    rank: Annotated[PositiveInt, Field(description="Of the adapters")] = 32
    alpha: Annotated[PositiveFloat, Field(description="Adapters are scaled by alpha / rank")] = 64.0
    dropout: Annotated[float, Field(ge=0, lt=1, description="On adapter inputs; 0 in RL")] = 0.0
    targets: Annotated[
        tuple[str, ...], Field(description="Names of the linear layers; empty: all but the head")
    ] = ()


class BaseModelSettings(Settings):
    """Where training starts: a pretrained model, or a small Qwen3 from a seed (tiny profile)."""

    kind: Annotated[
        Literal["pretrained", "random"],
        Field(description="pretrained: load `model`; random: the sizes below, from the seed"),
    ] = "pretrained"
    model: Annotated[str, Field(description="Hub id or local folder")] = (
        "Qwen/Qwen3-8B-Base"  # §4.1
    )
    stands_for: Annotated[
        Literal["base", "sft", "rl_math"],
        Field(description="What the model already is: the stages up to there leave the plan"),
    ] = "base"
    revision: Annotated[str, Field(description="Branch, tag or commit on the hub")] = "main"
    positions: Annotated[
        PositiveInt | None,
        Field(description="Longest prompt and answer, written into a pretrained model's config; "
              "default: its own (Qwen3-8B-Base: 32768, RL at 4096 + 32768 needs 36864)"),
    ] = None  # fmt: skip
    hidden: Annotated[PositiveInt, Field(description="Model width (random)")] = 96
    layers: Annotated[PositiveInt, Field(description="(random)")] = 3
    heads: Annotated[PositiveInt, Field(description="Attention heads (random)")] = 4
    kv_heads: Annotated[PositiveInt, Field(description="Key-value heads (random)")] = 2
    head_dim: Annotated[PositiveInt, Field(description="(random)")] = 32
    mlp: Annotated[PositiveInt, Field(description="Feed-forward width (random)")] = 256
    vocabulary: Annotated[
        PositiveInt, Field(description="Tokens of the byte-pair tokenizer (random)")
    ] = 400
    max_positions: Annotated[PositiveInt, Field(description="Context length (random)")] = 512
    initializer_range: Annotated[
        PositiveFloat, Field(description="Standard deviation of the first weights (random)")
    ] = 0.06

    @model_validator(mode="after")
    def random_weights_have_seen_nothing(self) -> Self:
        if self.kind == "random" and self.stands_for != "base":
            raise ValueError(f"stands_for={self.stands_for} needs kind=pretrained and its model")
        return self


class SFTSettings(Settings):
    """Long chain-of-thought SFT (§3.1, §4.1)."""

    epochs: Annotated[PositiveFloat, Field(description="§4.1: 4")] = 4  # §4.1
    learning_rate: Annotated[PositiveFloat, Field(description="Peak; §4.1: 8e-5")] = 8e-5  # §4.1
    min_learning_rate: Annotated[
        float, Field(ge=0, description="Where the cosine ends; §4.1: 4e-5")
    ] = 4e-5  # §4.1
    warmup_share: Annotated[
        float, Field(ge=0, lt=1, description="Share of the steps; not in the paper")
    ] = 0.03
    batch_tokens: Annotated[
        PositiveInt, Field(description="Tokens in one optimizer step, over all devices")
    ] = 4_194_304  # 128 sequences of 32K; not stated in the paper
    max_length: Annotated[
        PositiveInt, Field(description="Tokens of a row, prompt and answer; §4.1: 32K")
    ] = 32_768  # §4.1
    optimizer: Annotated[
        Literal["adamw", "muon"],
        Field(description="muon: for the matrices of layers, AdamW for the rest"),
    ] = "adamw"
    muon_learning_rate: Annotated[
        PositiveFloat, Field(description="Of the matrices, with optimizer muon")
    ] = 0.02
    weight_decay: Annotated[float, Field(ge=0, description="Of matrices, not of norms")] = 0.1
    max_grad_norm: Annotated[
        PositiveFloat, Field(description="Longer gradients are scaled down to this norm")
    ] = 1.0
    too_long: Annotated[
        Literal["cut", "drop"], Field(description="Rows over max_length; both are reported")
    ] = "cut"
    packing: Annotated[
        bool, Field(description="No padding: the sequences of a micro-batch share one row")
    ] = False
    lora: Annotated[
        LoRASettings | None,
        Field(description="Adapters instead of all weights; empty: all weights"),
    ] = None
    checkpoint_steps: Annotated[PositiveInt, Field(description="Save every N steps")] = 200
    runtime: Annotated[TrainRuntime, Field(description="How it is computed; changes no result")] = (
        TrainRuntime()
    )


class RLSettings(Settings):
    """One GPPO stage (§3.2, §4.1). The defaults are the paper's math stage."""

    domain: Annotated[Literal["math", "code"], Field(description="Problems to train on")] = "math"
    loss: Annotated[
        Literal["gppo", "clip_higher", "grpo", "cispo"],
        Field(description="gppo: Eq. 11; clip_higher: Eq. 7; grpo: Eq. 3 bounds; cispo: Eq. 15"),
    ] = "gppo"
    beta1: Annotated[
        float,
        Field(
            ge=0,
            title="β1 (Eq. 17, low side)",
            description="Weight of the gradient of clipped tokens with δ < 1 - ε low",
        ),
    ] = 1.0  # §3.2.2
    beta2: Annotated[
        float,
        Field(
            ge=0,
            title="β2 (Eq. 17, high side)",
            description="Weight of the gradient of clipped tokens with δ > 1 + ε high",
        ),
    ] = 1.0  # §3.2.2
    eps_low: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            title="ε low (Eq. 5)",
            description="Tokens with δ below 1 - ε are clipped; §2.3: 0.2",
        ),
    ] = 0.2  # §2.3
    eps_high: Annotated[
        PositiveFloat,
        Field(
            title="ε high (Eq. 5)", description="Tokens with δ above 1 + ε are clipped; §4.1: 0.28"
        ),
    ] = 0.28  # §4.1
    dual_clip: Annotated[
        float | None,
        Field(gt=1, description="c of the authors' code (10); absent from the paper: off"),
    ] = None
    max_log_ratio: Annotated[
        float, Field(gt=0, le=80, description="|log δ| is clamped to this before exp")
    ] = 20.0
    lm_weight: Annotated[
        float,
        Field(
            ge=0,
            title="α (Eq. 14)",
            description="Of the language-model loss on right answers; §4.1: 0.1",
        ),
    ] = 0.1  # §4.1
    steps: Annotated[
        PositiveInt, Field(title="Rollout steps", description="Each generates, judges and trains")
    ] = 100
    prompts_per_step: Annotated[PositiveInt, Field(description="§4.1: 128")] = 128  # §4.1
    rollouts_per_prompt: Annotated[PositiveInt, Field(description="Size of a group; §4.1: 8")] = (
        8  # §4.1
    )
    mini_batch_prompts: Annotated[
        PositiveInt,
        Field(
            description="Prompts an update; must divide prompts_per_step; §4.1: 16 math, 32 code"
        ),
    ] = 16  # §4.1: 16 for math, 32 for code
    learning_rate: Annotated[
        PositiveFloat,
        Field(description="Constant after warm-up; §4.1: 1e-6 for math, 5e-7 for code"),
    ] = 1e-6  # §4.1: 1e-6 for math, 5e-7 for code; constant
    warmup_steps: Annotated[
        int, Field(ge=0, description="In rollout steps, as the authors' code")
    ] = 10
    weight_decay: Annotated[float, Field(ge=0, description="Authors' code: 0.1")] = (
        0.1  # authors' code
    )
    adam_beta2: Annotated[float, Field(gt=0, lt=1, description="Second-moment decay")] = 0.999
    max_grad_norm: Annotated[
        PositiveFloat, Field(description="Longer gradients are scaled down to this norm")
    ] = 1.0  # authors' code
    temperature: Annotated[
        PositiveFloat, Field(description="Of the rollouts; authors' code: 1.0")
    ] = 1.0  # authors' code
    max_prompt_tokens: Annotated[
        PositiveInt, Field(description="Longer prompts are left out; authors' code: 4096")
    ] = 4_096  # authors' code
    max_tokens: Annotated[
        PositiveInt, Field(title="Longest answer, tokens", description="§4.1: 32K")
    ] = 32_768  # §4.1
    advantage_std: Annotated[
        Literal["population", "unbiased"],
        Field(description="Eq. 4 is population; the authors' code is unbiased"),
    ] = "population"
    drop_zero_advantage: Annotated[
        bool, Field(description="Groups of equal rewards teach nothing (§5.2.5)")
    ] = True  # §5.2.5
    oversampling: Annotated[
        PositiveInt,
        Field(description="Generate this many times the prompts, train on the first that survive "
              "(authors' code: 2)"),
    ] = 1  # fmt: skip
    overlong_filter: Annotated[
        bool, Field(description="Answers cut at max_tokens leave their group unrewarded")
    ] = False
    importance_cap: Annotated[
        float | None,
        Field(gt=0, description="Cap of the per-token correction for a sampler that differs from "
              "the trainer (vLLM); none, as in the authors' code"),
    ] = None  # fmt: skip
    lora: Annotated[
        LoRASettings | None,
        Field(description="Adapters instead of all weights; empty: all weights"),
    ] = None
    judge: Annotated[JudgeSettings, Field(description="How answers become rewards")] = (
        JudgeSettings()
    )
    engine: Annotated[
        Literal["transformers", "vllm_colocate", "vllm_server"], Field(title="Rollout engine")
    ] = "vllm_colocate"
    checkpoint_steps: Annotated[PositiveInt, Field(description="Save every N rollout steps")] = 5
    keep_every: Annotated[
        int, LATER, Field(ge=0, description="Keep the model of every N rollout steps too; 0: none")
    ] = 0
    audit_rollouts: Annotated[int, Field(ge=0, description="Rollouts kept per step to read")] = 8
    runtime: Annotated[TrainRuntime, Field(description="How it is computed; changes no result")] = (
        TrainRuntime()
    )
    engine_runtime: Annotated[
        EngineRuntime, Field(description="How answers are generated; changes no result")
    ] = EngineRuntime()

    @model_validator(mode="after")
    def mini_batches_divide_the_step(self) -> Self:
        if self.prompts_per_step % self.mini_batch_prompts:
            raise ValueError(
                f"prompts_per_step={self.prompts_per_step} is no multiple of "
                f"mini_batch_prompts={self.mini_batch_prompts} (remainder "
                f"{self.prompts_per_step % self.mini_batch_prompts}); choose numbers that divide"
            )
        return self

    @model_validator(mode="after")
    def both_log_probabilities_are_of_one_policy(self) -> Self:
        if self.lora and self.lora.dropout:
            raise ValueError(
                f"lora.dropout={self.lora.dropout} would make the ratio of new and old "
                "probabilities noise: set lora.dropout=0 in RL"
            )
        return self
