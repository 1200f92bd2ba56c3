"""What cannot divide or fit is refused before a launch, with the numbers and what to change; the
formulas are those of a real model, counted in torch."""

import json
from dataclasses import replace

import pytest
import torch
from accelerate import DistributedDataParallelKwargs
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM

from klear.configs.loading import load_profile
from klear.configs.settings.training import BaseModelSettings
from klear.training import sizing
from klear.training.sizing import DoesNotFit, Fit, ModelFacts, check, facts_of_model, refuse

QWEN3_8B = facts_of_model("Qwen/Qwen3-8B")
assert QWEN3_8B
SMALL = ModelFacts(2, 128, 384, 4, 2, 32, 64, tied=True)
WIDE = ModelFacts(3, 256, 512, 8, 4, 32, 64, tied=True)
TOKENS = 64


def config_of(facts: ModelFacts) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=facts.vocabulary,
        hidden_size=facts.hidden,
        intermediate_size=facts.mlp,
        num_hidden_layers=facts.layers,
        num_attention_heads=facts.heads,
        num_key_value_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        tie_word_embeddings=facts.tied,
    )


def saved_bytes(facts: ModelFacts, *, checkpointing: bool) -> int:
    """Bytes of the tensors that the decoder keeps for its backward pass, each storage once."""
    model = Qwen3ForCausalLM(config_of(facts)).train().bfloat16()
    if checkpointing:
        model.gradient_checkpointing_enable()
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


@pytest.mark.parametrize("facts", [SMALL, WIDE])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_layer_saves_what_the_formula_says_and_its_input_alone_when_checkpointed(
    facts, checkpointing
):
    deeper = replace(facts, layers=facts.layers + 2)
    both = (saved_bytes(f, checkpointing=checkpointing) for f in (facts, deeper))
    measured = -(next(both) - next(both)) / 2
    if checkpointing:
        assert sizing.activation_bytes(facts, TOKENS)["checkpoints"] == facts.layers * measured
    else:
        assert sizing.layer_bytes(facts, TOKENS) == pytest.approx(measured, rel=0.02)


def test_the_state_of_a_step_has_these_bytes_and_ddp_its_buckets_beside(tmp_path):
    """Counted in torch's own reducer, with the defaults that accelerate starts it with."""
    model = Qwen3ForCausalLM(config_of(SMALL))
    optimizer = torch.optim.AdamW(model.parameters())
    meeting = f"file://{tmp_path / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(model, **DistributedDataParallelKwargs().to_kwargs())
        wrapped(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
        buckets = wrapped.reducer._get_zeros_like_grad_buckets()
        held = sum(bucket.buffer().nbytes for bucket in buckets)
    finally:
        torch.distributed.destroy_process_group()
    optimizer.step()
    states = [t for s in optimizer.state.values() for t in s.values() if t.numel() > 1]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    own = {g.untyped_storage().data_ptr(): g.untyped_storage().nbytes() for g in gradients}

    assert sizing.state_bytes(SMALL, world=2, sharded=False) == {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(own.values()),  # not views of a bucket
        "optimizer": sum(t.nbytes for t in states),
        "DDP buckets": held,
    }


def test_qwen3_8b_is_counted_by_hand():
    assert QWEN3_8B.layer_parameters == 192_946_432
    assert QWEN3_8B.parameters == 36 * 192_946_432 + 2 * 151_936 * 4096 + 4096 == 8_190_735_360
    assert QWEN3_8B.kv_bytes_per_token() == 2 * 36 * 8 * 128 * 2 == 147_456
    assert QWEN3_8B.kv_bytes_per_token(tensor_parallel=16) == 147_456 // 8  # a head is not cut
    tokens = 36_864
    kept = sizing.activation_bytes(QWEN3_8B, tokens, checkpointing=False)
    assert kept["saved tensors"] == 36 * sizing.layer_bytes(QWEN3_8B, tokens)
    head = 2 * 4 * 4096 * 32_768 + 4 * 4096 * (tokens + 151_936)
    assert kept["head"] == head + tokens * (6 * 12288 + 4 * 4096)
    assert head < 2 * 4 * tokens * 151_936 / 10


@pytest.mark.parametrize(
    ("name", "billions"), [("0.6B", 0.6), ("1.7B", 1.7), ("4B", 4.0), ("14B", 14.8), ("32B", 32.8)]
)
def test_the_family_has_the_sizes_of_its_model_cards(name, billions):
    assert round(facts_of_model(f"Qwen/Qwen3-{name}").parameters / 1e9, 1) == billions


@pytest.mark.parametrize("tied", [True, False])
def test_a_local_folder_tells_by_its_config_and_counts_as_the_real_model(tmp_path, tied):
    facts = replace(SMALL, vocabulary=400, tied=tied)
    text = config_of(facts).to_json_string(use_diff=False)
    (tmp_path / "config.json").write_text(text)
    assert sizing.facts_of_model(str(tmp_path)) == facts
    assert facts.parameters == Qwen3ForCausalLM(config_of(facts)).num_parameters()
    told = {n: v for n, v in json.loads(text).items() if n not in ("head_dim", "rope_parameters")}
    (tmp_path / "config.json").write_text(json.dumps(told))
    assert sizing.facts_of_model(str(tmp_path)) == facts


def test_a_random_base_has_a_padded_vocabulary_and_a_pretrained_one_its_name():
    facts = sizing.facts_of_base(BaseModelSettings(kind="random", vocabulary=401))
    assert facts.vocabulary == 416
    assert sizing.facts_of_base(BaseModelSettings()) == QWEN3_8B


def fit_of(stage: str, *overrides: str, profile: str = "paper") -> Fit:
    return next(f for f in check(load_profile(profile, overrides)) if f.stage == stage)


@pytest.mark.parametrize("profile", ["tiny", "single_gpu", "paper", "replay"])
def test_the_shipped_profiles_run_on_the_machines_that_they_name(profile):
    refuse(load_profile(profile))


def test_every_gpu_stage_of_the_paper_shows_its_arithmetic():
    fits = {f.stage: f for f in check(load_profile("paper"))}
    assert list(fits) == ["rate", "sft", "rl_math", "rl_code", "evaluate"]
    assert "weights 1.0 + gradients 1.0 + optimizer 1.9" in fits["sft"].lines[0]
    assert "147,456 B × 36,864 tokens = 5.1 GiB an answer" in fits["rate"].lines[0]


@pytest.mark.parametrize(
    ("stage", "overrides", "words"),
    [
        ("rl_math", ["topology.rl_gpus=0"], "16 prompts a mini-batch cannot be shared by 32 GPUs"),
        ("sft", ["topology.nodes=3"], "128 rows a step are no multiple of 24 GPUs"),
        ("sft", ["sft.optimizer=muon"], "optimizer=muon needs whole matrices"),
        ("sft", ["sft.runtime.gradient_checkpointing=false"], "gradient_checkpointing=true"),
        ("sft", ["topology.sharding=none"], "topology.sharding=full"),
        ("sft", ["topology.gpu=L40S", "sft.runtime.micro_batch_tokens=147456"],
         "sft.runtime.micro_batch_tokens=32768"),
        ("rl_math", ["rl_math.engine_runtime.gpu_memory_utilization=0.95"],
         "rl_math.engine_runtime.gpu_memory_utilization=0.85 or less"),
        ("rl_math", ["rl_math.engine_runtime.tensor_parallel=3"], "no multiple"),
        ("evaluate", ["evaluate.engine_runtime.tensor_parallel=5"], "32 attention heads"),
        ("rate", ["rate.engine.runtime.gpu_memory_utilization=0.25"], "no answer fits"),
    ],
)  # fmt: skip
def test_each_problem_names_its_cure(stage, overrides, words):
    problems = fit_of(stage, *overrides).problems
    assert any(words in p for p in problems), problems
    with pytest.raises(DoesNotFit, match=stage):
        refuse(load_profile("paper", overrides))


def test_only_the_stages_that_will_run_are_refused():
    settings = load_profile("paper", ["topology.rl_gpus=0"])
    refuse(settings, until="sft")
    with pytest.raises(DoesNotFit, match="rl_math"):
        refuse(settings, until="rl_math")


def test_a_colocated_vllm_has_room_for_the_answers_of_rl_whatever_its_own_limit():
    shorter = "rl_math.engine_runtime.max_model_len=1000"
    assert fit_of("rl_math", shorter).lines == fit_of("rl_math").lines


def test_a_model_of_unknown_size_is_said_to_be_unchecked():
    last = check(load_profile("paper", ["base.model=somebody/unknown"]))[-1]
    told = "the sizes of somebody/unknown are not known here: its memory is not checked"
    assert (last.lines, last.problems) == ([told], [])


def test_gradients_wait_unsharded_only_where_micro_batches_do():
    assert "unreduced gradients 30.5" in fit_of("sft").lines[0]  # 4 bytes × 8.19e9
    one_each = fit_of("sft", "sft.batch_tokens=1048576").lines[0]  # 32 rows on 32 GPUs
    assert "unreduced" not in one_each
