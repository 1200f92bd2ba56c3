"""The memory formulas: by hand for Qwen3-8B, and against what a small model really keeps."""

import pytest
import torch
from accelerate import DistributedDataParallelKwargs
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM

from training.sft import MuonAndAdamW
from training.sizing import memory
from training.sizing.model_facts import KNOWN, ModelFacts

QWEN3_8B = KNOWN["Qwen/Qwen3-8B"]
SMALL = ModelFacts(2, 128, 384, 4, 2, 32, 64, tied=True)
WIDE = ModelFacts(3, 256, 512, 8, 4, 32, 64, tied=True)
TOKENS = 64


def model_of(facts: ModelFacts, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=facts.vocabulary,
        hidden_size=facts.hidden,
        intermediate_size=facts.mlp,
        num_hidden_layers=facts.layers,
        num_attention_heads=facts.heads,
        num_key_value_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        tie_word_embeddings=facts.tied,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).train()
    model.to(dtype)  # type: ignore[arg-type]
    return model


def saved_bytes(model: Qwen3ForCausalLM) -> int:
    """Bytes of the tensors that the decoder keeps for its backward pass, each storage once."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model.model(input_ids=torch.arange(TOKENS)[None] % 64, use_cache=False)
    return sum(s.nbytes() for s in found.values())


def grown(facts: ModelFacts, more_layers: int, *, checkpointing: bool) -> float:
    """Saved bytes of one layer: the difference between models of unequal depth."""
    sizes = []
    for layers in (facts.layers, facts.layers + more_layers):
        deep = ModelFacts(layers, *list(vars(facts).values())[1:])
        model = model_of(deep, torch.bfloat16)
        if checkpointing:
            model.gradient_checkpointing_enable()
        sizes.append(saved_bytes(model))
    return (sizes[1] - sizes[0]) / more_layers


@pytest.mark.parametrize("facts", [SMALL, WIDE])
def test_a_layer_saves_what_the_formula_says(facts):
    measured = grown(facts, 1, checkpointing=False)
    assert memory.layer_bytes(facts, TOKENS) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("facts", [SMALL, WIDE])
def test_a_checkpointed_layer_keeps_its_input_alone(facts):
    measured = grown(facts, 2, checkpointing=True)
    assert memory.checkpoint_bytes(facts, TOKENS) == facts.layers * measured


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_state_of_a_step_has_these_bytes_exactly(optimizer):
    model = model_of(SMALL)
    if optimizer == "adamw":
        made = torch.optim.AdamW(model.parameters())
    else:
        made = MuonAndAdamW(model, muon_lr=0.01, adamw_lr=0.01, weight_decay=0.0)
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    made.step()
    parts = getattr(made, "parts", [made])
    states = [t for part in parts for s in part.state.values() for t in s.values()]
    counted = sum(t.nbytes for t in states if torch.is_tensor(t) and t.numel() > 1)

    expected = memory.state_bytes(SMALL, 1, optimizer)
    assert expected["optimizer"] == counted
    assert expected["weights"] == sum(p.nbytes for p in model.parameters())
    assert expected["gradients"] == sum(
        p.grad.nbytes for p in model.parameters() if p.grad is not None
    )


def test_ddp_keeps_its_buckets_beside_the_gradients(tmp_path):
    """Counted in torch's own reducer, with the defaults that accelerate starts it with."""
    model = model_of(SMALL)
    meeting = f"file://{tmp_path / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(model, **DistributedDataParallelKwargs().to_kwargs())
        wrapped(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
        buckets = wrapped.reducer._get_zeros_like_grad_buckets()
        held = sum(bucket.buffer().nbytes for bucket in buckets)
    finally:
        torch.distributed.destroy_process_group()

    assert held == memory.whole_bytes(SMALL)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    own = {g.untyped_storage().data_ptr(): g.untyped_storage().nbytes() for g in gradients}
    assert sum(own.values()) == memory.state_bytes(SMALL, 1)["gradients"]  # not views of a bucket


def test_activations_at_32k_by_hand():
    tokens = 36_864
    layer = tokens * (16 * 4096 + 8 * 12288 + (10 * 128 + 8) * 32 + (10 * 128 + 4) * 8 + 8)
    assert memory.layer_bytes(QWEN3_8B, tokens) == layer
    kept = memory.activation_bytes(QWEN3_8B, tokens)
    assert kept["checkpoints"] == 36 * tokens * 4096 * 2
    assert kept["one layer or head"] == layer + tokens * (6 * 12288 + 4 * 4096)
    everything = memory.activation_bytes(QWEN3_8B, tokens, checkpointing=False)
    assert everything["saved tensors"] == 36 * layer


def test_the_fused_head_needs_far_less_than_full_logits():
    tokens = 36_864
    by_hand = 2 * 4 * 4096 * 32_768 + 4 * 4096 * (tokens + 151_936)
    assert memory.head_bytes(QWEN3_8B, tokens) == by_hand
    assert by_hand < 2 * 4 * tokens * 151_936 / 10
    assert memory.head_bytes(SMALL, 8) == 2 * 4 * 8 * 64 + 4 * 128 * (8 + 64)
