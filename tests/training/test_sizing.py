"""What cannot divide or fit is refused before a launch; the formulas are those of a real model."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import DistributedDataParallelKwargs
from hypothesis import given
from hypothesis import strategies as st
from peft import get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3Config, Qwen3ForCausalLM

from klear.configs.loading import ConfigError, load_profile
from klear.configs.settings.training import BaseModelSettings, LoraSettings, RLSettings
from klear.training import packing, sizing
from klear.training.models import adapters
from klear.training.rl.rollout import Rollout, fair_quotas
from klear.training.rl.rollout import plan_updates as plan_of
from klear.training.sizing import (
    DoesNotFit,
    Fit,
    ModelFacts,
    Training,
    check,
    facts_of_model,
    refuse,
)
from tests.training.conftest import ALONE

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


def saved_bytes(
    facts: ModelFacts, every: int | None = None, lora: LoraSettings | None = None
) -> int:
    """Bytes of the tensors that the decoder keeps for its backward pass, each storage once."""
    model: Any = Qwen3ForCausalLM(config_of(facts)).train().bfloat16()
    if every:
        model.gradient_checkpointing_enable(every_n_layers=every)
    if lora:
        model = get_peft_model(model, adapters(model, lora))
        model.enable_input_require_grads()
        model = model.get_base_model()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=lora is not None)
    with autocast, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model.model(input_ids=torch.arange(TOKENS)[None] % 64, use_cache=False)
    return sum(s.nbytes() for s in storages.values())


@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("facts", [SMALL, WIDE])
def test_layers_save_what_the_formula_says_and_their_input_alone_where_they_are_recomputed(
    facts, every
):
    """Of two layers more, of which none, both, or one is recomputed."""
    predicted, measured = [], []
    for model in (facts, replace(facts, layers=facts.layers + 2)):
        options = {"checkpointing": every is not None, "every": every or 1}
        parts = Training(model, **options).activations(TOKENS)
        predicted.append(parts.get("checkpoints", 0) + parts.get("saved tensors", 0))
        measured.append(saved_bytes(model, every))
    exact = 0.0 if every == 1 else 0.02
    assert predicted[1] - predicted[0] == pytest.approx(measured[1] - measured[0], rel=exact)


@pytest.mark.parametrize("lora", [LoraSettings(rank=8), LoraSettings(targets=("q_proj", "v_proj"))])
def test_adapters_save_their_inputs_and_are_all_that_has_a_state(lora):
    deeper = replace(WIDE, layers=WIDE.layers + 2)
    both = (saved_bytes(f, lora=lora) for f in (WIDE, deeper))
    measured = -(next(both) - next(both)) / 2
    copies = 2 * WIDE.adapter_parameters(lora) / WIDE.layers  # in bf16, counted apart
    assert Training(WIDE, lora=lora).layer(TOKENS) == pytest.approx(measured - copies, rel=0.02)
    model: Any = Qwen3ForCausalLM(config_of(WIDE)).bfloat16()
    tuned = get_peft_model(model, adapters(model, lora))
    trained = [p for p in tuned.parameters() if p.requires_grad]
    state = Training(WIDE, lora=lora).state()
    assert state.pop("frozen weights") == 2 * WIDE.parameters
    assert state["adapters"] == sum(p.nbytes for p in trained)
    assert sum(state.values()) == 4 * state["adapters"]


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
    assert Training(SMALL, world=2, sharded=False).state() == {
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
    kept = Training(QWEN3_8B, checkpointing=False).activations(tokens)
    assert kept["saved tensors"] == 36 * Training(QWEN3_8B).layer(tokens)
    head = 2 * 4 * 4096 * 32_768 + 4 * 4096 * (tokens + 151_936)
    assert kept["head"] == head + tokens * (6 * 12288 + 4 * 4096)
    assert head < 2 * 4 * tokens * 151_936 / 10


def test_the_family_has_the_sizes_of_its_model_cards():
    for name, billions in {"0.6": 0.6, "1.7": 1.7, "4": 4.0, "14": 14.8, "32": 32.8}.items():
        assert round(facts_of_model(f"Qwen/Qwen3-{name}B").parameters / 1e9, 1) == billions


@pytest.mark.parametrize("tied", [True, False])
def test_a_local_folder_tells_by_its_config_and_counts_as_the_real_model(tmp_path, tied):
    facts = replace(SMALL, vocabulary=400, tied=tied)
    text = config_of(facts).to_json_string(use_diff=False)
    (tmp_path / "config.json").write_text(text)
    assert sizing.facts_of_model(str(tmp_path)) == facts
    assert facts.parameters == Qwen3ForCausalLM(config_of(facts)).num_parameters()
    fields = {n: v for n, v in json.loads(text).items() if n not in ("head_dim", "rope_parameters")}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert sizing.facts_of_model(str(tmp_path)) == facts


def test_a_random_base_has_a_padded_vocabulary_and_a_pretrained_one_its_name():
    facts = sizing.facts_of_base(BaseModelSettings(kind="random", vocabulary=401))
    assert facts.vocabulary == 416
    assert sizing.facts_of_base(BaseModelSettings()) == QWEN3_8B


def fit_of(stage: str, *overrides: str, profile: str = "paper") -> Fit:
    return next(f for f in check(load_profile(profile, overrides)) if f.stage == stage)


@pytest.mark.parametrize("profile", ["single_gpu", "single_gpu_8b", "paper"])
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
    refuse(settings, ["sft", "evaluate_sft"])
    with pytest.raises(DoesNotFit, match="rl_math"):
        refuse(settings, ["sft", "rl_math"])


def test_what_rl_does_not_read_of_its_engines_runtime_is_refused():
    with pytest.raises(
        ConfigError, match=r"RL reads batch_size, gpu_memory_utilization, tensor_parallel"
    ):
        load_profile("paper", ["rl_math.engine_runtime.max_model_len=1000"])


def test_a_model_of_unknown_size_is_said_to_be_unchecked():
    last = check(load_profile("paper", ["base.model=somebody/unknown"]))[-1]
    message = "the sizes of somebody/unknown are not known here: its memory is not checked"
    assert (last.lines, last.problems) == ([message], [])


def test_gradients_wait_unsharded_only_where_micro_batches_do():
    assert "unreduced gradients 30.5" in fit_of("sft").lines[0]  # 4 bytes × 8.19e9
    one_each = fit_of("sft", "sft.batch_tokens=1048576").lines[0]  # 32 rows on 32 GPUs
    assert "unreduced" not in one_each


LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 4))
def test_a_plan_visits_every_sequence_every_epoch_in_a_multiple_of_batches(
    lengths, epochs, multiple
):
    plan = packing.epoch_batches(lengths, 60, epochs, seed=1, multiple=multiple)
    assert len(plan) % multiple == 0
    seen = Counter(i for batch in plan for i in batch)
    assert set(seen) == set(range(len(lengths)))
    assert min(seen.values()) >= epochs


def order(**changes):
    numbers = {"prompts_per_step": 2, "rollouts": 3, "updates": 2, "steps": 4, "seed": 0}
    return packing.prompt_order(5, **(numbers | changes))


def test_prompts_run_on_over_epochs_without_a_break():
    prompts = order(steps=5)[::3]
    stream = [p for s in range(5) for p in prompts[s * 4 : s * 4 + 2]]
    assert sorted(stream[:5]) == sorted(stream[5:]) == list(range(5))
    assert stream[:5] != stream[5:]
    assert order(steps=5, shuffle=False)[::3][:2] == [0, 1]


@given(LENGTHS, st.integers(1, 60), st.integers(1, 4), st.integers(1, 3))
def test_a_step_is_cut_into_as_many_micro_batches_as_every_other(
    lengths, budget, processes, epochs
):
    steps = packing.optimizer_steps(lengths, 120, 50, epochs, seed=0)
    plan, each = packing.cut_steps(steps, lengths, budget, processes)
    width = each * processes
    assert len(plan) == len(steps) * width
    for n, step in enumerate(steps):
        cut = plan[n * width : (n + 1) * width]
        assert sorted(i for batch in cut for i in batch) == sorted(step)
        for batch in cut:
            assert len(batch) < 2 or len(batch) * max(lengths[i] for i in batch) <= budget


@pytest.mark.parametrize(
    ("settings", "warmup"), [(RLSettings(), 80), (RLSettings(mini_batch_prompts=32), 40)]
)
def test_the_papers_batch_fits_every_number_of_processes(settings, warmup):
    for world, oversampling in product([1, 2, 4, 8, 16], [1, 2]):
        more = settings.model_copy(update={"oversampling": oversampling})
        units = packing.rl_schedule(more, world)
        trained = units["per_device_train_batch_size"] * world // oversampling
        assert trained == settings.mini_batch_prompts * 8
        assert trained * units["steps_per_generation"] == 128 * 8
        assert units["max_steps"] == 100 * units["steps_per_generation"]
        assert units["warmup_steps"] == warmup


def test_more_processes_than_prompts_in_a_mini_batch_are_refused_with_what_would_divide():
    with pytest.raises(ValueError, match=r"16 is no multiple of .* = 32"):
        packing.rl_schedule(RLSettings(), 32)


PAIRS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=2, max_size=12)


def rollout(lengths):
    tokens, start = [], 0
    for prompt, answer in lengths:
        tokens.append(torch.arange(start, start + prompt + answer))
        start += 100
    n = len(lengths)
    return Rollout(
        tokens,
        [p for p, _ in lengths],
        advantage=torch.arange(n) + 1.0,
        positive=torch.arange(n) % 2 == 0,
        keep=torch.ones(n, dtype=torch.bool),
        sampling_logp=[-torch.arange(1.0, a + 1) for _, a in lengths],
    )


def plan_updates(rollout, packed=False, **changes):
    cut = {"num_generations": 1, "mini_batch_groups": 100, "updates_a_pass": 1,
           "num_iterations": 1, "micro_batch_tokens": 20}  # fmt: skip
    args: Any = SimpleNamespace(**(cut | changes))
    return plan_of(rollout, random.Random(0), ALONE, args, packed)


@given(PAIRS, st.booleans())
def test_every_answer_token_is_scored_once_with_its_own_row(lengths, packed):
    (update,) = plan_updates(rollout(lengths), packed=packed)
    seen = {}
    for micro in update.micro_batches:
        answers = micro.input_ids[:, -micro.answers :]
        full = torch.ones_like(answers)
        advantage = (micro.advantage * full)[micro.mask]
        correct = (micro.positive * full)[micro.mask]
        logps = micro.sampling_logp[micro.mask]
        rows = zip(answers[micro.mask].tolist(), advantage, correct, logps, strict=True)
        for token, a, p, logp in rows:
            assert token not in seen
            seen[token] = (float(a), bool(p), float(logp))
        scored = micro.labels[micro.labels != -100]
        assert scored.tolist() == answers[micro.mask].tolist()
    for i, (prompt, answer) in enumerate(lengths):
        for j in range(answer):
            assert seen.pop(100 * i + prompt + j) == (i + 1, i % 2 == 0, -(j + 1))
    assert not seen
    assert update.policy_tokens == sum(a for _, a in lengths)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(1, 60))
def test_quotas_keep_the_batch_full_and_the_processes_even(counts, most):
    quotas = fair_quotas(counts, most)
    assert sum(quotas) == min(sum(counts), most)
    assert all(0 <= q <= c for q, c in zip(quotas, counts, strict=True))
    cut = [q for q, c in zip(quotas, counts, strict=True) if q < c]
    assert not cut or max(quotas) - min(cut) <= 1
