"""The whole model in one process: LoRA adapters merged, FSDP2 shards gathered."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer

from configs.settings.training import LoRASettings
from training.checkpoints.safe_loading import NO_CODE
from training.schedule import is_sharded


def lora_config(settings: LoRASettings | None) -> Any:
    """peft's configuration, or None to train all weights.

    Raises ValueError without peft, and where the weights are spread over processes.
    """
    if settings is None:
        return None
    if is_sharded():
        raise ValueError(
            "lora runs on one device or under DDP, not FSDP: set topology.sharding=none, or lora "
            "to null"
        )
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ValueError("lora needs the package peft: pip install peft") from error
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=list(settings.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )


def policy_on_rank0(trainer: Trainer, *, copied: bool = False) -> PreTrainedModel | None:
    """All weights, adapters merged, on the first process; None on others, which must call it too.

    `copied`: apart from what is being trained, in CPU memory; with adapters beside the model, for
    which there must be room.
    """
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    first = trainer.is_world_process_zero()
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model) if copied and first else model
        return model.merge_and_unload() if first else None
    if not copied and not trainer.is_fsdp_enabled:
        return model if first else None
    weights = {n: w.cpu() for n, w in gathered(model) if first}
    return plain(model, weights) if first else None


def policy_on_each(trainer: Trainer) -> PreTrainedModel:
    """The policy as a plain model: processes that sample do not wait for each other's answers.

    Where weights are spread, all of them beside the shards of every process: only for models that
    fit there twice.
    """
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    return plain(model, dict(gathered(model))) if trainer.is_fsdp_enabled else model


def gathered(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Every weight whole, one after the other; all processes must exhaust it."""
    for name, weight in model.state_dict().items():
        yield name, weight.full_tensor() if isinstance(weight, DTensor) else weight


def plain(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model like `model` that owns `weights`, in evaluation mode."""
    with torch.device("meta"):
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
