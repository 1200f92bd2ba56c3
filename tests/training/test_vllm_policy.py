"""vLLM in RL: no rollout of a server that was started again is trained on, and without CUDA its
head is packed with the policy's weights (what it then samples: test_sigkill)."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from klear.training.rl.vllm_on_cpu import pack_tied_head


@pytest.mark.parametrize("starts", ["aab", "ab"])
def test_a_server_that_was_started_again_ends_the_stage(make_trainer, monkeypatch, starts):
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda *_: "answers")
    trainer, left = make_trainer(len), list(starts)
    client = SimpleNamespace(
        base_url="http://gpu-9:8000", get_server_info=lambda: {"instance_id": left.pop(0)}
    )
    trainer.vllm_generation = SimpleNamespace(vllm_client=client)
    if starts == "aab":
        assert trainer._generate_single_turn() == "answers"
    with pytest.raises(RuntimeError, match=r"gpu-9:8000 was started again .* run again"):
        trainer._generate_single_turn()


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_packed_anew_and_no_other(tied) -> None:
    packed: list[Any] = []
    weight = torch.zeros(1)
    method = SimpleNamespace(process_weights_after_loading=packed.append)
    head = SimpleNamespace(weight=weight if tied else torch.zeros(1), quant_method=method)
    embedding = SimpleNamespace(weight=weight)
    pack_tied_head(SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding)))
    assert packed == [head] * tied
