"""GRPOConfig with what GPPO adds."""

from dataclasses import dataclass, field

from trl.trainer.grpo_config import GRPOConfig

from training.losses import POLICY_LOSSES, Clip


@dataclass
class GPPOConfig(GRPOConfig):
    """One rollout feeds `steps_per_generation` optimizer updates; each takes
    `per_device_train_batch_size` sequences on each device, cut into micro-batches by tokens.

    Use `training.schedule.rl_schedule` to get these numbers from prompts and rollouts.
    """

    policy_loss: str = field(default="gppo", metadata={"help": "gppo|clip_higher|grpo|cispo"})
    epsilon_high: float | None = field(default=0.28, metadata={"help": "ε_high (Eq. 5, §4.1)"})
    beta1: float = field(default=1.0, metadata={"help": "β1 of Eq. 17, low side"})
    beta2: float = field(default=1.0, metadata={"help": "β2 of Eq. 17, high side"})
    dual_clip: float | None = field(default=None, metadata={"help": "c of the authors' code"})
    lm_weight: float = field(default=0.1, metadata={"help": "α of Eq. 14"})
    positive_reward: float = field(
        default=1.0, metadata={"help": "An answer with at least this reward is correct (Eq. 13)"}
    )
    advantage_std: str = field(default="population", metadata={"help": "population|unbiased"})
    drop_zero_advantage: bool = field(
        default=True, metadata={"help": "Groups of equal rewards leave before the forward pass"}
    )
    micro_batch_tokens: int = field(
        default=36_864, metadata={"help": "Tokens, padding included, in one forward pass"}
    )
    vllm_importance_sampling_correction: bool = field(
        default=False, metadata={"help": "Off: old log-probabilities are recomputed, as Klear does"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy_loss not in POLICY_LOSSES:
            raise ValueError(f"policy_loss={self.policy_loss!r}; choose from {list(POLICY_LOSSES)}")
        if self.advantage_std not in ("population", "unbiased"):
            raise ValueError(f"advantage_std={self.advantage_std!r}; population or unbiased")
        needed = {
            "gradient_accumulation_steps": (1, "micro_batch_tokens cuts the mini-batch instead"),
            "num_iterations": (1, "GPPO makes one pass over a rollout (§4.1)"),
            "beta": (0.0, "there is no KL loss (§4.1)"),
            "vllm_importance_sampling_correction": (False, "GPPO recomputes old log-probabilities"),
            "importance_sampling_level": ("token", "the ratio is per token (Eq. 11)"),
            "mask_truncated_completions": (False, "truncated answers are scored as wrong"),
        }
        for name, (value, why) in needed.items():
            if getattr(self, name) != value:
                raise ValueError(f"GPPOTrainer needs {name}={value}: {why}")

    @property
    def clip(self) -> Clip:
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        return Clip(self.epsilon, high, self.beta1, self.beta2, self.dual_clip)
