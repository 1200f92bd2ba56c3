"""TRL's private methods are those that GPPOTrainer was written against."""

import pytest
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.grpo_trainer import GRPOTrainer

from training.gppo_trainer import GPPOTrainer
from training.trl_pins import (
    BATCH_KEYS,
    CLIENT_SIGNATURES,
    SAMPLER_SIGNATURES,
    SIGNATURES,
    signature_of,
)
from training.vllm_on_cpu import GenerationOnCPU


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_the_private_methods_of_trl_are_those_of_the_pinned_version(name):
    assert signature_of(getattr(GRPOTrainer, name)) == SIGNATURES[name], (
        f"GRPOTrainer.{name} changed with this version of trl or transformers. GPPOTrainer "
        "replaces or calls it: read the method, adapt training/gppo_trainer.py or "
        "training/gppo_rollouts.py, then update training/trl_pins.py."
    )


@pytest.mark.parametrize(
    ("owner", "pinned"), [(VLLMGeneration, SAMPLER_SIGNATURES), (VLLMClient, CLIENT_SIGNATURES)]
)
def test_the_methods_of_trls_sampler_are_those_of_the_pinned_version(owner, pinned):
    found = {name: signature_of(getattr(owner, name)) for name in pinned}
    assert found == pinned, (
        f"{owner.__name__} changed with this version of trl: read what changed, adapt "
        "training/vllm_on_cpu.py, then update training/trl_pins.py."
    )


def test_every_private_method_that_is_replaced_is_pinned():
    replaced = {n for n in vars(GenerationOnCPU) if hasattr(VLLMGeneration, n)}
    assert {n for n in replaced if not n.startswith("__")} <= set(SAMPLER_SIGNATURES)
    own = {n for c in GPPOTrainer.__mro__[:2] for n in vars(c)}
    replaced = {n for n in own if callable(getattr(GRPOTrainer, n, None)) and n != "__init__"}
    assert {n for n in replaced if not n.startswith("__")} <= set(SIGNATURES)


def test_the_batch_of_trl_and_the_fused_head_are_what_the_trainer_reads(make_trainer, monkeypatch):
    keys = []
    original = GPPOTrainer._generate_and_score_completions

    def spy(self, inputs):
        keys.append(original(self, inputs))
        return keys[-1]

    monkeypatch.setattr(GPPOTrainer, "_generate_and_score_completions", spy)
    trainer = make_trainer(lambda completions, **_: [float(i % 2) for i in range(len(completions))])
    trainer.train()
    assert set(BATCH_KEYS) <= set(keys[0])
    ids = keys[0]["prompt_ids"]
    output = trainer.model(input_ids=ids, labels=ids, fused_lm_head=True)
    assert output.log_probs.shape == output.entropy.shape == (len(ids), ids.shape[1] - 1)
