"""Models from disk and to disk, whole also where their weights are spread over processes. With the
weights travels where they come from: `lineage.json` and a model card, of no path and no clock."""

import fnmatch
import json
import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState, init_empty_weights
from accelerate.utils import gather_object, is_peft_model
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ..configs.files import replace_text
from ..configs.settings.base import Settings, flat, key_of
from ..configs.settings.training import LoraSettings, RLSettings, SFTSettings
from ..eval.records import Record
from .launch.result_files import CHAT_FILE, TRAINED_QUESTION
from .render import ChatFormat, chat_format, keeps_text

NO_CODE = {"trust_remote_code": False}
WEIGHTS = {**NO_CODE, "use_safetensors": True}
"""Arguments of every `from_pretrained`: no Python files and no pickle that came with a model."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LINEAGE, CARD = "lineage.json", "README.md"
SHOWN = ("loss.*", "lm_weight", "learning_rate", "epochs", "steps", "prompts_per_step",
         "rollouts_per_prompt", "mini_batch_prompts", "max_length", "max_tokens", "lora.rank",
         "lora.alpha")  # fmt: skip


class TrainingStep(Record):
    stage: str  # base, sft, rl math or rl code
    start: str  # hub id with revision, the name of a local folder, or `the step before`
    seed: int
    settings: dict[str, str]
    """Dotted names and values, without anything that only says how it was computed."""


_STEPS = TypeAdapter(list[TrainingStep])


def step_of(stage: str, start: str, seed: int, settings: Settings) -> TrainingStep:
    values = {n: str(v) for n, v in flat(json.loads(key_of(settings))).items()}
    if "model" in values:
        values["model"] = public_name(values["model"])
    return TrainingStep(stage=stage, start=start, seed=seed, settings=values)


def public_name(model: str) -> str:
    """A hub id as it is; of a local folder only its own name."""
    path = Path(model)
    return path.name if path.is_absolute() or path.exists() else model


def read_lineage(checkpoint: str | Path, commit: str | None = None) -> list[TrainingStep]:
    """The steps behind a checkpoint; one of another origin has a step with its name and commit."""
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
        values = {name: value for name, value in s.settings.items() if value != "None"}
        names = chain.from_iterable(fnmatch.filter(values, pattern) for pattern in SHOWN)
        shown = ", ".join(f"{name} {values[name]}" for name in names)
        rows.append(f"| {n} | {s.stage} | {s.start} | {s.seed} | {shown or '-'} |")
    origin = steps[0].start.partition("@")[0]
    base = f"base_model: {origin}\n" if origin.count("/") == 1 else ""
    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    card = template.format(base=base, rows="\n".join(rows), last=steps[-1].stage)
    (folder / CARD).write_text(card, encoding="utf-8")


def load_model(
    folder: Path | str, *, attention: str | None = None, dtype: str = "auto", **more: Any
) -> PreTrainedModel:
    """The causal language model in `folder` (or of a hub id), in `auto`, `float32`, `bfloat16`.
    Raises ValueError where it lacks weights: they would be random."""
    options = {"attn_implementation": attention, "dtype": dtype, **more, **WEIGHTS}
    load: Any = AutoModelForCausalLM.from_pretrained
    model, info = load(str(folder), output_loading_info=True, **options)
    if missing := sorted(info["missing_keys"]):
        others = f" and {len(missing) - 1} more" if missing[1:] else ""
        fix = "it is a checkpoint of another class, or damaged"
        raise ValueError(f"{folder} has no {missing[0]}{others}, which would be random: {fix}")
    return model


def checkpoint_for_vllm(checkpoint: Path, folder: Path, s: RLSettings) -> Path:
    """The checkpoint, or links to its files in `folder` with a config.json of the types of `s`."""
    config = {"head_dtype": "model", **json.loads((checkpoint / "config.json").read_text())}
    types = {"head_dtype": "float32" if s.fp32_head else "model"}
    types |= {"dtype": "float16"} if s.runtime.precision == "fp16" else {}
    if s.engine == "transformers" or types.items() <= config.items():
        return checkpoint
    folder.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.iterdir():
        with suppress(FileExistsError):  # all processes do so
            (folder / file.name).symlink_to(file.resolve())
    replace_text(folder / "config.json", json.dumps(config | types))
    return folder


def positions_of(config: Any, yarn_factor: float | None = None) -> int | None:
    """Tokens of prompt and answer that a model can place; None where its config does not say."""
    trained = getattr(config, "max_position_embeddings", None)
    return int(trained * (yarn_factor or 1)) if trained else None


def load_tokenizer(folder: Path | str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """As transformers finds it, or as `tokenizer.json` has it where that one loses white space: the
    class that a folder names may be another model's (LlamaTokenizerFast of R1-Distill-Llama)."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder), revision=revision, **NO_CODE)
    if not keeps_text(tokenizer):
        with suppress(OSError, ValueError):  # there may be no tokenizer.json
            fast: Any = PreTrainedTokenizerFast
            as_saved = fast.from_pretrained(str(folder), revision=revision, **NO_CODE)
            return as_saved if keeps_text(as_saved) else tokenizer
    return tokenizer


def load_to_train(
    folder: Path | str, s: SFTSettings | RLSettings
) -> tuple[PreTrainedModel, ChatFormat]:
    """Model, and how it is asked; raises ValueError where its answers could not be trained on.
    Computed in 16 bits (autocast) over fp32 weights: bf16 loses an update of 1e-6. Weights under
    adapters, which are never updated, stay in bf16."""
    chat = chat_format(folder, load_tokenizer(folder), s.chat_template_kwargs)
    dtype = "auto" if s.lora and s.runtime.precision == "bf16" else "float32"
    model = load_model(folder, attention=s.runtime.attention, dtype=dtype)
    check_weights(model, f"{folder} cannot be trained: take another model, or make it again")
    embedding: Any = model.get_input_embeddings()
    if getattr(embedding, "padding_idx", None) in chat.stops:
        embedding.padding_idx = None  # an end of turn that pads, too, would have no gradient
    return model, chat


def without_dropout(model: nn.Module) -> None:
    """Switch off dropout, of layers and of attention, which keeps its own as a number: with it the
    ratio of a policy to the one that sampled is noise."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and "drop" in name:
                setattr(module, name, 0.0)


def adapters(model: PreTrainedModel, s: LoraSettings | None) -> Any:
    """The LoraConfig for TRL's trainers; raises ValueError for a target that the model lacks."""
    if s is None:
        return None
    from peft import LoraConfig

    layers = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    if missing := [name for name in s.targets if name not in layers]:
        raise ValueError(f"lora.targets: {missing} are none of its layers, {sorted(layers)}")
    targets = list(s.targets) or "all-linear"  # but the output head
    return LoraConfig(
        r=s.rank,
        lora_alpha=s.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=s.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )


def broken_weights(model: nn.Module) -> list[str]:
    """The parameters with a value that is NaN or infinite, in this process's part."""
    return [name for name, weight in model.named_parameters() if not _is_finite(weight.detach())]


def _is_finite(weight: Tensor) -> bool:
    part = weight.to_local() if isinstance(weight, DTensor) else weight
    if not part.is_floating_point() or not part.numel():
        return True
    part = part.float() if part.element_size() == 1 else part  # fp8
    return all(math.isfinite(float(edge)) for edge in part.aminmax())  # of a NaN, both are NaN


def check_weights(model: nn.Module, where: str, *, everywhere: bool = False) -> None:
    """Raise FloatingPointError if a weight is NaN or infinite; `everywhere`: on all processes."""
    names = broken_weights(model)
    if everywhere and PartialState().num_processes > 1:
        names = list(dict.fromkeys(gather_object(names)))
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        raise FloatingPointError(f"{where}: the weight {names[0]}{more} is NaN or infinite")


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path,
    lineage: Sequence[TrainingStep] = (), chat_template_kwargs: Mapping[str, Any] | None = None,
    question: str = "",
) -> None:  # fmt: skip
    """Write a Hugging Face folder, all or nothing: safetensors, tokenizer, generation config, how
    the model is asked (`question`: in training), and with a `lineage` its model card. Raises
    FloatingPointError where a weight is NaN or infinite, as one above 65,504 is in fp16."""
    check_weights(model, f"{folder.name} is not written, as {model.dtype}")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, safe_serialization=True)
    tokenizer.save_pretrained(partial)
    chat = {"chat_template_kwargs": dict(chat_template_kwargs or {}), "question": question}
    if chat := {name: value for name, value in chat.items() if value}:
        (partial / CHAT_FILE).write_text(json.dumps(chat, indent=1))
    if lineage:
        write_lineage(partial, lineage)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)


def save_trained(
    trainer: Any, folder: Path, precision: str, lineage: Sequence[TrainingStep] = (),
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """`save_model` of what `trainer` trains, in its precision. All its processes must call it."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    first = trainer.is_world_process_zero()
    weights = {n: w.cpu() for n, w in gathered(model) if first}
    if first:
        merged: Any = unsharded_copy(base_of(model), weights)
        merged = merged.to(DTYPES[precision])
        merged.config.use_cache = True  # which transformers' trainer switches off
        tokenizer = trainer.processing_class
        save_model(merged, tokenizer, folder, lineage, chat_template_kwargs, TRAINED_QUESTION)
    trainer.accelerator.wait_for_everyone()


def check_layout(trainer: Any, checkpoint: Path | None) -> None:
    """Raise ValueError where `trainer` cannot go on from `checkpoint`: in shards, or whole."""
    shards = checkpoint is not None and any(checkpoint.glob("pytorch_model_fsdp*"))
    if checkpoint and shards != trainer.is_fsdp_enabled:
        raise ValueError(
            f"{checkpoint} holds {'shards' if shards else 'whole weights'}, and these processes "
            "would read the other: set topology.sharding and the number of processes back to what "
            f"they were, or remove {checkpoint.parent} to begin this stage again"
        )
    if trainer.is_fsdp_enabled and is_peft_model(trainer.model):
        raise ValueError("lora is for weights that are not sharded: set topology.sharding=none")


ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention", "mlp", "moe"}
PACKING_ERROR = 2e-4  # nats: dense models have 5e-6 in float32, layers that do not reset far more


def packing_mistake(model: PreTrainedModel) -> str:
    """Why the sequences of a packed row would see each other in this model, or nothing: linear
    attention, convolutions and state spaces do not reset, as the config says of its layers; else
    two short rows must have the log-probabilities in one packed row that they have alone."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if others := sorted(set(kinds or ()) - ATTENTION):
        return f"{config.model_type} has layers of {' and '.join(others)}, which do not reset there"
    if any(weight.is_meta for weight in model.parameters()):
        return ""
    before, training = config._attn_implementation, model.training
    other = "sdpa" if model._supports_sdpa else "eager"  # flash attention needs a GPU and 16 bits
    try:
        if "flash" in str(before) or before == "flex_attention":
            config._attn_implementation = other
        with in_float32(model):
            difference = _packing_error(model.eval())
    except TypeError as error:  # it takes no position_ids
        return f"{config.model_type}: {error}"
    finally:
        model.train(training)
        config._attn_implementation = before
    if difference <= PACKING_ERROR:
        return ""
    other = f"other log-probabilities, by {difference:.2g}"
    return f"{config.model_type} gives the tokens of a packed row {other}"


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Weights of 16 bits are widened and narrowed at the end; of layers, while each runs."""
    types = {weight: weight.dtype for weight in model.parameters() if weight.itemsize == 2}
    layers = next((m for m in model.modules() if isinstance(m, nn.ModuleList)), nn.ModuleList())

    def widen(module: nn.Module, *_: Any) -> None:
        for weight in types.keys() & {*module.parameters()}:
            weight.data = weight.data.float()

    def narrow(module: nn.Module, *_: Any) -> None:
        for weight in types.keys() & {*module.parameters()}:
            weight.data = weight.data.to(types[weight])

    hooks = [layer.register_forward_pre_hook(widen) for layer in layers]
    hooks += [layer.register_forward_hook(narrow, always_call=True) for layer in layers]
    try:
        for weight in types.keys() - {*layers.parameters()}:
            weight.data = weight.data.float()
        yield
    finally:
        for hook in hooks:
            hook.remove()
        narrow(model)


@torch.no_grad()
def _packing_error(model: PreTrainedModel) -> float:
    words = random.Random(0)
    size = model.config.get_text_config().vocab_size
    rows = [[words.randrange(size) for _ in range(n)] for n in (9, 7)]
    ids = [torch.tensor([row], device=model.device) for row in rows]
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None].to(model.device)
    packed = model(input_ids=torch.cat(ids, 1), position_ids=positions, use_cache=False).logits[0]
    alone = torch.cat([model(input_ids=row, use_cache=False).logits[0] for row in ids])
    return float((packed.float().log_softmax(-1) - alone.float().log_softmax(-1)).abs().max())


def exact_sums_and_outputs(trainer: Any) -> None:
    """Under FSDP2 accelerate adds gradients up in 16 bits, a sum that depends on micro-batches, and
    rounds what the model returns to 16 bits: log-probabilities, in steps of 0.004 to 0.03."""
    plugin = trainer.accelerator.state.fsdp_plugin if trainer.is_fsdp_enabled else None
    if plugin and (policy := plugin.mixed_precision_policy):
        plugin.mixed_precision_policy = replace(
            policy, reduce_dtype=torch.float32, output_dtype=None
        )


def policy_on_each(trainer: Any) -> PreTrainedModel:
    """The policy as a plain, unsharded model: processes that sample do not wait for each other."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.is_fsdp_enabled or is_peft_model(model):
        return unsharded_copy(base_of(model), dict(gathered(model)))
    return model


def base_of(model: Any) -> PreTrainedModel:
    """The model itself, without what peft put around it."""
    return model.get_base_model() if is_peft_model(model) else model


def gathered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight whole, in turn, adapters merged in fp32; all processes must exhaust it."""
    base, layer = base_of(model), ".base_layer."
    for name, weight in base.state_dict().items():
        if ".lora_" in name:
            continue
        if layer in name:
            path, _, last = name.partition(layer)
            tuned: Any = base.get_submodule(path)
            if last == "weight":
                delta = sum(tuned.get_delta_weight(adapter) for adapter in tuned.active_adapters)
                weight = (weight.float() + delta).to(weight.dtype)
            name = f"{path}.{last}"
        yield name, weight.full_tensor() if isinstance(weight, DTensor) else weight


@contextmanager
def unchanged_weights(model: Any) -> Iterator[None]:
    """While peft merges adapters into `model` and out again: the weights it leaves are rounded."""
    layers = [m.base_layer.weight for m in model.modules() if hasattr(m, "base_layer")]
    before = [weight.detach().to("cpu", copy=True) for weight in layers]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, kept in zip(layers, before, strict=True):
                weight.copy_(kept)


def unsharded_copy(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model like `model` that owns `weights`, in evaluation mode."""
    with init_empty_weights(include_buffers=False):  # no checkpoint holds the rotations
        copy = AutoModelForCausalLM.from_config(model.config, **NO_CODE)
    copy.load_state_dict(dict(weights), strict=False, assign=True)
    copy.tie_weights()
    copy.to(next(iter(weights.values())).device)
    copy.generation_config = model.generation_config
    return copy.eval()
