"""Models from disk and to disk, whatever they are in between: with LoRA adapters, or in shards.

With the weights of a checkpoint travels where it comes from: `lineage.json` for programs and a
model card for people. They hold nothing of the machine that made them: no path, no clock.
"""

import copy
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from configs.settings.base import Settings, flat, key_of
from configs.settings.training import LoRASettings, RLSettings, SFTSettings
from eval.records import Record
from training.launch.node import is_sharded
from training.render import check_tokenizer

NO_CODE = {"trust_remote_code": False}
WEIGHTS = {**NO_CODE, "use_safetensors": True}
"""Arguments of every `from_pretrained`: no Python files and no pickle that came with a model."""
LINEAGE, CARD = "lineage.json", "README.md"
SHOWN = ("loss", "lm_weight", "beta1", "beta2", "eps_low", "eps_high", "learning_rate", "epochs",
         "steps", "prompts_per_step", "rollouts_per_prompt", "mini_batch_prompts", "max_length",
         "max_tokens", "lora.rank")  # fmt: skip


class TrainingStep(Record):
    """One stage a model went through."""

    stage: str
    """base, sft, rl math or rl code."""
    start: str
    """Hub id with revision, the name of a local folder, or `the step before`."""
    seed: int
    settings: dict[str, str]
    """Dotted names and values, without anything that only says how it was computed."""


_STEPS = TypeAdapter(list[TrainingStep])


def step_of(stage: str, start: str, seed: int, settings: Settings) -> TrainingStep:
    """The step that a stage with these settings is."""
    values = {n: str(v) for n, v in flat(json.loads(key_of(settings))).items()}
    if "model" in values:
        values["model"] = public_name(values["model"])
    return TrainingStep(stage=stage, start=start, seed=seed, settings=values)


def public_name(model: str) -> str:
    """A hub id as it is; of a local folder only its own name."""
    path = Path(model)
    return path.name if path.is_absolute() or path.exists() else model


def read_lineage(checkpoint: str | Path, commit: str | None = None) -> list[TrainingStep]:
    """The steps behind a checkpoint; one of another origin has the step that names it, with its
    `commit` on the hub."""
    file = Path(checkpoint) / LINEAGE
    if file.exists():
        return _STEPS.validate_json(file.read_bytes())
    start = public_name(str(checkpoint)) + (f"@{commit}" if commit else "")
    return [TrainingStep(stage="start", start=start, seed=0, settings={})]


def lineage_after(
    start: Path, model: PreTrainedModel, stage: str, seed: int, settings: Settings
) -> list[TrainingStep]:
    """The steps behind what this stage made of `model`, which was loaded from `start`."""
    before = read_lineage(start, getattr(model.config, "_commit_hash", None))
    return [*before, step_of(stage, "the step before", seed, settings)]


def write_lineage(folder: Path, steps: Sequence[TrainingStep]) -> None:
    """Write `lineage.json` and the model card, `model_card.md` in the Hub's format."""
    (folder / LINEAGE).write_bytes(_STEPS.dump_json(list(steps), indent=1))
    rows = []
    for n, s in enumerate(steps, 1):
        shown = ", ".join(f"{name} {s.settings[name]}" for name in SHOWN if name in s.settings)
        rows.append(f"| {n} | {s.stage} | {s.start} | {s.seed} | {shown or '-'} |")
    origin = steps[0].start.partition("@")[0]
    base = f"base_model: {origin}\n" if origin.count("/") == 1 else ""
    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    card = template.format(base=base, rows="\n".join(rows), last=steps[-1].stage)
    (folder / CARD).write_text(card, encoding="utf-8")


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
    """peft's configuration, or None to train all weights; raises ValueError where it cannot run."""
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
        target_modules="all-linear",
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
    trainer: Any, folder: Path, *, bf16: bool, lineage: Sequence[TrainingStep] = ()
) -> None:
    """`save_model` of what `trainer` trained, from all its processes; in bf16 if asked."""
    whole = policy_on_rank0(trainer)
    if whole is not None:
        model = whole.bfloat16() if bf16 else whole
        save_model(model, trainer.processing_class, folder, lineage)
    trainer.accelerator.wait_for_everyone()


def check_layout(trainer: Any, checkpoint: Path | None) -> None:
    """Raise ValueError where `trainer` cannot go on from `checkpoint`: weights in shards are for
    processes that share them, whole ones for those that do not."""
    if checkpoint is None:
        return
    shards = any(checkpoint.glob("pytorch_model_fsdp*"))
    if shards != trainer.is_fsdp_enabled:
        raise ValueError(
            f"{checkpoint} holds {'shards' if shards else 'whole weights'}, and these processes "
            "would read the other: set topology.sharding and the number of processes back to what "
            f"they were, or remove {checkpoint.parent} to begin this stage again"
        )


def policy_on_rank0(trainer: Any, *, copied: bool = False) -> PreTrainedModel | None:
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


def policy_on_each(trainer: Any) -> PreTrainedModel:
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
    if left := [n for n, tensor in every if tensor.is_meta]:
        raise RuntimeError(f"the gathered weights lack {left[0]}")
    made.generation_config = model.generation_config
    return made.eval()
