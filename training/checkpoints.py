"""Checkpoints on disk: a half-written one is never taken for a whole one."""

import os
import shutil
from pathlib import Path

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

STABLE = "STABLE"
KEEP = 2


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a Hugging Face folder (safetensors, tokenizer, generation config), all or nothing."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, safe_serialization=True)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def save_trained(trainer: Trainer, folder: Path, *, bf16: bool) -> None:
    """`save_model` of what `trainer` trained, from all its processes; in bf16 if asked."""
    tokenizer = trainer.processing_class
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    if trainer.args.world_size == 1:
        model = trainer.accelerator.unwrap_model(trainer.model)
        save_model(model.bfloat16() if bf16 else model, tokenizer, folder)
        return
    partial = folder.with_name(folder.name + ".partial")
    trainer.save_model(str(partial))  # gathers what FSDP has sharded
    if trainer.is_world_process_zero():
        (partial / "training_args.bin").unlink(missing_ok=True)  # it names local paths
        tokenizer.save_pretrained(partial)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    trainer.accelerator.wait_for_everyone()


def load_model(folder: Path, *, attention: str = "sdpa", dtype: str = "auto") -> PreTrainedModel:
    """The causal language model in `folder`; `dtype` is `auto`, `float32` or `bfloat16`."""
    return AutoModelForCausalLM.from_pretrained(
        str(folder), attn_implementation=attention, dtype=dtype
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(folder))


def latest(folder: Path) -> Path | None:
    """The newest complete training checkpoint below `folder`, or None."""
    found = [p.parent for p in folder.glob(f"checkpoint-*/{STABLE}")]
    return max(found, key=_step, default=None)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


class StableCheckpoints(TrainerCallback):
    """Marks every finished checkpoint STABLE, then removes all but the newest `KEEP`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.is_world_process_zero:
            for checkpoint in self.folder.glob("checkpoint-*"):
                if not (checkpoint / STABLE).exists():  # a kill came before it was whole
                    shutil.rmtree(checkpoint)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if not state.is_world_process_zero:
            return
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        _flush(checkpoint)
        (checkpoint / STABLE).touch()
        complete = sorted((p.parent for p in self.folder.glob(f"*/{STABLE}")), key=_step)
        for old in complete[:-KEEP]:
            (old / STABLE).unlink()
            shutil.rmtree(old)


def _flush(folder: Path) -> None:
    """Bring the files of `folder` to disk, so that STABLE survives a power cut only with them."""
    for path in (p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
