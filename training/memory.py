"""What training and generation need of a GPU's memory, bytes, as plain formulas.

N parameters, W training processes (one a GPU), T tokens of a micro-batch, h hidden size, f MLP
size, L layers, H query and KV key-value heads of d, V words. Sources: the mixed-precision state of
ZeRO (Rajbhandari et al. 2020, §3.1); gradient checkpointing (Chen et al. 2016); saved tensors of a
layer counted in transformers' Qwen3 (tests/training/test_memory.py counts them again).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from training.model_facts import ModelFacts

GIB = 1024**3
BF16, FP32 = 2, 4
HEAD_TILE = 4_096 * 32_768
"""Logits that the fused head holds at a time: tokens × words of TRL's chunked kernel."""
CUDA_CONTEXT = int(1.0 * GIB)
"""CUDA context, NCCL buffers and allocator slack of a training process (an allowance)."""
VLLM_WORKSPACE = int(2.0 * GIB)
"""Activations and CUDA graphs of vLLM (an allowance; vLLM profiles the exact figure)."""
ZERO3_BUCKET = 500_000_000

Optimizer = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Memory:
    """Named parts of one GPU's memory in bytes, against what it has."""

    parts: Mapping[str, int]
    limit: int

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {gib(size)}" for name, size in self.parts.items())
        sign = "≤" if self.fits else ">"
        return f"{terms} = {gib(self.total)} {sign} {gib(self.limit)} GiB"


def gib(size: float) -> str:
    """GiB with one digit after the point; three where there is little."""
    value = size / GIB
    return f"{value:.1f}" if value >= 1 or not value else f"{value:.3f}"


def optimizer_bytes(facts: ModelFacts, optimizer: Optimizer = "adamw") -> int:
    """fp32 states: AdamW two of every parameter (8·N); Muon one of every matrix inside the
    decoder, AdamW for the rest."""
    if optimizer == "muon":
        return 2 * FP32 * facts.parameters - FP32 * facts.matrix_parameters
    return 2 * FP32 * facts.parameters


def state_bytes(facts: ModelFacts, world: int, optimizer: Optimizer = "adamw") -> dict[str, int]:
    """fp32 weights 4·N, fp32 gradients 4·N and the optimizer, each divided by W (FSDP2 or ZeRO-3
    over W GPUs; W = 1: on one GPU, or a copy on each). Qwen3-8B on 32 GPUs: 131.05e9/32 = 4.1e9."""
    share = {
        "weights": FP32 * facts.parameters,
        "gradients": FP32 * facts.parameters,
        "optimizer": optimizer_bytes(facts, optimizer),
    }
    return {name: -(-size // world) for name, size in share.items()}


def gathered_bytes(facts: ModelFacts) -> int:
    """bf16 copies while FSDP2 computes: two layers (one in use, one fetched ahead) and one layer's
    gradients, embedding and head with their gradients: 2·3·P_layer + 2·2·P_outer."""
    return BF16 * (3 * facts.layer_parameters + 2 * facts.outer_parameters)


def unreduced_bytes(facts: ModelFacts) -> int:
    """Gradients of a whole model on every GPU, fp32: 4·N. Between micro-batches FSDP2 keeps them
    unsharded where reduction waits for the last one (torch, `set_requires_gradient_sync`)."""
    return FP32 * facts.parameters


def bucket_bytes(facts: ModelFacts) -> int:
    """DDP's buckets of gradients, fp32: 4·N beside the gradients themselves, as long as it trains
    (torch, `gradient_as_bucket_view=False`, which accelerate leaves as it is)."""
    return FP32 * facts.parameters


def zero3_bucket_bytes() -> int:
    """DeepSpeed's one buffer for gradients on their way, bf16: `reduce_bucket_size`, whose default
    is 5e8 elements. ZeRO-3 reduces in every backward pass, so it keeps nothing unreduced."""
    return BF16 * ZERO3_BUCKET


def autocast_bytes(facts: ModelFacts) -> int:
    """bf16 copies of all weights that autocast keeps where nothing is sharded: 2·N."""
    return BF16 * facts.parameters


def checkpoint_bytes(facts: ModelFacts, tokens: int, bytes_each: int = BF16) -> int:
    """Gradient checkpointing keeps the input of every layer: L·T·h·bytes. Qwen3-8B at 36,864
    tokens in bf16: 36 · 36,864 · 4,096 · 2 = 10.9e9."""
    return facts.layers * tokens * facts.hidden * bytes_each


def layer_bytes(facts: ModelFacts, tokens: int) -> int:
    """What one layer saves for its backward pass in bf16 with sdpa or flash attention, per token:
    16·h (norms, residuals) + 8·f (gate, its activation, up, product) + (10·d + 8)·H +
    (10·d + 4)·KV (projections, their norms and rotations, softmax sums) + 8."""
    d = facts.head_dim
    heads = (10 * d + 8) * facts.heads + (10 * d + 4) * facts.kv_heads
    return tokens * (16 * facts.hidden + 8 * facts.mlp + heads + 8)


def backward_bytes(facts: ModelFacts, tokens: int) -> int:
    """Gradients alive in one layer's backward pass: of the three MLP tensors and of two residuals
    in bf16: T·(6·f + 4·h)."""
    return tokens * (6 * facts.mlp + 4 * facts.hidden)


def head_bytes(facts: ModelFacts, tokens: int) -> int:
    """The fused head: two fp32 tiles of logits, fp32 gradients of the hidden states (4·T·h) and of
    the head's weights (4·V·h). Full logits would be 4·T·V twice: 44.8e9 at 36,864 tokens."""
    tile = min(HEAD_TILE, tokens * facts.vocabulary)
    gradients = FP32 * facts.hidden * (tokens + facts.vocabulary)
    return 2 * FP32 * tile + gradients


def activation_bytes(
    facts: ModelFacts, tokens: int, *, checkpointing: bool = True, residual_bytes: int = BF16
) -> dict[str, int]:
    """The parts that grow with the micro-batch. Layers and head are not at work at once: the
    larger of the two counts. Without checkpointing every layer keeps what it saves."""
    layer = layer_bytes(facts, tokens)
    work = max(layer + backward_bytes(facts, tokens), head_bytes(facts, tokens))
    if checkpointing:
        kept = checkpoint_bytes(facts, tokens, residual_bytes)
        return {"checkpoints": kept, "one layer or head": work}
    head = head_bytes(facts, tokens) + backward_bytes(facts, tokens)
    return {"saved tensors": facts.layers * layer, "head": head}


def kv_room(
    facts: ModelFacts, memory: float, utilization: float, tensor_parallel: int, pipeline: int = 1
) -> int:
    """Bytes that vLLM has for keys and values on one GPU: its share of the memory, without bf16
    weights over tensor and pipeline parallel GPUs and its workspace; negative: it cannot start."""
    weights = BF16 * facts.parameters // (tensor_parallel * pipeline)
    return int(memory * utilization) - weights - VLLM_WORKSPACE


def answers_at_once(
    facts: ModelFacts, room: int, context: int, tensor_parallel: int, pipeline: int = 1
) -> int:
    """Sequences of `context` tokens whose keys and values fit into `room`; below 1 none does.
    Qwen3-8B at 36,864 tokens: 5.4e9 bytes each."""
    each = facts.kv_bytes_per_token(BF16, tensor_parallel) * context // pipeline
    return max(0, room) // max(1, each)
