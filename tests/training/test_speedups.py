"""Switches that make updates faster: each reaches the trainer, or is refused with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from klear.configs.settings.base import key_of
from klear.configs.settings.training import RLSettings, SFTSettings, TrainRuntime
from klear.training import speedups
from tests.training.test_sizing import SMALL, config_of

COMPILED: dict[str, Any] = {"torch_compile": True}
LIGER: dict[str, Any] = {"use_liger_kernel": True}
ALL: dict[str, Any] = COMPILED | LIGER | {"checkpoint_every": 4}


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("every", [1, 2])
def test_compiled_layers_have_the_gradients_of_the_others_recomputed_or_not(every):
    plain, compiled = (Qwen3ForCausalLM(config_of(SMALL)).train() for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    speedups.compile_layers(compiled, backend="aot_eager")
    compiled.gradient_checkpointing_enable(every_n_layers=every)
    for length in (9, 12):
        for model in (plain, compiled):
            ids = torch.arange(2 * length).view(2, length) % SMALL.vocabulary
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)
