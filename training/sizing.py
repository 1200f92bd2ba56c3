"""Can the stages of a profile run on the machines of its topology: do the numbers divide, does the
memory suffice? With the arithmetic, before anything is launched; needs no torch and no download.

N parameters, W training processes (one a GPU), T tokens of a micro-batch, h hidden size, f MLP
size, L layers, H query and KV key-value heads of d, V words. Sources: the mixed-precision state of
ZeRO (Rajbhandari et al. 2020, §3.1); gradient checkpointing (Chen et al. 2016); saved tensors of a
layer counted in transformers' Qwen3 (tests/training/test_sizing.py counts them again).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..configs.settings.base import read_catalogue
from ..configs.settings.engines import EngineRuntime
from ..configs.settings.pipeline import SAMPLERS, STAGES, Pipeline
from ..configs.settings.topology import Topology
from ..configs.settings.training import BaseModelSettings, LoraSettings, RLSettings, SFTSettings

GIB = 1024**3
BF16, FP32 = 2, 4
HEAD_TILE = 4_096 * 32_768  # logits that TRL's fused head holds at a time: tokens × words
# Allowances; vLLM measures its own.
CUDA_CONTEXT = GIB  # CUDA, NCCL buffers and allocator slack of a training process
VLLM_WORKSPACE = 2 * GIB  # activations and CUDA graphs
VLLM_ASLEEP = GIB  # beside a colocated trainer
PROMPT_TOKENS = 4_096  # before an answer, where nothing says how long prompts are
UNKNOWN = "the sizes of {} are not known here: its memory is not checked"


@dataclass(frozen=True)
class ModelFacts:
    """A dense decoder of the Qwen3 architecture: grouped-query attention with q/k norms, SwiGLU."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool  # the output head is the embedding

    @property
    def layer_parameters(self) -> int:
        """q, o: h·H·d each; k, v: h·KV·d each; gate, up, down: h·f each; 2 norms of h, 2 of d."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + 2 * self.head_dim
        return attention + 3 * self.hidden * self.mlp + norms

    @property
    def outer_parameters(self) -> int:
        """Embedding and head, V·h each (once where they are tied), and the last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters. Qwen3-8B: 36 · 192,946,432 + 1,244,663,808 = 8,190,735,360."""
        return self.layers * self.layer_parameters + self.outer_parameters

    def adapted(self, s: LoraSettings) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the layers of a block that have an adapter."""
        h, f, d = self.hidden, self.mlp, self.head_dim
        query, value = (h, self.heads * d), (h, self.kv_heads * d)
        sizes = {"q_proj": query, "k_proj": value, "v_proj": value, "o_proj": query[::-1]}
        sizes |= {"gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}
        return {name: size for name, size in sizes.items() if name in (s.targets or sizes)}

    def adapter_parameters(self, s: LoraSettings) -> int:
        """r · (inputs + outputs) of each. Qwen3-8B, all layers: 36 · 75,776 · r."""
        return self.layers * s.rank * sum(map(sum, self.adapted(s).values()))

    def kv_bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Keys and values of one token on one GPU in bf16: 2 · L · KV · d · 2, the heads shared by
        `tensor_parallel` GPUs (at least one each). Qwen3-8B: 2·36·8·128·2 = 147,456."""
        heads = -(-self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * BF16


def facts_of_model(model: str) -> ModelFacts | None:
    """Of a hub id or a local folder; None where neither the name nor a config.json tells."""
    if listed := read_catalogue("models").get(model.removesuffix("-Base")):
        return ModelFacts(**listed)
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text())
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        sizes = config["num_hidden_layers"], hidden, config["intermediate_size"], heads
        kv_heads = config.get("num_key_value_heads") or heads
        dim, tied = config.get("head_dim") or hidden // heads, config.get("tie_word_embeddings")
        return ModelFacts(*sizes, kv_heads, dim, config["vocab_size"], bool(tied))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def facts_of_base(s: BaseModelSettings) -> ModelFacts | None:
    """Of the model that training starts from."""
    if s.kind == "pretrained":
        return facts_of_model(s.model)
    vocabulary = -(-s.vocabulary // 16) * 16  # as klear.training.base pads it
    shape = s.layers, s.hidden, s.mlp, s.heads, s.kv_heads, s.head_dim
    return ModelFacts(*shape, vocabulary, tied=True)


def gib(size: float) -> str:
    return f"{size / GIB:.1f}"


class Training(NamedTuple):
    """What is trained by how many processes, and what of that decides its memory."""

    facts: ModelFacts
    world: int = 1
    sharded: bool = True
    checkpointing: bool = True
    lora: LoraSettings | None = None
    frozen: int = BF16  # bytes of a weight under adapters, as `training.models` loads it
    every: int = 1  # with `checkpointing`, each n-th layer is recomputed and the others keep all

    def state(self) -> dict[str, int]:
        """What AdamW keeps from step to step: fp32 weights 4·N, gradients 4·N and two states of
        every parameter 8·N, each divided by W under FSDP2; Muon has less. DDP has all of it on each
        GPU, and buckets of gradients (`gradient_as_bucket_view=False`). Qwen3-8B on 32 GPUs: 4.1e9.
        With adapters it is their parameters that are trained, beside the frozen weights."""
        facts, lora, share = self.facts, self.lora, 1 if self.lora else self.world
        share = share if self.sharded else 1
        trained = FP32 * (facts.adapter_parameters(lora) if lora else facts.parameters)
        state = {"weights": trained, "gradients": trained, "optimizer": 2 * trained}
        if lora:
            whole_weights = {"frozen weights": self.frozen * facts.parameters}
            state = whole_weights | {"adapters": state.pop("weights")} | state
        parts = {name: -(-size // share) for name, size in state.items()}
        return parts if share == self.world else {**parts, "DDP buckets": trained}

    def layer(self, tokens: int) -> int:
        """What one layer saves for its backward pass in bf16 with sdpa or flash attention, per
        token: 16·h (norms, residuals) + 8·f (gate, its activation, up, product) + (10·d + 8)·H +
        (10·d + 4)·KV (projections, their norms and rotations, softmax sums) + 8. Frozen weights
        save 8·h + 2·f + 2·d·(H + KV) less; an adapter saves a copy of its inputs, and r numbers."""
        facts, d = self.facts, self.facts.head_dim
        heads = (10 * d + 8) * facts.heads + (10 * d + 4) * facts.kv_heads
        each = 16 * facts.hidden + 8 * facts.mlp + heads + 8
        if lora := self.lora:
            each -= 8 * facts.hidden + 2 * facts.mlp + 2 * d * (facts.heads + facts.kv_heads)
            each += sum(BF16 * (inputs + lora.rank) for inputs, _ in facts.adapted(lora).values())
        return tokens * each

    def activations(self, tokens: int, residual_bytes: int = BF16) -> dict[str, int]:
        """The parts that grow with the micro-batch: of layers and head, in turn, the larger.

        Gradient checkpointing keeps the input of every layer, L·T·h·bytes (Qwen3-8B at 36,864
        tokens in bf16: 36 · 36,864 · 4,096 · 2 = 10.9e9); without it every layer keeps what it
        saves. In a layer's backward pass gradients of three MLP tensors and two residuals are
        alive, T·(6·f + 4·h). The fused head: two fp32 tiles of logits, fp32 gradients of the hidden
        states (4·T·h) and of the head's weights (4·V·h). Full logits: 4·T·V twice, 44.8e9.
        """
        facts, layer = self.facts, self.layer(tokens)
        tile = min(HEAD_TILE, tokens * facts.vocabulary)
        head = 2 * FP32 * tile + FP32 * facts.hidden * (tokens + facts.vocabulary)
        backward = tokens * (6 * facts.mlp + 4 * facts.hidden)
        if self.checkpointing:
            again = -(-facts.layers // self.every)
            kept = again * tokens * facts.hidden * residual_bytes
            parts = {"checkpoints": kept, "one layer or head": max(layer + backward, head)}
            rest = facts.layers - again
            return parts | ({"saved tensors": rest * layer} if rest else {})
        return {"saved tensors": facts.layers * layer, "head": head + backward}

    def parts(self, tokens: int, several: bool) -> dict[str, int]:
        """The parts on one GPU while a micro-batch of so many tokens is trained on.

        Under FSDP2 two layers are gathered in 16 bits (one in use, one fetched ahead) with one
        layer's gradients, and embedding and head with theirs; and where a step has `several`
        micro-batches, gradients wait whole for the last one (`set_requires_gradient_sync`).
        """
        facts, narrow = self.facts, self.lora is not None and self.frozen == BF16
        gathered = 3 * facts.layer_parameters + 2 * facts.outer_parameters
        cast = facts.adapter_parameters(self.lora) if self.lora and narrow else facts.parameters
        parts = self.state() | {"bf16 copies": BF16 * (gathered if self.sharded else cast)}
        parts |= self.activations(tokens, BF16 if self.sharded or narrow else FP32)
        waits = self.sharded and several
        return parts | ({"unreduced gradients": FP32 * facts.parameters} if waits else {})


class DoesNotFit(ValueError):
    """The topology cannot run the profile; one line a problem, each with what to change."""


@dataclass
class Fit:
    """One stage on its GPUs: the arithmetic, and what is wrong with it."""

    stage: str
    topology: Topology
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """Bytes of one GPU."""
        return int(self.topology.card.memory_gib * GIB)

    def refuse_if(self, wrong: object, problem: str) -> None:
        if wrong:
            self.problems.append(problem)

    def sum_up(self, what: str, parts: Mapping[str, int], cure: str) -> None:
        """A line with the sum of named parts of a GPU's memory; a problem where it is too much."""
        terms = " + ".join(f"{name} {gib(size)}" for name, size in parts.items())
        total, limit = sum(parts.values()), self.limit
        text = f"{terms} = {gib(total)} {'≤' if total <= limit else '>'} {gib(limit)} GiB"
        self.lines.append(f"{what}: {text}")
        self.refuse_if(total > limit, f"{what} does not fit: {text}; {cure}")

    def training(self, facts: ModelFacts, s: SFTSettings | RLSettings, world: int) -> Training:
        """A stage with these settings on so many of the GPUs."""
        sharded, runtime = self.topology.sharding != "none" and world > 1, s.runtime
        frozen = BF16 if runtime.precision == "bf16" else FP32
        again, every = runtime.gradient_checkpointing, runtime.checkpoint_every
        return Training(facts, world, sharded, again, s.lora, frozen, every)

    def add_training(
        self, facts: ModelFacts, s: SFTSettings | RLSettings, world: int, longest: int, step: float
    ) -> None:
        """What training keeps on a GPU; a row has up to `longest` tokens, a GPU's step `step`."""
        tokens = max(s.runtime.micro_batch_tokens, longest)
        parts = self.training(facts, s, world).parts(tokens, step > tokens)
        parts["CUDA"] = CUDA_CONTEXT
        if isinstance(s, RLSettings) and s.engine == "vllm_colocate":
            parts["vLLM asleep"] = VLLM_ASLEEP
        cure = (
            f"set {self.stage}.runtime.gradient_checkpointing=true, {self.stage}.runtime."
            f"micro_batch_tokens={longest} and topology.sharding=full, or name more or larger GPUs"
        )
        self.sum_up(f"training, {tokens:,} tokens at once", parts, cure)

    def add_colocated(self, name: str, facts: ModelFacts, s: RLSettings, world: int) -> None:
        """vLLM on the trainer's GPUs: it wakes up while the state of the training stays."""
        r = s.engine_runtime
        shared = f"no multiple of {name}.tensor_parallel={r.tensor_parallel}, which share one vLLM"
        self.refuse_if(world % r.tensor_parallel, f"{world} training GPUs are {shared}")
        parts = {
            "training state": sum(self.training(facts, s, world).state().values()),
            "weights in transfer": FP32 * facts.vocabulary * facts.hidden,
            "CUDA": CUDA_CONTEXT,
        }
        most = max(0, int((1 - sum(parts.values()) / self.limit) * 20)) / 20
        cure = f"set {name}.gpu_memory_utilization={most:g} or less, or train on more GPUs"
        parts["vLLM"] = int(self.limit * r.gpu_memory_utilization)
        self.sum_up("generating beside the trainer", parts, cure)

    def add_generation(self, name: str, facts: ModelFacts, r: EngineRuntime, context: int) -> None:
        """vLLM has its share of the memory, less bf16 weights over tensor parallel GPUs and its
        workspace, for keys and values: does one answer of full length have room?"""
        tp, share, limit = r.tensor_parallel, r.gpu_memory_utilization, self.limit
        uneven = f"{facts.heads} attention heads are no multiple of tensor_parallel={tp}"
        self.refuse_if(facts.heads % tp, f"{name}: {uneven}")
        weights, token = BF16 * facts.parameters // tp, facts.kv_bytes_per_token(tp)
        room = int(limit * share) - weights - VLLM_WORKSPACE
        fitting = max(0, room) // (token * context)
        line = (
            f"vLLM: {share:g} × {gib(limit)} - weights {gib(weights)} - "
            f"workspace {gib(VLLM_WORKSPACE)} = {gib(room)} GiB for keys and values; {token:,} B × "
            f"{context:,} tokens = {gib(token * context)} GiB an answer: {fitting} such answers at "
            "once"
        )
        self.lines.append(line)
        cure = f"raise {name}.tensor_parallel or gpu_memory_utilization, or ask for shorter answers"
        self.refuse_if(not fitting, f"no answer fits ({line}): {cure}")


def check(p: Pipeline, stages: Iterable[str] = STAGES) -> list[Fit]:
    """Those of the stages that `p` runs on the GPUs of its topology; the evaluations share one."""
    ran = set(stages) - p.stages_left_out
    fits = _fits(p) if p.topology.gpus else ()
    return [fit for fit in fits if any(name.startswith(fit.stage) for name in ran)]


def refuse(p: Pipeline, stages: Iterable[str] = STAGES) -> None:
    """Raise DoesNotFit when one of the stages cannot run on the topology."""
    problems = [f"{fit.stage}: {problem}" for fit in check(p, stages) for problem in fit.problems]
    if problems:
        raise DoesNotFit("\n".join(problems))


def _fits(p: Pipeline) -> Iterator[Fit]:
    t, base = p.topology, facts_of_base(p.base)
    for stage in SAMPLERS:
        s, fit = getattr(p, stage), Fit(stage, t)
        if s is None or s.engine.kind != "vllm":
            continue
        if facts := facts_of_model(s.engine.model):
            longest = s.engine.runtime.max_model_len or s.sampling.max_tokens + PROMPT_TOKENS
            fit.add_generation(f"{stage}.engine.runtime", facts, s.engine.runtime, longest)
        else:
            fit.lines.append(UNKNOWN.format(s.engine.model))
        yield fit
    if base is None:
        yield Fit("base", t, [UNKNOWN.format(p.base.model)])
        return
    yield _sft(base, p.sft, t)
    yield _rl("rl_math", base, p.rl_math, t)
    yield _rl("rl_code", base, p.rl_code, t)
    if p.evaluate.engine == "vllm":
        fit, r = Fit("evaluate", t), p.evaluate.engine_runtime
        longest = r.max_model_len or p.evaluate.sampling.max_tokens + PROMPT_TOKENS
        fit.add_generation("evaluate.engine_runtime", base, r, longest)
        yield fit


def _sft(facts: ModelFacts, s: SFTSettings, t: Topology) -> Fit:
    fit, world = Fit("sft", t), t.gpus
    rows = max(1, round(s.batch_tokens / s.max_length))
    fit.refuse_if(
        rows % world,
        f"{rows} rows a step are no multiple of {world} GPUs, so some would wait: set "
        f"sft.batch_tokens to a multiple of {world * s.max_length}, or name fewer GPUs",
    )
    muon = "optimizer=muon needs whole matrices: set topology.sharding=none, or adamw"
    fit.refuse_if(s.optimizer == "muon" and t.sharding != "none" and world > 1, muon)
    fit.add_training(facts, s, world, s.max_length, s.batch_tokens / world)
    return fit


def _rl(stage: str, facts: ModelFacts, s: RLSettings, t: Topology) -> Fit:
    fit, world = Fit(stage, t), t.rl_gpus or t.gpus
    few = f"{s.mini_batch_prompts} prompts a mini-batch cannot be shared by {world} GPUs"
    fix = "set topology.rl_gpus to a number that divides them"
    fit.refuse_if(s.mini_batch_prompts % world, f"{few}: {fix}")
    longest = s.max_prompt_tokens + s.max_tokens
    answers = s.mini_batch_prompts * s.rollouts_per_prompt / world
    fit.add_training(facts, s, world, longest, answers * longest)
    if s.engine == "vllm_colocate":  # which is not asked for a max_model_len
        name = f"{stage}.engine_runtime"
        fit.add_colocated(name, facts, s, world)
        fit.add_generation(name, facts, s.engine_runtime, longest)
    return fit
