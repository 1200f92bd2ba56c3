"""A plain copy of a model whose weights are spread over processes (FSDP2, ZeRO-3)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer
from transformers.integrations import deepspeed

from training.untrusted import NO_CODE


def is_spread(trainer: Trainer) -> bool:
    """Whether no process of `trainer` has all the weights."""
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def first_process_copy(trainer: Trainer) -> PreTrainedModel | None:
    """All weights, in the CPU memory of the first process; every process must call it."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    keeps = trainer.is_world_process_zero()
    if trainer.is_deepspeed_enabled:
        weights: Any = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    else:
        weights = {n: w.cpu() for n, w in gathered(model) if keeps}
    return plain(model, weights) if keeps else None


def copy_on_each(trainer: Trainer) -> PreTrainedModel:
    """All weights beside the shards of every process: only for models that fit there twice."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    return plain(model, dict(gathered(model)))


def gathered(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Every weight whole, one after the other; all processes must exhaust it."""
    for name, weight in model.state_dict().items():
        yield name, weight.full_tensor() if isinstance(weight, DTensor) else weight


@contextmanager
def not_in_shards() -> Iterator[None]:
    """Under ZeRO-3 transformers shards what it builds: all processes would have to take part."""
    configured: Any = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = configured


def plain(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model like `model` that owns `weights`, in evaluation mode."""
    with torch.device("meta"), not_in_shards():
        made = AutoModelForCausalLM.from_config(model.config, **NO_CODE)
    made.load_state_dict(dict(weights), strict=False, assign=True)
    made.tie_weights()
    for name, buffer in model.named_buffers():  # rotations, which no checkpoint holds
        owner, _, last = name.rpartition(".")
        made.get_submodule(owner)._buffers[last] = buffer.detach().clone()
    every = (*made.named_parameters(), *made.named_buffers())
    left = [n for n, tensor in every if tensor.is_meta]
    if left:
        raise RuntimeError(f"the gathered weights lack {left[0]}")
    made.generation_config = model.generation_config
    return made.eval()
