"""What makes an update on a GPU faster and changes it by rounding alone: compiled layers, Liger's
kernels, fewer layers whose activations are computed twice. Each is a setting of `TrainRuntime`, off
until it is set. (AdamW's fused kernel is transformers' default.) None of this has run on a card;
`make gpu-check TIER=0` measures each, `sft_speed[...]`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ..configs.settings.training import RLSettings, SFTSettings
from .launch.jobs import RLJob, SFTJob
from .models import base_of

LIGER = {"fused_linear_cross_entropy": False, "cross_entropy": False}
"""The head stays the one in tiles: the losses need its log-probabilities and entropies."""


def speed_up(trainer: Any, job: SFTJob | RLJob) -> None:
    """Switch on what the settings name, and say so. Raises ValueError for what cannot be held."""
    s, args, runtime = job.settings, trainer.args, job.settings.runtime
    model = base_of(trainer.accelerator.unwrap_model(trainer.model))
    if why := refusal(s, model.config.model_type, args.device.type, trainer.is_fsdp_enabled):
        raise ValueError(f"runtime.{why}")
    on = []
    if runtime.torch_compile:
        compile_layers(model)
        on.append("compiled")
    if runtime.use_liger_kernel:
        args.use_liger_kernel, args.liger_kernel_config = True, dict(LIGER)
        on.append("with Liger's kernels")
    if (every := runtime.checkpoint_every) > 1:
        more = args.gradient_checkpointing_kwargs or {}
        args.gradient_checkpointing_kwargs = {**more, "every_n_layers": every}
        on.append(f"one in {every} recomputed")
    if on and trainer.is_world_process_zero():
        print(f"layers: {', '.join(on)}", flush=True)


def refusal(s: SFTSettings | RLSettings, model_type: str, device: str, sharded: bool) -> str:
    """A switch that is on and cannot be held, with the reason; or nothing."""
    runtime, cpu, rl = s.runtime, device != "cuda", isinstance(s, RLSettings)
    if cpu and runtime.attention == "flex_attention":
        return "attention=flex_attention has no gradient on CPUs: take sdpa"
    if rl and runtime.checkpoint_every > 1:
        return "checkpoint_every: TRL recomputes all layers again after a rollout; leave it out"
    why = "it needs CUDA" if cpu else ""
    if runtime.torch_compile and (why := why or why_not_compiled(s, sharded)):
        return f"torch_compile=true: {why}; leave it out"
    if runtime.use_liger_kernel and (why := why or why_no_liger(model_type)):
        return f"use_liger_kernel=true: {why}; leave it out"
    return ""


def why_not_compiled(s: SFTSettings | RLSettings, sharded: bool) -> str:
    if sharded:
        return "it was never tried with sharded weights, which hooks around the layers gather"
    if "flash" in s.runtime.attention:
        return "flash attention reads lengths on the CPU, which cuts every layer's graph in parts"
    if isinstance(s, RLSettings) and s.engine == "transformers":
        return "the trainer samples with the same layers, which would be compiled for every length"
    return ""


def why_no_liger(model_type: str) -> str:
    """Beforehand, for transformers would only log it."""
    if find_spec("liger_kernel") is None:
        return "liger-kernel is not installed (requirements-gpu.lock has it)"
    patches = import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    return "" if model_type in patches else f"Liger has no kernels for models of type {model_type}"


def compile_layers(model: PreTrainedModel, **options: Any) -> None:
    """Compile the blocks in place: names of weights stay, and the head in tiles is not traced."""
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.compile(**options)
