"""vLLM in RL: no rollout of a server that was started again is trained on."""

from types import SimpleNamespace

import pytest
from trl.trainer.grpo_trainer import GRPOTrainer


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
