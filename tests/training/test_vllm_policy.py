"""vLLM in RL: no rollout of a server that was started again is trained on, and without CUDA its
layers hold the weights that were handed over."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from klear.training.rl.vllm_on_cpu import PolicyWeights


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


def test_the_worker_loads_the_policy_then_packs_a_tied_head_anew() -> None:
    embedding = SimpleNamespace(weight=torch.zeros(1))
    done: list[Any] = []

    def loaded(weight: torch.Tensor) -> Any:
        """The head of a worker that has taken a policy."""
        method = SimpleNamespace(process_weights_after_loading=done.append)
        head = SimpleNamespace(weight=weight, quant_method=method)
        model = SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding))

        class Worker(PolicyWeights):
            model_runner = SimpleNamespace(get_model=lambda: model)

            def reload_weights(self, **given: Any) -> None:
                done.append(given)

        Worker().take_policy([("w", weight)])
        return head

    tied = loaded(embedding.weight)
    assert done == [{"weights_iterator": [("w", embedding.weight)]}, tied]
    loaded(torch.zeros(1))  # has weights of its own
    assert len(done) == 3
