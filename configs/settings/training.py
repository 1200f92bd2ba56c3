"""Settings of the base model, SFT and RL (§3.1, §3.2, §4.1). Defaults are the paper's."""

from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from .base import IN_KEY, BelowOne, ChatTemplateKwargs, Runtime, Seed, Settings
from .engines import EngineRuntime, no_secret
from .judging import RolloutJudgeSettings
from .loss import GPPO, PolicyLoss
from .topology import Launch, Topology

Probability = Annotated[float, Field(gt=0, lt=1)]
ATTENTIONS = ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3")


def known_attention(name: str) -> str:
    """`name`, where it is one of transformers' or of the hub's."""
    if name not in ATTENTIONS and name.count("/") != 1:
        names = ", ".join(ATTENTIONS)
        raise ValueError(f"{name} is none of {names}, or of the hub: kernels-community/flash-attn2")
    return name


class TrainRuntime(Runtime):
    """How the weights are computed; the loss depends on none of it but `precision`, by rounding."""

    micro_batch_tokens: PositiveInt = 36_864
    """Tokens, padding included, in one forward pass"""
    threads: NonNegativeInt = 0
    """CPU threads; 0: all cores"""
    launch: Launch | None = None
    """Processes and machines; empty: those of the topology"""
    gradient_checkpointing: bool = True
    """Recompute activations: less memory, 4/3 of the time"""
    checkpoint_every: PositiveInt = 1
    """Recompute every n-th layer alone (SFT)"""
    torch_compile: bool = False
    """Compile the layers (CUDA)"""
    use_liger_kernel: bool = False
    """Liger's kernels of norms, rotations and MLPs (CUDA)"""
    precision: Annotated[Literal["bf16", "fp16", "fp32"], IN_KEY] = "bf16"
    """Of the arithmetic; weights and optimizer are fp32. fp16 needs CUDA (arXiv 2510.26788)"""
    attention: Annotated[str, AfterValidator(known_attention)] = "sdpa"
    """sdpa, eager, flex_attention (for packed rows, on CUDA), flash_attention_2 or 3 (whose
    packages are in no lock), or a kernel of the hub: kernels-community/flash-attn2"""
    stop_on_divergence: bool = False
    """End the stage where loss or gradient norm is far above its running median, or an update was
    left out because its gradient was NaN or infinite (three in a row always end it)"""
    stop_without_lesson: bool = True
    """End RL where no problem had answers of different rewards, or all answers the same fault of
    form, in three rollouts in a row: nothing can be learned from them"""
    vllm_server_url: Annotated[str, no_secret("let nobody else reach the server")] = ""
    """Of the server that RL with engine vllm_server asks"""


class BaseModelSettings(Settings):
    """Where training starts: a pretrained model, or a small Qwen3 from a seed (tiny profile)."""

    kind: Literal["pretrained", "random"] = "pretrained"
    """pretrained: load `model`; random: the sizes below, from the seed"""
    model: str = "Qwen/Qwen3-8B-Base"
    """Hub id or local folder; §4.1: Qwen3-8B-Base"""
    stands_for: Literal["base", "sft", "rl_math"] = "base"
    """What the model already is: the stages up to there leave the plan"""
    revision: str = "main"
    """Branch, tag or commit on the hub"""
    chat_template: str | None = None
    """Its file, or the name of one that ships (chatml, llama3, gemma, …), whose tokens are added
    where the vocabulary lacks them; empty: the model's own, ChatML for one without (pretrained)"""
    chat_template_kwargs: ChatTemplateKwargs = None
    """Arguments of the chat template, like {enable_thinking: false}, kept in the checkpoint"""
    positions: PositiveInt | None = None
    """Longest prompt and answer, written into a pretrained model's config; default: its own
    (Qwen3-8B-Base: 32768, RL at 4096 + 32768 needs 36864)"""
    hidden: PositiveInt = 96
    """Model width (random)"""
    layers: PositiveInt = 3
    """(random)"""
    heads: PositiveInt = 4
    """Attention heads (random)"""
    kv_heads: PositiveInt = 2
    """Key-value heads (random)"""
    head_dim: PositiveInt = 32
    """(random)"""
    mlp: PositiveInt = 256
    """Feed-forward width (random)"""
    vocabulary: PositiveInt = 400
    """Tokens of the byte-pair tokenizer (random)"""
    tokens: Literal["words", "lines"] = "words"
    """words: numbers of two digits, operators and words; lines, fewer: also a line that one chat in
    four has, and a word with its `=` or line break, is one token (random)"""
    max_positions: PositiveInt = 512
    """Context length (random)"""
    initializer_range: PositiveFloat = 0.06
    """Standard deviation of the first weights (random)"""

    @model_validator(mode="after")
    def random_weights_can_be_made(self) -> Self:
        if self.kind == "random" and self.stands_for != "base":
            raise ValueError(f"stands_for={self.stands_for} needs kind=pretrained and its model")
        if self.kind == "random" and self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        return self


class LoraSettings(Settings):
    """Low-rank adapters (arXiv 2106.09685), W + α/r·BA, are trained and W is not; they are merged
    into every model that leaves the stage. Not in the paper."""

    rank: PositiveInt = 32
    """r: A has r rows, B r columns"""
    alpha: PositiveFloat = 32.0
    """α"""
    targets: tuple[str, ...] = ()
    """Linear layers by the end of their name, as q_proj; empty: all but the output head"""
    dropout: BelowOne = 0.0
    """Of an adapter's input; SFT only: in RL the ratio to the policy that sampled would be noise"""

    @model_validator(mode="after")
    def the_head_has_no_adapter(self) -> Self:
        if outer := {"lm_head", "embed_tokens"} & set(self.targets):
            fix = "its log-probabilities are computed from whole weights; name layers within blocks"
            raise ValueError(f"targets: {', '.join(outer)} is for no adapter: {fix}")
        return self


class SFTSettings(Settings):
    """Long chain-of-thought SFT (§3.1, §4.1)."""

    epochs: PositiveFloat = 4
    """§4.1: 4"""
    learning_rate: PositiveFloat = 8e-5
    """Peak; §4.1: 8e-5"""
    min_learning_rate: NonNegativeFloat = 4e-5
    """Where the cosine ends; §4.1: 4e-5"""
    warmup_share: BelowOne = 0.03
    """Share of the steps; not in the paper"""
    batch_tokens: PositiveInt = 4_194_304
    """Tokens in one optimizer step, over all devices: 128 sequences of 32K; not in the paper"""
    max_length: PositiveInt = 32_768
    """Tokens of a row, prompt and answer; §4.1: 32K"""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon: for the matrices of layers, AdamW for the rest"""
    muon_learning_rate: PositiveFloat = 0.02
    """Of the matrices, with optimizer muon"""
    weight_decay: NonNegativeFloat = 0.1
    """Of matrices, not of norms"""
    max_grad_norm: PositiveFloat = 1.0
    """Longer gradients are scaled down to this norm"""
    packing: bool = False
    """No padding: the sequences of a micro-batch share one row"""
    validation_problems: NonNegativeInt = 0
    """Problems whose examples are held out for a validation loss, eval/loss; not in the paper"""
    chat_template_kwargs: ChatTemplateKwargs = None
    """Arguments of the chat template; empty: those of the checkpoint"""
    checkpoint_steps: PositiveInt = 200
    """Save every N steps"""
    lora: LoraSettings | None = None
    """Train adapters; empty: all weights"""
    runtime: TrainRuntime = TrainRuntime()

    @model_validator(mode="after")
    def the_schedule_falls(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            peak = f"its peak, learning_rate={self.learning_rate:g}; choose at most that"
            raise ValueError(f"min_learning_rate={self.min_learning_rate:g} is above {peak}")
        if self.lora and self.optimizer == "muon":
            raise ValueError("optimizer=muon turns whole matrices: with lora take adamw")
        return self


def refuse_deviation(advantage: str, kind: str) -> None:
    """Raise ValueError where advantages are not divided by a deviation, of whatever kind."""
    if kind != "population" and advantage in ("none", "maxrl"):
        fix = "leave it out, or take advantage=group or batch"
        raise ValueError(f"advantage_std={kind} is not read with advantage={advantage}: {fix}")


def refuse_penalty(buffer: int, longest: int, advantage: str) -> None:
    """Raise ValueError for a penalty of long answers that cannot be."""
    if buffer >= max(longest, 1):
        raise ValueError(f"overlong_buffer={buffer} must be below max_tokens={longest}")
    if buffer and advantage == "maxrl":
        raise ValueError("overlong_buffer changes rewards, and advantage=maxrl takes 0 and 1 alone")


class EntropyRatioSettings(Settings):
    """Entropy-ratio clipping (ERC, arXiv 2512.05591)."""

    low: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """A token whose entropy falls below this times that of the rollout has no policy gradient"""
    high: Annotated[float, Field(gt=1)] = 1.05
    """Nor has one whose entropy rises above this times it"""


class RLSettings(Settings):
    """One GPPO stage (§3.2, §4.1). The defaults are the paper's math stage."""

    domain: Literal["math", "code"] = "math"
    """Problems to train on"""
    seed: Seed | None = None
    """Of this stage alone; default: that of the run"""
    loss: PolicyLoss = GPPO()
    """gppo: Eq. 11; clip_higher: Eq. 7; grpo: Eq. 3 bounds; cispo: Eq. 15; the others are of other
    papers (training/README.md). A name, or a group with its constants: {name: gppo, beta1: 0.5}"""
    lm_weight: NonNegativeFloat = 0.1
    """α (Eq. 14), of the language-model loss on right answers; §4.1: 0.1"""
    entropy_weight: NonNegativeFloat = 0.0
    """Of the policy's mean entropy over the answer tokens, taken off the loss; not in the paper"""
    steps: PositiveInt = 100
    """Rollout steps: each generates, judges and trains"""
    prompts_per_step: PositiveInt = 128
    """§4.1: 128"""
    rollouts_per_prompt: Annotated[int, Field(ge=2)] = 8
    """Size of a group; of one answer the advantage is always 0 (Eq. 4); §4.1: 8"""
    mini_batch_prompts: PositiveInt = 16
    """Prompts an update; must divide prompts_per_step; §4.1: 16 math, 32 code"""
    learning_rate: PositiveFloat = 1e-6
    """Constant after warm-up; §4.1: 1e-6 for math, 5e-7 for code"""
    warmup_steps: NonNegativeInt = 10
    """In rollout steps, as the authors' code"""
    weight_decay: NonNegativeFloat = 0.1
    """Authors' code: 0.1"""
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Second-moment decay"""
    max_grad_norm: PositiveFloat = 1.0
    """Longer gradients are scaled down to this norm; authors' code: 1"""
    temperature: PositiveFloat = 1.0
    """Of the rollouts; authors' code: 1.0"""
    max_prompt_tokens: PositiveInt = 4_096
    """Longer prompts are left out; authors' code: 4096"""
    max_tokens: PositiveInt = 32_768
    """Longest answer, tokens; §4.1: 32K"""
    advantage: Literal["group", "none", "batch", "maxrl"] = "group"
    """What divides R - μ: the group's σ (Eq. 4), nothing (Dr. GRPO), the batch's σ (ScaleRL), or μ
    with R = 1 for a correct answer and else 0 (MaxRL)"""
    advantage_std: Literal["population", "unbiased"] = "population"
    """σ of Eq. 4 is population; the authors' code is unbiased"""
    drop_zero_advantage: bool = True
    """Groups of equal rewards teach nothing (§5.2.5)"""
    oversampling: PositiveInt = 1
    """Generate this many times the prompts, train on the first that survive (authors' code: 2)"""
    overlong_filter: bool = False
    """Answers cut at max_tokens leave their group unrewarded"""
    partial_rollouts: Annotated[bool, IN_KEY] = False
    """A step ends when its groups are complete, whichever they are; unfinished answers go on in the
    next step under the new weights, so tokens are some steps old (docs/long_answers.md)"""
    overlong_buffer: NonNegativeInt = 0
    """Over the last so many tokens before max_tokens the reward falls by up to 1 (DAPO, Eq. 13);
    0: not at all"""
    erc: EntropyRatioSettings | None = None
    """Mask tokens whose entropy left that of the rollout, {low: 0.95, high: 1.05}; empty: none"""
    importance_cap: PositiveFloat | None = None
    """Cap of ρ = π old/π sampler, a token's weight for a sampler unlike the trainer; empty: none"""
    importance_floor: PositiveFloat | None = None
    """With a cap: a token with ρ outside of both has no policy gradient (IcePop: 0.5 and 5)"""
    importance_drift: PositiveFloat | None = None
    """An answer whose mean log ρ is further from 0 has no policy gradient, like 0.001"""
    fp32_head: bool = False
    """Logits in float32, of the trainer and of vLLM (ScaleRL, arXiv 2510.13786)"""
    judge: RolloutJudgeSettings = RolloutJudgeSettings()
    """How answers become rewards"""
    random_reward: Probability | None = None
    """A control: 1 with this probability, else 0, whatever the answer (arXiv 2506.10947: 0.5)"""
    chat_template_kwargs: ChatTemplateKwargs = None
    """Arguments of the chat template; empty: those of the checkpoint"""
    engine: Literal["transformers", "vllm_colocate", "vllm_server"] = "vllm_colocate"
    """Who generates the rollouts"""
    checkpoint_steps: PositiveInt = 5
    """Save every N rollout steps"""
    keep_every: NonNegativeInt = 0
    """Keep the model of every N rollout steps too; 0: none"""
    lora: LoraSettings | None = None
    """Train adapters; empty: all weights"""
    runtime: TrainRuntime = TrainRuntime()
    engine_runtime: EngineRuntime = EngineRuntime()

    @model_validator(mode="after")
    def the_settings_fit_each_other(self) -> Self:
        refuse_deviation(self.advantage, self.advantage_std)
        refuse_penalty(self.overlong_buffer, self.max_tokens, self.advantage)
        if self.engine == "vllm_server" and not self.runtime.vllm_server_url:
            fix = "start a vLLM as training/README.md says, or take engine=vllm_colocate"
            raise ValueError(f"engine=vllm_server needs runtime.vllm_server_url: {fix}")
        cap, floor, drift = self.importance_cap, self.importance_floor, self.importance_drift
        if floor is not None and not floor < (cap or 0):
            raise ValueError(f"importance_floor={floor:g} needs an importance_cap above it")
        if self.engine == "transformers" and (cap or drift):
            why = "with engine=transformers the trainer samples itself, so leave them out"
            raise ValueError(f"importance_cap and importance_drift are for vLLM: {why}")
        if self.partial_rollouts and self.engine != "vllm_colocate":
            why = "which alone can be left in the middle of an answer"
            raise ValueError(f"partial_rollouts needs engine=vllm_colocate, {why}")
        if self.partial_rollouts and cap is None:
            why = "older policies sampled a part of the tokens, and ρ weighs them for it"
            raise ValueError(f"partial_rollouts needs importance_cap, like 5: {why}")
        if self.partial_rollouts and self.engine_runtime.tensor_parallel > 1:
            fix = "every process ends its own: leave tensor_parallel at 1"
            raise ValueError(f"partial_rollouts has an engine in each process, and {fix}")
        defaults = EngineRuntime()
        read = {"batch_size", "gpu_memory_utilization", "tensor_parallel"}
        changed = {n for n, v in self.engine_runtime if v != getattr(defaults, n)}
        if unread := sorted(changed - read):
            fix = f"RL reads {', '.join(sorted(read))} of it: leave it out"
            raise ValueError(f"engine_runtime.{unread[0]}: {fix}")
        if self.lora and self.lora.dropout:
            noise = "the ratio to the policy that sampled would be noise: it is for SFT"
            raise ValueError(f"lora.dropout={self.lora.dropout:g}: {noise}, leave it out")
        if self.domain == "math" and self.judge.withheld_tests:
            raise ValueError("judge.withheld_tests is for domain=code: math has no tests")
        if self.warmup_steps > self.steps:
            fewest = f"steps={self.steps}; choose at most the steps"
            raise ValueError(f"warmup_steps={self.warmup_steps} is more than {fewest}")
        if self.keep_every >= self.steps:
            last = f"the last of steps={self.steps}; choose a smaller one, or 0"
            raise ValueError(f"keep_every={self.keep_every} keeps no model before {last}")
        if self.prompts_per_step % self.mini_batch_prompts:
            mistake = f"no multiple of mini_batch_prompts={self.mini_batch_prompts}"
            raise ValueError(f"prompts_per_step={self.prompts_per_step} is {mistake}")
        return self


Trained = TypeVar("Trained", SFTSettings, RLSettings)


def with_launch(settings: Trained, topology: Topology) -> Trained:
    """`settings` with the topology's processes (RL: the first `rl_gpus`), or with their own."""
    if settings.runtime.launch is not None:
        return settings
    t, rl = topology, isinstance(settings, RLSettings)
    world = (rl and t.rl_gpus) or t.gpus or t.nodes
    processes = min(t.gpus_per_node or 1, world)
    options = t.model_dump(include={"sharding", "launcher", "restarts"})
    gpus = processes if t.gpus_per_node else 0
    launch = Launch(nodes=world // processes, processes=processes, gpus=gpus, **options)
    runtime = settings.runtime.model_copy(update={"launch": launch})
    return settings.model_copy(update={"runtime": runtime})
