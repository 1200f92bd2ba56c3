"""What the shipped profiles ask of GPUs, without one: the memory that is predicted against torch's
own count over fake tensors, FSDP2 over processes that are not there, trainers without weights; and
the switches that make updates faster: each reaches the trainer, or is refused with the reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from datasets import Dataset
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen3ForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer.utils import add_fused_lm_head

from klear.configs.loading import load_profile
from klear.configs.settings.base import key_of
from klear.configs.settings.training import RLSettings, SFTSettings, TrainRuntime
from klear.training import sft, sizing, speedups
from klear.training.launch.jobs import RLJob, SFTJob
from klear.training.models import exact_sums_and_outputs, load_tokenizer
from klear.training.render import ChatFormat
from klear.training.rl import train as rl
from klear.training.sizing import ModelFacts
from tests.cluster.fixed_answers import LengthJudge
from tests.training.test_sizing import QWEN3_8B, SMALL, config_of

FEW, MORE = 2, 3  # layers that are counted; all others are like them


@contextmanager
def processes(world: int) -> Iterator[DeviceMesh | None]:
    """This one and `world` − 1 that answer at once, with nothing; None: it is alone."""
    if world == 1:
        yield None
        return
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        distributed.destroy_process_group()


def sharded(model: Any, mesh: DeviceMesh) -> Any:
    """As accelerate shards it over these processes, in bf16."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    state = SimpleNamespace(fsdp_plugin=plugin)
    exact_sums_and_outputs(
        SimpleNamespace(is_fsdp_enabled=True, accelerator=SimpleNamespace(state=state))
    )
    options = {"mesh": mesh, "mp_policy": plugin.mixed_precision_policy}
    for layer in model.model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def peak(facts: ModelFacts, tokens: int, mesh: DeviceMesh | None) -> int:
    """The most bytes that tensors had in a step of two micro-batches, gradients of one before."""
    with FakeTensorMode():
        model: Any = Qwen3ForCausalLM(config_of(facts)).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        model = sharded(model, mesh) if mesh else model
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        tracker: Any = FSDPMemTracker(model, optimizer) if mesh else MemTracker()
        if not mesh:
            tracker.track_external(model, optimizer)
        with tracker:
            for last in (False, True) if mesh else (True,):
                tracker.reset_mod_stats()
                if mesh:
                    model.set_requires_gradient_sync(last)
                ids, places = torch.zeros(1, tokens).long(), torch.arange(tokens)[None]
                with torch.autocast("cpu", torch.bfloat16):
                    network = model(
                        input_ids=ids, labels=ids, position_ids=places, fused_lm_head=True
                    )
                network.log_probs.sum().backward()
        return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


@pytest.mark.parametrize(("profile", "stage"), [("single_gpu", "sft"), ("paper", "rl_math")])
def test_the_memory_that_a_topology_needs_is_predicted_within_15_percent(
    monkeypatch, profile, stage
):
    """Weights on one card, and on shards; other stages of either have the same formula."""
    for kernel in ("_forward_tile", "_backward_tile", "_addmm_fp32"):  # on a GPU they work in place
        monkeypatch.setattr(chunked_logprob, kernel, lambda *_, **__: None)
    pipeline = load_profile(profile)
    settings, topology = getattr(pipeline, stage), pipeline.topology
    facts = sizing.facts_of_base(pipeline.base)
    world = (topology.rl_gpus if stage != "sft" else 0) or topology.gpus
    tokens = settings.runtime.micro_batch_tokens
    with processes(world) as mesh:
        few, more = (peak(replace(facts, layers=n), tokens, mesh) for n in (FEW, MORE))
    counted = few + (facts.layers - FEW) * (more - few) / (MORE - FEW)
    training = sizing.Training(facts, world, sharded=world > 1)
    predicted = sum(training.parts(tokens, several=True).values())
    assert predicted == pytest.approx(counted, rel=0.15)


def test_fsdp2_leaves_each_gpu_its_share_of_the_papers_model_and_rounds_no_sum_and_no_output():
    world = 32
    with processes(world) as mesh, FakeTensorMode():
        assert mesh
        model = sharded(Qwen3ForCausalLM(config_of(QWEN3_8B)), mesh)
        held = [parameter.to_local() for parameter in model.parameters()]
    assert sum(map(torch.numel, held)) == QWEN3_8B.parameters / world
    assert {part.dtype for part in held} == {torch.float32}
    policy = model._get_fsdp_state()._mp_policy
    assert (policy.reduce_dtype, policy.output_dtype) == (torch.float32, None)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [  # sequences of a device in an update, updates of a rollout, updates
        ("rl_math", (16 * 8 // 16, 128 // 16, 100 * 8)),
        ("rl_code", (32 * 8 // 16, 128 // 32, 100 * 4)),
    ],
)
def test_a_trainer_of_rl_is_built_down_to_its_arguments(
    files, problems, tmp_path, monkeypatch, stage, expected
):
    settings = getattr(load_profile("paper"), stage).model_copy(update={"engine": "transformers"})
    reward = rl.JudgeReward(LengthJudge(settings.judge), problems)
    job = RLJob(out=tmp_path, checkpoint=tmp_path, problems=tmp_path, settings=settings)
    chat = ChatFormat.from_template(load_tokenizer(files["checkpoint"]))
    with rank_of(16, monkeypatch):
        trainer = rl.build_trainer(job, without_weights("paper"), chat, reward)
    args = trainer.args
    units = args.per_device_train_batch_size, args.steps_per_generation, args.max_steps
    assert units == expected
    assert (args.bf16, args.beta, args.epsilon_high, args.lm_weight) == (True, 0.0, 0.28, 0.1)


@pytest.mark.parametrize(("profile", "world"), [("single_gpu", 1), ("paper", 32)])
def test_a_trainer_of_sft_is_built_down_to_its_arguments(
    files, tmp_path, monkeypatch, profile, world
):
    """Enough rows for two steps: each is cut into as many micro-batches as it has tokens for."""
    settings = load_profile(profile).sft.model_copy(update={"epochs": 1.0})
    length, rows = settings.max_length, 2 * settings.batch_tokens // settings.max_length
    ids = [[1] * 8] * rows  # stand for rows of full length
    data = Dataset.from_dict({"input_ids": ids, "labels": ids, "length": [length] * rows,
                              "tokens": [length] * rows})  # fmt: skip
    job = SFTJob(out=tmp_path, base=tmp_path, examples=tmp_path, settings=settings)
    with rank_of(world, monkeypatch):
        trainer = sft.build_trainer(
            job, without_weights(profile), load_tokenizer(files["checkpoint"]), data
        )
    tokens = settings.batch_tokens // world
    each = length * max(1, settings.runtime.micro_batch_tokens // length)
    assert trainer.args.gradient_accumulation_steps == -(-tokens // each)
    assert (trainer.args.max_steps, trainer.args.learning_rate) == (2, 8e-5)


@contextmanager
def rank_of(world: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rank 0 of a training over so many processes."""
    with monkeypatch.context() as patch, processes(world):
        names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        for name, value in names.items() if world > 1 else ():
            patch.setenv(name, str(value))
        try:
            yield
        finally:  # accelerate keeps what it found for as long as the process lives
            AcceleratorState._reset_state(reset_partial_state=True)


def without_weights(profile: str) -> Any:
    """The model that the profile starts from, on the meta device, where a trainer leaves it."""
    base = load_profile(profile).base
    facts = sizing.facts_of_base(base)
    assert facts
    with torch.device("meta"):
        config = config_of(facts)
        config.max_position_embeddings = base.positions or 32_768
        model = Qwen3ForCausalLM(config)
    model.hf_device_map = {"": "meta"}
    return model


COMPILED: dict[str, Any] = {"torch_compile": True}
LIGER: dict[str, Any] = {"use_liger_kernel": True}
ALL: dict[str, Any] = COMPILED | LIGER | {"checkpoint_every": 4}


@pytest.fixture
def liger(monkeypatch):
    module = SimpleNamespace(MODEL_TYPE_TO_APPLY_LIGER_FN={"qwen3": print})
    monkeypatch.setattr(speedups, "import_module", lambda _: module)
    monkeypatch.setattr(speedups, "find_spec", lambda _: module)


def switched(**runtime: Any) -> Any:
    """The trainer after `speed_up`, as if it were on CUDA."""
    args = SimpleNamespace(device=torch.device("cuda"), gradient_checkpointing_kwargs=None)
    trainer: Any = SimpleNamespace(args=args, model=Qwen3ForCausalLM(config_of(SMALL)))
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer.is_fsdp_enabled, trainer.is_world_process_zero = False, lambda: True
    job: Any = SimpleNamespace(settings=SFTSettings(runtime=TrainRuntime(**runtime)))
    speedups.speed_up(trainer, job)
    return trainer


@pytest.mark.usefixtures("liger")
def test_every_switch_reaches_the_trainer_and_none_is_on_by_itself(capsys):
    plain, fast = switched(), switched(**ALL)
    assert (
        capsys.readouterr().out == "layers: compiled, with Liger's kernels, one in 4 recomputed\n"
    )
    assert set(vars(plain.args)) == {"device", "gradient_checkpointing_kwargs"}
    assert fast.args.use_liger_kernel
    assert not any(fast.args.liger_kernel_config.values()), "the head in tiles was replaced"
    assert (plain.args.gradient_checkpointing_kwargs, fast.args.gradient_checkpointing_kwargs) == (
        None, {"every_n_layers": 4})  # fmt: skip
    for trainer, compiled in ((plain, False), (fast, True)):
        for layer in trainer.model.model.layers:
            assert (layer._compiled_call_impl is not None) == compiled
    assert key_of(SFTSettings(runtime=TrainRuntime(**ALL))) == key_of(SFTSettings())


@pytest.mark.usefixtures("liger")
def test_a_switch_that_cannot_be_held_is_refused(monkeypatch):
    def why(device: str = "cuda", kind: str = "qwen3", rl: Any = "", sharded=False, **runtime: Any):
        s = TrainRuntime(**runtime)
        settings = RLSettings(engine=rl, runtime=s) if rl else SFTSettings(runtime=s)
        return speedups.refusal(settings, kind, device, sharded)

    assert not why(**ALL, attention="flex_attention")
    assert "torch_compile=true: it needs CUDA" in why("cpu", **COMPILED)
    assert "use_liger_kernel=true: it needs CUDA" in why("cpu", **LIGER)
    assert "no gradient on CPUs: take sdpa" in why("cpu", attention="flex_attention")
    assert "cuts every layer's graph" in why(attention="flash_attention_3", **COMPILED)
    assert "sharded" in why(sharded=True, **COMPILED)
    assert "the trainer samples" in why(rl="transformers", **COMPILED)
    assert "again after a rollout" in why(rl="vllm_colocate", checkpoint_every=2)
    assert "models of type gpt2" in why(kind="gpt2", **LIGER)
    monkeypatch.setattr(speedups, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="liger-kernel is not installed"):
        switched(**LIGER)


def test_compiled_layers_have_the_gradients_of_the_others_recomputed_or_not():
    """Of two layers one is recomputed."""
    plain, compiled = (Qwen3ForCausalLM(config_of(SMALL)).train() for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    speedups.compile_layers(compiled, backend="aot_eager")
    compiled.gradient_checkpointing_enable(every_n_layers=2)
    for length in (9, 12):
        for model in (plain, compiled):
            ids = torch.arange(2 * length).view(2, length) % SMALL.vocabulary
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)
