"""Checkpoints on disk: a half-written one is never taken for a whole one."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
)

from configs.settings.training import RLSettings, SFTSettings
from training.checkpoints.lineage import TrainingStep, write_lineage
from training.checkpoints.safe_loading import NO_CODE, WEIGHTS
from training.checkpoints.whole_model import policy_on_rank0
from training.layout import STABLE, step_of_checkpoint
from training.render import check_tokenizer

KEEP = 2


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
    shards = [*checkpoint.glob("pytorch_model_fsdp*"), *checkpoint.glob("global_step*")]
    if bool(shards) != trainer.is_fsdp_enabled:
        raise ValueError(
            f"{checkpoint} holds {'shards' if shards else 'whole weights'}, and these processes "
            "would read the other: set topology.sharding and the number of processes back to what "
            f"they were, or remove {checkpoint.parent} to begin this stage again"
        )


class StableCheckpoints(TrainerCallback):
    """Marks every finished checkpoint STABLE, then removes all but the newest `KEEP`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_begin(self, args, state, control, **_) -> None:
        if state.is_world_process_zero:
            for checkpoint in self.folder.glob("checkpoint-*"):
                if not (checkpoint / STABLE).exists():  # a kill came before it was whole
                    shutil.rmtree(checkpoint)

    def on_save(self, args, state, control, **_) -> None:
        if not state.is_world_process_zero:
            return
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        flush(checkpoint)
        (checkpoint / STABLE).touch()
        whole = (mark.parent for mark in self.folder.glob(f"*/{STABLE}"))
        for old in sorted(whole, key=step_of_checkpoint)[:-KEEP]:
            (old / STABLE).unlink()
            shutil.rmtree(old)


def flush(folder: Path) -> None:
    """Bring the files of `folder` to disk, so that STABLE survives a power cut only with them."""
    for path in (p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
