"""GRPOConfig with what GPPO adds."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

from trl.trainer.grpo_config import GRPOConfig

from training.losses import MAX_LOG_RATIO, POLICY_LOSSES, Clip
from training.update_plan import PlanUnits

LARGEST_LOG_RATIO = 80.0  # e^88 is the end of float32


@dataclass
class GPPOConfig(GRPOConfig):
    """One rollout feeds `steps_per_generation` optimizer updates; each takes
    `per_device_train_batch_size / oversampling` sequences on each device, cut into micro-batches
    by tokens.

    Use `training.schedule.rl_schedule` to get these numbers from prompts and rollouts.
    """

    policy_loss: str = field(default="gppo", metadata={"help": "gppo|clip_higher|grpo|cispo"})
    epsilon_high: float | None = field(default=0.28, metadata={"help": "ε_high (Eq. 5, §4.1)"})
    beta1: float = field(default=1.0, metadata={"help": "β1 of Eq. 17, low side"})
    beta2: float = field(default=1.0, metadata={"help": "β2 of Eq. 17, high side"})
    dual_clip: float | None = field(default=None, metadata={"help": "c of the authors' code"})
    max_log_ratio: float = field(
        default=MAX_LOG_RATIO, metadata={"help": "|log δ| is clamped to this before exp"}
    )
    lm_weight: float = field(default=0.1, metadata={"help": "α of Eq. 14"})
    positive_reward: float = field(
        default=1.0, metadata={"help": "An answer with at least this reward is correct (Eq. 13)"}
    )
    advantage_std: str = field(default="population", metadata={"help": "population|unbiased"})
    drop_zero_advantage: bool = field(
        default=True, metadata={"help": "Groups of equal rewards leave before the forward pass"}
    )
    oversampling: int = field(
        default=1,
        metadata={"help": "Generate this many times the prompts that are trained on; survivors "
                  "beyond the batch are left out (the authors' code: 2)"},
    )  # fmt: skip
    overlong_filter: bool = field(
        default=False,
        metadata={"help": "Answers cut at the length limit leave their group unrewarded"},
    )
    micro_batch_tokens: int = field(
        default=36_864, metadata={"help": "Tokens, padding included, in one forward pass"}
    )
    packed: bool | None = field(
        default=None,
        metadata={"help": "Sequences of a micro-batch in one row without padding; default: with "
                  "flash attention, whose kernel has variable lengths"},
    )  # fmt: skip
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "True: weigh tokens by min(π_old/π_sampler, vllm_importance_sampling_"
                  "clip_max); off, as the authors: the trainer's own probabilities count alone"},
    )  # fmt: skip
    vllm_importance_sampling_mode: str = field(
        default="token_truncate", metadata={"help": "token_truncate is the only mode"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy_loss not in POLICY_LOSSES:
            raise ValueError(f"policy_loss={self.policy_loss!r}; choose from {list(POLICY_LOSSES)}")
        if self.advantage_std not in ("population", "unbiased"):
            raise ValueError(f"advantage_std={self.advantage_std!r}; population or unbiased")
        if not 0 < self.max_log_ratio <= LARGEST_LOG_RATIO:
            raise ValueError(
                f"max_log_ratio={self.max_log_ratio}: above 0, and at most {LARGEST_LOG_RATIO:g}, "
                "or the ratio overflows"
            )
        needed = {
            "gradient_accumulation_steps": (1, "micro_batch_tokens cuts the mini-batch instead"),
            "num_iterations": (1, "GPPO makes one pass over a rollout (§4.1)"),
            "beta": (0.0, "there is no KL loss (§4.1)"),
            "vllm_importance_sampling_mode": (
                "token_truncate",
                "a product over a whole sequence masks long answers at random",
            ),
            "importance_sampling_level": ("token", "the ratio is per token (Eq. 11)"),
            "mask_truncated_completions": (False, "use overlong_filter"),
        }
        for name, (value, why) in needed.items():
            if getattr(self, name) != value:
                raise ValueError(f"GPPOTrainer needs {name}={value}: {why}")
        self._check_the_groups_are_whole()

    def _check_the_groups_are_whole(self) -> None:
        group, times = self.num_generations or 1, self.oversampling
        if times < 1:
            raise ValueError(f"oversampling={times}: 1 is none, 2 generates twice the prompts")
        each = self.per_device_train_batch_size
        local = each * (self.steps_per_generation or 1)
        if local % group:
            raise ValueError(
                f"a device must generate whole groups: per_device_train_batch_size × "
                f"steps_per_generation = {each} × {self.steps_per_generation} = {local} is no "
                f"multiple of num_generations = {group}"
            )
        mini_batch = each * self.world_size
        if mini_batch % (group * times):
            raise ValueError(
                f"a mini-batch must hold whole groups: per_device_train_batch_size × processes / "
                f"oversampling = {each} × {self.world_size} / {times} is no multiple of "
                f"num_generations = {group}"
            )

    @property
    def clip(self) -> Clip:
        high = self.epsilon_high
        if high is None or self.policy_loss == "grpo":  # Eq. 3 has one ε
            high = self.epsilon
        return Clip(self.epsilon, high, self.beta1, self.beta2, self.dual_clip, self.max_log_ratio)

    @property
    def importance_cap(self) -> float | None:
        """The cap of the correction for a sampler that differs from the trainer; None: off."""
        if not self.vllm_importance_sampling_correction:
            return None
        cap = self.vllm_importance_sampling_clip_max
        if cap is None or cap <= 0:
            raise ValueError(f"vllm_importance_sampling_clip_max={cap}: the correction needs a cap")
        return cap

    def plan_units(self, pad_id: int, *, packed: bool) -> PlanUnits:
        group = self.num_generations or 1
        mini_batch = self.per_device_train_batch_size * self.world_size
        return PlanUnits(
            group_size=group,
            mini_batch_groups=mini_batch // (group * self.oversampling),
            most_updates=self.steps_per_generation or 1,
            budget=self.micro_batch_tokens,
            pad_id=pad_id,
            packed=packed,
        )


def whole_run(args: GPPOConfig, dataset: Any) -> GPPOConfig:
    """`args` with `max_steps` counted from `num_train_epochs` where it is not given.

    An epoch is every prompt once, and the last rollout is a full one.
    """
    if args.max_steps > 0:
        return args
    if not hasattr(dataset, "__len__"):
        raise ValueError("a streamed train_dataset has no length: set max_steps")
    group, updates = args.num_generations or 1, args.steps_per_generation or 1
    sequences = args.num_train_epochs * len(dataset) * group
    rollouts = math.ceil(sequences / (args.generation_batch_size or 1))
    args = copy.copy(args)
    args.max_steps = rollouts * updates
    return args
