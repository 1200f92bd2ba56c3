"""Sizes of a model from its settings, its name or its config are those of the real model."""

import json

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from configs.settings.training import BaseModelSettings
from training.sizing.model_facts import (
    KNOWN,
    ModelFacts,
    facts_of_base,
    facts_of_config,
    facts_of_model,
)


def test_qwen3_8b_is_counted_by_hand():
    facts = KNOWN["Qwen/Qwen3-8B"]
    layer = (
        2 * 4096 * 32 * 128  # q, o
        + 2 * 4096 * 8 * 128  # k, v
        + 3 * 4096 * 12288  # gate, up, down
        + 2 * 4096  # norms before attention and MLP
        + 2 * 128  # norms of q and k
    )
    assert facts.layer_parameters == layer == 192_946_432
    assert facts.parameters == 36 * layer + 2 * 151_936 * 4096 + 4096 == 8_190_735_360
    assert facts.kv_bytes_per_token() == 2 * 36 * 8 * 128 * 2 == 147_456
    assert facts.kv_bytes_per_token(tensor_parallel=4) == 147_456 // 4
    assert facts.kv_bytes_per_token(tensor_parallel=16) == 147_456 // 8  # a head is not cut


@pytest.mark.parametrize(
    ("name", "billions"), [("0.6B", 0.6), ("1.7B", 1.7), ("4B", 4.0), ("14B", 14.8), ("32B", 32.8)]
)
def test_the_family_has_the_sizes_of_its_model_cards(name, billions):
    assert round(KNOWN[f"Qwen/Qwen3-{name}"].parameters / 1e9, 1) == billions


@pytest.mark.parametrize("tied", [True, False])
def test_the_count_is_that_of_a_real_model(tied):
    config = Qwen3Config(
        vocab_size=400,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=tied,
    )
    facts = facts_of_config(json.loads(config.to_json_string(use_diff=False)))

    assert facts == ModelFacts(2, 128, 384, 4, 2, 32, 400, tied)
    assert facts.parameters == Qwen3ForCausalLM(config).num_parameters()


def test_a_random_base_has_a_padded_vocabulary_and_a_pretrained_one_its_name(tmp_path):
    random = BaseModelSettings(kind="random", vocabulary=401)
    facts = facts_of_base(random)
    assert facts is not None
    assert facts.vocabulary == 416

    assert facts_of_base(BaseModelSettings()) == KNOWN["Qwen/Qwen3-8B"]


def test_a_local_folder_tells_by_its_config_and_an_unknown_name_tells_nothing(tmp_path):
    config = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16,
              "num_attention_heads": 2, "vocab_size": 10}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert facts_of_model(str(tmp_path)) == ModelFacts(1, 8, 16, 2, 2, 4, 10, tied=False)
    assert facts_of_model("somebody/unknown") is None
