"""What one training GPU of a topology holds, part by part, for the ways to share a model."""

from configs.topology import Topology
from configs.training_stages import TrainRuntime
from training import memory
from training.memory import GIB
from training.model_facts import ModelFacts


def training_parts(
    facts: ModelFacts,
    r: TrainRuntime,
    t: Topology,
    world: int,
    tokens: int,
    optimizer: memory.Optimizer,
    *,
    lora: bool,
) -> dict[str, int]:
    """Bytes by name while `tokens` are trained on at once.

    With LoRA the frozen weights are bf16 and whole on each GPU; the adapters are not counted.
    """
    in_shards = sharded(t, world, lora=lora)
    if lora:
        parts = {"frozen weights": memory.BF16 * facts.parameters}
    else:
        parts = state_parts(facts, t, world, optimizer)
        copies = memory.gathered_bytes(facts) if in_shards else memory.autocast_bytes(facts)
        parts["bf16 copies"] = copies
    residual = memory.BF16 if in_shards or lora else memory.FP32
    parts |= memory.activation_bytes(
        facts, tokens, checkpointing=r.gradient_checkpointing, residual_bytes=residual
    )
    return {**parts, "CUDA": memory.CUDA_CONTEXT}


def state_parts(
    facts: ModelFacts, t: Topology, world: int, optimizer: memory.Optimizer = "adamw"
) -> dict[str, int]:
    """Bytes by name that stay from step to step when all weights are trained."""
    if world == 1:
        return memory.state_bytes(facts, 1, optimizer)
    if t.sharding == "none":
        whole = memory.state_bytes(facts, 1, optimizer)
        return {**whole, "DDP buckets": memory.bucket_bytes(facts)}
    parts = memory.state_bytes(facts, world, optimizer)
    return parts if t.sharding == "full" else {**parts, "reduction": memory.zero3_bucket_bytes()}


def sharded(t: Topology, world: int, *, lora: bool) -> bool:
    """Whether no GPU holds the whole state."""
    return t.sharding != "none" and world > 1 and not lora


def waits(t: Topology, world: int, *, lora: bool) -> bool:
    """Whether gradients stay whole until the last micro-batch: FSDP2's do, ZeRO-3 keeps none."""
    return t.sharding == "full" and sharded(t, world, lora=lora)


def limit_of(t: Topology) -> int:
    """Bytes of one GPU."""
    return int(t.card.memory_gib * GIB)
