"""What training and generation need of a GPU's memory, bytes, as plain formulas.

N parameters, W training processes (one a GPU), T tokens of a micro-batch, h hidden size, f MLP
size, L layers, H query and KV key-value heads of d, V words. Sources: the mixed-precision state of
ZeRO (Rajbhandari et al. 2020, §3.1); gradient checkpointing (Chen et al. 2016); saved tensors of a
layer counted in transformers' Qwen3 (tests/training/test_memory.py counts them again).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from training.sizing.model_facts import ModelFacts

GIB = 1024**3
BF16, FP32 = 2, 4
HEAD_TILE = 4_096 * 32_768
"""Logits that the fused head holds at a time: tokens × words of TRL's chunked kernel."""
CUDA_CONTEXT = int(1.0 * GIB)
"""CUDA context, NCCL buffers and allocator slack of a training process (an allowance)."""
VLLM_WORKSPACE = int(2.0 * GIB)
"""Activations and CUDA graphs of vLLM (an allowance; vLLM profiles the exact figure)."""
VLLM_ASLEEP = int(1.0 * GIB)
"""What a sleeping vLLM keeps beside a colocated trainer (an allowance)."""

Optimizer = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Memory:
    """Named parts of one GPU's memory in bytes, against what it has."""

    parts: Mapping[str, int]
    limit: int

    @property
    def fits(self) -> bool:
        return sum(self.parts.values()) <= self.limit

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {gib(size)}" for name, size in self.parts.items())
        total, sign = gib(sum(self.parts.values())), "≤" if self.fits else ">"
        return f"{terms} = {total} {sign} {gib(self.limit)} GiB"


def gib(size: float) -> str:
    """GiB with one digit after the point; three where there is little."""
    value = size / GIB
    return f"{value:.1f}" if value >= 1 or not value else f"{value:.3f}"


def whole_bytes(facts: ModelFacts) -> int:
    """One fp32 copy of all parameters, 4·N: weights or gradients that are not sharded. FSDP2 keeps
    such gradients between micro-batches where reduction waits for the last one (torch,
    `set_requires_gradient_sync`); DDP keeps buckets of them beside the gradients themselves
    (`gradient_as_bucket_view=False`, which accelerate leaves as it is)."""
    return FP32 * facts.parameters


def state_bytes(facts: ModelFacts, world: int, optimizer: Optimizer = "adamw") -> dict[str, int]:
    """fp32 weights 4·N, fp32 gradients 4·N and the optimizer, each divided by W (FSDP2 over W
    GPUs; W = 1: on one GPU, or a copy on each). AdamW keeps two fp32 states of every
    parameter, 8·N; Muon one of every matrix inside the decoder. Qwen3-8B on 32 GPUs: 4.1e9."""
    saved = FP32 * facts.matrix_parameters if optimizer == "muon" else 0
    share = {
        "weights": whole_bytes(facts),
        "gradients": whole_bytes(facts),
        "optimizer": 2 * whole_bytes(facts) - saved,
    }
    return {name: -(-size // world) for name, size in share.items()}


def gathered_bytes(facts: ModelFacts) -> int:
    """bf16 copies while FSDP2 computes: two layers (one in use, one fetched ahead) and one layer's
    gradients, embedding and head with their gradients: 2·3·P_layer + 2·2·P_outer."""
    return BF16 * (3 * facts.layer_parameters + 2 * facts.outer_parameters)


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


def head_bytes(facts: ModelFacts, tokens: int) -> int:
    """The fused head: two fp32 tiles of logits, fp32 gradients of the hidden states (4·T·h) and of
    the head's weights (4·V·h). Full logits would be 4·T·V twice: 44.8e9 at 36,864 tokens."""
    tile = min(HEAD_TILE, tokens * facts.vocabulary)
    return 2 * FP32 * tile + FP32 * facts.hidden * (tokens + facts.vocabulary)


def activation_bytes(
    facts: ModelFacts, tokens: int, *, checkpointing: bool = True, residual_bytes: int = BF16
) -> dict[str, int]:
    """The parts that grow with the micro-batch. Layers and head are not at work at once: the
    larger of the two counts. Without checkpointing every layer keeps what it saves. In a layer's
    backward pass gradients of three MLP tensors and two residuals are alive, T·(6·f + 4·h)."""
    layer, head = layer_bytes(facts, tokens), head_bytes(facts, tokens)
    backward = tokens * (6 * facts.mlp + 4 * facts.hidden)
    if checkpointing:
        kept = checkpoint_bytes(facts, tokens, residual_bytes)
        return {"checkpoints": kept, "one layer or head": max(layer + backward, head)}
    return {"saved tensors": facts.layers * layer, "head": head + backward}


def kv_room(
    facts: ModelFacts, memory: float, utilization: float, tensor_parallel: int, pipeline: int = 1
) -> int:
    """Bytes that vLLM has for keys and values on one GPU: its share of the memory, without bf16
    weights over tensor and pipeline parallel GPUs and its workspace; negative: it cannot start."""
    weights = BF16 * facts.parameters // (tensor_parallel * pipeline)
    return int(memory * utilization) - weights - VLLM_WORKSPACE
