"""GRPOConfig with what GPPO adds, and the settings of an RL stage as its arguments."""

import copy
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.utils.other import get_free_port
from trl.trainer.grpo_config import GRPOConfig

from ...configs.settings.loss import CONSTANTS, LOSSES, AnyLoss, loss_of, unread
from ...configs.settings.training import RLSettings, refuse_deviation, refuse_penalty
from ..callbacks import trainer_args
from ..losses import ImportanceBounds

OPTIONS = yaml.safe_load(Path(__file__).with_name("trl_options.yaml").read_text(encoding="utf-8"))
"""Those of GRPOConfig that are not taken as they are."""
UNCUT = {"top_p": [[1.0]], "top_k": [[0]], "min_p": [[None, 0.0]], "repetition_penalty": [[1.0]]}
"""With vLLM: the ratio to what it sampled from is that of the whole distribution."""
ARGUMENTS = {
    "eps": "epsilon", "eps_low": "epsilon", "eps_high": "epsilon_high",
    "dual_clip": "dual_clip", "beta1": "beta1", "beta2": "beta2",
    "n": "dgpo_n", "m": "dgpo_m", "cap": "dppo_cap",
    "temperature_pos": "sapo_temperature_pos", "temperature_neg": "sapo_temperature_neg",
    "k_pos": "vespo_k_pos", "lambda_pos": "vespo_lambda_pos",
    "k_neg": "vespo_k_neg", "lambda_neg": "vespo_lambda_neg",
}  # fmt: skip
"""Constants of the losses that have an argument of GPPOConfig: TRL's, where it has one."""
SAME_NAME = {
    "lm_weight", "advantage", "advantage_std", "drop_zero_advantage", "oversampling",
    "overlong_filter", "overlong_buffer", "temperature", "adam_beta2",
}  # fmt: skip
"""Settings of an RL stage that are arguments as they are."""


@dataclass
class GPPOConfig(GRPOConfig):
    """One rollout feeds `steps_per_generation` updates of `per_device_train_batch_size /
    oversampling` sequences a device, cut by tokens: see `training.packing.rl_schedule`."""

    policy_loss: str = "gppo"  # of klear.training.losses.POLICY_LOSSES
    loss_constants: dict[str, Any] | None = None
    """What it reads, by the names of its equation, before the arguments of `ARGUMENTS`."""
    epsilon_high: float | None = 0.28  # Eq. 5, §4.1
    beta1: float = 1.0  # Eq. 17, low side
    beta2: float = 1.0  # Eq. 17, high side
    dual_clip: float | None = None  # c of the authors' code
    dgpo_n: int = 1  # decay below the clip range
    dgpo_m: int = 2  # decay above it
    dppo_cap: float = 20.0  # of the ratio in dppo_tv
    lm_weight: float = 0.1  # α of Eq. 14
    positive_reward: float = 1.0  # an answer with at least this reward is correct (Eq. 13)
    advantage: str = "group"  # none, batch or maxrl: see `losses.group_advantages`
    advantage_std: str = "population"  # or unbiased
    drop_zero_advantage: bool = True  # groups of equal rewards leave before the forward pass
    oversampling: int = 1  # Generate this many times the prompts trained on; the authors' code: 2
    overlong_filter: bool = False  # answers cut at the length limit leave their group unrewarded
    overlong_buffer: int = 0  # tokens before max_completion_length with a penalty: DAPO, Eq. 13
    erc: tuple[float, float] | None = None
    """Bounds of a token's entropy over that at the rollout, outside of which it has no policy
    gradient (arXiv 2512.05591); the authors: 0.95 and 1.05."""
    micro_batch_tokens: int = 36_864  # padding included, in one forward pass
    packed: bool | None = None
    """A micro-batch is one row without padding; default: with flash or flex attention."""
    vllm_importance_sampling_correction: bool = False
    """Weigh tokens by ρ = π_old/π_sampler, between vllm_importance_sampling_clip_min and _max."""
    vllm_importance_sampling_mode: str = "token_truncate"  # or token_mask: IcePop
    importance_drift: float | None = None
    """Leave out answers whose mean log ρ is further from 0 than this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        options = OPTIONS["refused"] | {"policy_loss": [[*LOSSES]]}
        options |= UNCUT if self.use_vllm else {}
        for name, (allowed, *instead) in options.items():
            if (value := getattr(self, name)) not in allowed:
                message = "; ".join([f"GPPOTrainer takes one of {allowed}", *instead])
                raise ValueError(f"{name}={value!r}: {message}")
        refuse_deviation(self.advantage, self.advantage_std)
        read = {ARGUMENTS.get(constant) for constant in CONSTANTS[self.policy_loss]}
        for name in {*ARGUMENTS.values()} - read:
            value, default = getattr(self, name), self.__dataclass_fields__[name].default
            if value not in (default, None):
                constants = [constant for constant, n in ARGUMENTS.items() if n == name]
                raise ValueError(unread(self.policy_loss, *constants, label=f"{name}={value}"))
        _ = self.loss  # raises where a constant is out of its bounds
        longest = self.max_completion_length or 0
        refuse_penalty(self.overlong_buffer, longest, self.advantage)
        each, group = self.per_device_train_batch_size, self.num_generations or 1
        updates, mini_batch = self.updates_a_pass, each * self.world_size
        if each * updates % group or mini_batch % (group * self.oversampling):
            raise ValueError(
                f"devices and mini-batches take whole groups: {each} × {updates} sequences of "
                f"a device, and {mini_batch} of a mini-batch / oversampling = {self.oversampling}, "
                f"must be multiples of num_generations = {group}"
            )
        steps_by_name = {"max_steps": self.max_steps} if self.max_steps > 0 else {}
        steps_by_name |= {"save_steps": self.save_steps} if self.save_strategy == "steps" else {}
        steps_by_name |= {"eval_steps": self.eval_steps} if self.save_strategy == "best" else {}
        for name, steps in steps_by_name.items():
            if (steps or 0) % self.updates:
                multiple = f"steps_per_generation × num_iterations = {self.updates}"
                why = "a checkpoint lies between two rollouts"
                raise ValueError(f"{name}={steps} must be a multiple of {multiple}: {why}")
        if self.metric_for_best_model in ("loss", "eval_loss"):
            fix = "metric_for_best_model='eval_reward' (of load_best_model_at_end, and of"
            text = f"an evaluation samples and scores, and has no loss: {fix} lr_scheduler_type)"
            raise ValueError(text)

    @property
    def updates_a_pass(self) -> int:
        """Optimizer updates that see every answer of a rollout once."""
        return self.steps_per_generation or 1

    @property
    def updates(self) -> int:
        return self.updates_a_pass * self.num_iterations

    @property
    def mini_batch_groups(self) -> int:
        """Groups of one update over all processes."""
        sequences = self.per_device_train_batch_size * self.world_size
        return sequences // ((self.num_generations or 1) * self.oversampling)

    @property
    def loss(self) -> AnyLoss:
        own = CONSTANTS[self.policy_loss]
        constants = {c: getattr(self, name) for c, name in ARGUMENTS.items() if c in own}
        if "eps_high" in constants and self.epsilon_high is None:  # TRL's way to say epsilon
            constants["eps_high"] = self.epsilon
        return loss_of({"name": self.policy_loss, **constants, **(self.loss_constants or {})})

    @property
    def importance_bounds(self) -> ImportanceBounds | None:
        """None: a token counts as it is, whoever sampled it."""
        drift = math.inf if self.importance_drift is None else self.importance_drift
        if not self.vllm_importance_sampling_correction:
            return None if self.importance_drift is None else ImportanceBounds(drift=drift)
        low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        mask = self.vllm_importance_sampling_mode == "token_mask"
        return ImportanceBounds(low or 0.0, math.inf if high is None else high, mask, drift)

    def with_max_steps(self, prompts: int) -> "GPPOConfig":
        """A copy, with `max_steps` counted from `num_train_epochs`; the last rollout is full."""
        args = copy.copy(self)
        if self.max_steps <= 0:
            sequences = self.num_train_epochs * prompts * (self.num_generations or 1)
            args.max_steps = math.ceil(sequences / (self.generation_batch_size or 1)) * self.updates
        return args


def gppo_config(
    s: RLSettings, seed: int, units: dict[str, int], checkpoints: Path,
    positions: int | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
) -> GPPOConfig:  # fmt: skip
    """Settings and `rl_schedule` as TRL's arguments; `positions` are those of the model."""
    updates = units["steps_per_generation"]
    return GPPOConfig(
        **trainer_args(s, seed, checkpoints),
        **s.model_dump(include=SAME_NAME),
        shuffle_dataset=True,
        router_aux_loss_coef=0.0,
        policy_loss=s.loss.name,
        loss_constants=s.loss.model_dump(exclude={"name"}),
        **units,
        **vllm_arguments(s, positions),
        chat_template_kwargs=dict(chat_template_kwargs or {}),
        entropy_coef=s.entropy_weight,
        erc=(s.erc.low, s.erc.high) if s.erc else None,
        cast_lm_head_to_fp32=s.fp32_head,
        micro_batch_tokens=s.runtime.micro_batch_tokens,
        max_completion_length=s.max_tokens,
        lr_scheduler_type="constant_with_warmup",
        logging_steps=updates,
        save_steps=s.checkpoint_steps * updates,
    )


def vllm_arguments(s: RLSettings, positions: int | None = None) -> dict[str, Any]:
    """Where vLLM samples: on CUDA as TRL does it, else by `vllm_on_cpu`. Raises ValueError."""
    if s.engine == "transformers":
        return {}
    runtime, cuda = s.engine_runtime, torch.cuda.is_available()
    if cuda and s.runtime.precision == "fp32" and s.importance_cap is None:
        fix = "set runtime.precision to bf16 or fp16, importance_cap=3, or engine=transformers"
        raise ValueError(f"on CUDA vLLM samples in 16 bits where weights are float32: {fix}")
    arguments: dict[str, Any] = {
        "use_vllm": cuda,
        "vllm_mode": s.engine.removeprefix("vllm_"),
        "vllm_importance_sampling_correction": s.importance_cap is not None,
        "vllm_importance_sampling_clip_max": s.importance_cap,
        "vllm_importance_sampling_clip_min": s.importance_floor,
        "vllm_importance_sampling_mode": "token_mask" if s.importance_floor else "token_truncate",
        "importance_drift": s.importance_drift,
        "vllm_max_model_length": min(s.max_prompt_tokens + s.max_tokens, positions or sys.maxsize),
    }
    if s.engine == "vllm_colocate":
        return arguments | {
            "vllm_gpu_memory_utilization": runtime.gpu_memory_utilization,
            "vllm_tensor_parallel_size": runtime.tensor_parallel,
            "vllm_enable_sleep_mode": cuda,  # it frees GPU memory
        }
    if not cuda:
        raise ValueError("engine=vllm_server needs CUDA to send weights: take vllm_colocate")
    # two stages on one machine must not meet at one port
    named = {"vllm_server_base_url": s.runtime.vllm_server_url, "vllm_group_port": get_free_port()}
    return arguments | named
