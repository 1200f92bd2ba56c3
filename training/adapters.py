"""LoRA: which layers get adapters, and the whole weights when training is over."""

from typing import Any

from transformers import PreTrainedModel

from configs.training_stages import LoRASettings
from training.schedule import is_sharded


def lora_config(settings: LoRASettings | None) -> Any:
    """peft's configuration, or None to train all weights.

    Raises ValueError without peft, and where the weights are spread over processes.
    """
    if settings is None:
        return None
    if is_sharded():
        raise ValueError(
            "lora runs on one device or under DDP, not FSDP or ZeRO-3: set topology.sharding=none, "
            "or lora to null"
        )
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ValueError("lora needs the package peft: pip install peft") from error
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )


def has_adapters(model: Any) -> bool:
    return hasattr(model, "merge_and_unload")


def merged(model: Any) -> PreTrainedModel:
    """`model` with its adapters folded into the weights; one without adapters as it is."""
    return model.merge_and_unload() if has_adapters(model) else model
