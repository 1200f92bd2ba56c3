"""Models from disk and to disk, whatever they are in between: with LoRA adapters, or in shards."""

import copy
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
)

from configs.settings.training import LoRASettings, RLSettings, SFTSettings
from training.checkpoints.lineage import TrainingStep, write_lineage
from training.checkpoints.safe_loading import NO_CODE, WEIGHTS
from training.launch.rank import is_sharded
from training.render import check_tokenizer


def load_model(
    folder: Path | str, *, attention: str = "sdpa", dtype: str = "auto"
) -> PreTrainedModel:
    """The causal language model in `folder` (or of a hub id), in `auto`, `float32`, `bfloat16`."""
    return AutoModelForCausalLM.from_pretrained(
        str(folder), attn_implementation=attention, dtype=dtype, **WEIGHTS
    )


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(folder), **NO_CODE)


def load_to_train(
    folder: Path | str, s: SFTSettings | RLSettings
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; raises ValueError where its answers could not be trained on.

    Computed in bf16 (autocast) over fp32 weights, as the authors: an update of 1e-6 is lost in
    bf16. Frozen weights need no fp32.
    """
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer)
    dtype = "bfloat16" if s.lora and s.runtime.bf16 else "float32"
    return load_model(folder, attention=s.runtime.attention, dtype=dtype), tokenizer


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


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    lineage: Sequence[TrainingStep] = (),
) -> None:
    """Write a Hugging Face folder, all or nothing: safetensors, tokenizer with chat template,
    generation config, and with a `lineage` its model card."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, safe_serialization=True)
    tokenizer.save_pretrained(partial)
    if lineage:
        write_lineage(partial, lineage)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def save_trained(
    trainer: Trainer, folder: Path, *, bf16: bool, lineage: Sequence[TrainingStep] = ()
) -> None:
    """`save_model` of what `trainer` trained, from all its processes; in bf16 if asked."""
    tokenizer = trainer.processing_class
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    whole = policy_on_rank0(trainer)
    if whole is not None:
        save_model(whole.bfloat16() if bf16 else whole, tokenizer, folder, lineage)
    trainer.accelerator.wait_for_everyone()


def check_layout(trainer: Trainer, checkpoint: Path | None) -> None:
    """Raise ValueError where `trainer` cannot go on from `checkpoint`: weights in shards are for
    processes that share them, whole ones for those that do not."""
    if checkpoint is None:
        return
    shards = [*checkpoint.glob("pytorch_model_fsdp*")]
    if bool(shards) != trainer.is_fsdp_enabled:
        raise ValueError(
            f"{checkpoint} holds {'shards' if shards else 'whole weights'}, and these processes "
            "would read the other: set topology.sharding and the number of processes back to what "
            f"they were, or remove {checkpoint.parent} to begin this stage again"
        )


def policy_on_rank0(trainer: Trainer, *, copied: bool = False) -> PreTrainedModel | None:
    """All weights, adapters merged, on rank 0; None on other ranks, which must call it too.

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

    Where weights are spread there must be room for all of them beside the shards.
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
