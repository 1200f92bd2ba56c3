"""Packed rows are for models whose layers start over where `position_ids` do; others are padded."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from klear.configs.settings.training import SFTSettings
from klear.training import models
from klear.training.launch.jobs import SFTJob
from klear.training.models import packing_mistake
from klear.training.rl.rollout import MicroBatch
from klear.training.rl.trainer import GPPOTrainer
from klear.training.sft import build_trainer
from tests.training.conftest import by_row

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
         "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4,
         "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1,
         "mamba_expand": 2, "mamba_chunk_size": 8, "mamba_d_conv": 4}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def mixed(kind: str) -> dict[str, Any]:
    return {"layer_types": [kind, "full_attention"] * 2}


HYBRID: dict[str, dict[str, Any]] = {
    "qwen3_5_text": LINEAR | mixed("linear_attention"),
    "qwen3_next": LINEAR | mixed("linear_attention") | EXPERTS
    | {"shared_expert_intermediate_size": 16},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"] * 2, "num_local_experts": 2,
                                 "num_experts_per_tok": 1, "shared_intermediate_size": 32},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "lfm2": mixed("conv") | {"block_ff_dim": 48, "block_auto_adjust_ff_dim": False},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8,
              "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "bamba": MAMBA | {"attn_layer_indices": [1, 3]},
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 16},
    "minimax": mixed("linear_attention") | {"num_local_experts": 2},
}  # fmt: skip
UNNAMED = {  # all of their layers are attention, yet they look across the sequences of a row
    "gpt_oss": {"num_local_experts": 4},
    "llama4_text": {"num_local_experts": 2, "attention_chunk_size": 4, "intermediate_size_mlp": 48},
    "opt": {},
}
DENSE = {
    "qwen3": {},
    "llama": {},
    "gemma3_text": {},
    "phi3": {},
    "qwen3_moe": EXPERTS,
    "smollm3": {},
}


def tiny(family: str) -> Any:
    settings = SIZES | (HYBRID | UNNAMED | DENSE)[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    for weight in model.parameters():  # so that what one token sees of another is seen
        if weight.ndim > 1:
            weight.data.normal_(0, 0.2)
    return model.eval()


class Alone:
    """What `_logp` reads of a trainer."""

    class accelerator:
        autocast = torch.enable_grad


@pytest.mark.parametrize("family", HYBRID)
def test_a_model_with_layers_that_do_not_reset_is_refused_by_its_config_and_right_when_padded(
    family,
):
    """Padded: through the forward pass of an update, fused head included, rows have the
    log-probabilities that they have alone."""
    model = tiny(family)
    assert "which do not reset there" in packing_mistake(model)
    assert models._packing_error(model) > models.PACKING_ERROR  # it is right to
    if family == "recurrent_gemma":  # TRL's fused head leaves out the soft cap of its logits
        return
    rows = [torch.randint(3, 60, (n,)) for n in (6, 9)]
    alone = [model(input_ids=r[None], use_cache=False).logits[0].log_softmax(-1) for r in rows]
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(9)[None, 3:] < torch.tensor([[6], [9]])
    micro = MicroBatch(ids, 6, mask, *torch.zeros(3, 2, 1))
    logp, _ = GPPOTrainer._logp(Alone(), model, micro)  # type: ignore[arg-type]
    for row, one, own in zip(rows, logp, alone, strict=True):
        expected = own[2:-1].gather(1, row[3:, None])[:, 0]
        torch.testing.assert_close(one[: len(expected)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", UNNAMED)
def test_a_model_that_mixes_sequences_is_refused_by_what_it_computes(family):
    assert "other log-probabilities, by" in packing_mistake(tiny(family))


@pytest.mark.parametrize("family", DENSE)
def test_models_of_attention_are_packed(family):
    model = tiny(family).train()
    assert packing_mistake(model) == ""
    assert model.training


def test_weights_of_16_bits_are_compared_without_their_rounding():
    """As a model has them that trains adapters; in its own type packed and alone differ by more."""
    model = tiny("qwen3").bfloat16()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert models._packing_error(model) > models.PACKING_ERROR
    assert packing_mistake(model) == ""
    assert "other log-probabilities" in packing_mistake(tiny("opt").bfloat16())
    for name, weight in model.state_dict().items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, before[name])


def test_sft_refuses_to_pack_a_model_whose_layers_do_not_reset(files, tmp_path):
    settings = SFTSettings(packing=True)
    job = SFTJob(
        out=tmp_path, base=files["checkpoint"], examples=files["examples"], settings=settings
    )
    with pytest.raises(ValueError, match=r"has layers of conv, .*Set sft\.packing=false"):
        build_trainer(job, tiny("lfm2"), None, None)  # type: ignore[arg-type]


def test_a_trainer_refuses_to_pack_where_it_is_asked_and_pads_where_it_is_not(
    make_trainer, monkeypatch
):
    monkeypatch.setattr("klear.training.rl.trainer.packing_mistake", lambda _: "conv layers")
    with pytest.raises(ValueError, match="packed=True would mix the sequences of a row: conv"):
        make_trainer(by_row(1.0), packed=True)
    trainer = make_trainer(by_row(1.0))
    assert not trainer._packed
    trainer.model.config._attn_implementation = "flash_attention_2"
    assert not trainer._packs(trainer.model)
    monkeypatch.setattr("klear.training.rl.trainer.packing_mistake", lambda _: "")
    assert trainer._packs(trainer.model)
