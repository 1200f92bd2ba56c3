"""The policy losses of RL: each has a name and the constants that its equation reads, under the
names of the equation. The equations are the functions of `training/losses.py`, named alike.

rl_math:
  loss: cispo                        # with its defaults
  loss: {name: gppo, beta1: 0.5}     # what is left out has its default
"""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from .base import Settings
from .explain import nearest

Epsilon = Annotated[float, Field(gt=0, lt=1)]


class LossSettings(Settings):
    """What a policy loss reads."""

    name: str

    @property
    def clip_range(self) -> tuple[float, float]:
        """Ratios δ outside of it count as clipped; of a loss without one: the paper's (§4.1)."""
        return 1 - 0.2, 1 + 0.28


class Clipped(LossSettings):
    """Two bounds (Eq. 5)."""

    eps_low: Epsilon = 0.2
    """ε low (Eq. 5): tokens with δ below 1 - ε are clipped; §2.3: 0.2"""
    eps_high: PositiveFloat = 0.28
    """ε high (Eq. 5): tokens with δ above 1 + ε are clipped; §4.1: 0.28"""

    @property
    def clip_range(self) -> tuple[float, float]:
        return 1 - self.eps_low, 1 + self.eps_high


class DualClipped(LossSettings):
    """Also a bound for tokens of wrong answers."""

    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c of the authors' code (10): no gradient where the advantage is negative and δ > c; absent
    from the paper: off"""

    @model_validator(mode="after")
    def it_lies_above_the_clip_range(self) -> Self:
        high = self.clip_range[1]
        if self.dual_clip is not None and self.dual_clip <= high:
            raise ValueError(f"dual_clip={self.dual_clip:g} must be above {high:g}, the clip range")
        return self


class GPPO(DualClipped, Clipped):
    """Gradient-preserving clipping (§3.2.2, Eq. 11)."""

    name: Literal["gppo"] = "gppo"
    beta1: NonNegativeFloat = 1.0
    """β1 (Eq. 17): weight of the gradient of clipped tokens with δ < 1 - ε low; §3.2.2: 1"""
    beta2: NonNegativeFloat = 1.0
    """β2 (Eq. 17): weight of the gradient of clipped tokens with δ > 1 + ε high; §3.2.2: 1"""


class ClipHigher(DualClipped, Clipped):
    """Clipping with asymmetric bounds (Eq. 7)."""

    name: Literal["clip_higher"] = "clip_higher"


class GRPO(DualClipped):
    """Clipping with one bound (Eq. 3)."""

    name: Literal["grpo"] = "grpo"
    eps: Epsilon = 0.2
    """ε (Eq. 3): tokens with δ outside of 1 ± ε are clipped"""

    @property
    def clip_range(self) -> tuple[float, float]:
        return 1 - self.eps, 1 + self.eps


class CISPO(DualClipped, Clipped):
    """The clipped ratio is a weight (Eq. 15)."""

    name: Literal["cispo"] = "cispo"


class DGPO(Clipped):
    """A clipped token's gradient decays (arXiv 2603.14389)."""

    name: Literal["dgpo"] = "dgpo"
    n: PositiveInt = 1
    """Below the clip range the weight is δ·(δ/(1 - ε low))^n; authors' code: 1"""
    m: PositiveInt = 2
    """Above the clip range the weight is δ·((1 + ε high)/δ)^(1/m); authors' code: 2"""


class DPPO(Clipped):
    """Binary total variation (arXiv 2602.04879): the bounds are of π - π old."""

    name: Literal["dppo_tv"] = "dppo_tv"
    cap: PositiveFloat = 20.0
    """Largest weight of a token; verl: 20"""


class GSPO(Clipped):
    """The ratio of a whole answer (arXiv 2507.18071)."""

    name: Literal["gspo"] = "gspo"


class SAPO(LossSettings):
    """A gate instead of clipping (arXiv 2511.20347)."""

    name: Literal["sapo"] = "sapo"
    temperature_pos: PositiveFloat = 1.0
    """τ of the gate where the advantage is positive; TRL: 1"""
    temperature_neg: PositiveFloat = 1.05
    """τ where it is not; TRL: 1.05"""


class VESPO(LossSettings):
    """w^k·exp(λ(1 - w)) of an answer's ratio w (arXiv 2602.10693)."""

    name: Literal["vespo"] = "vespo"
    k_pos: PositiveFloat = 2.0
    """k where the advantage is not negative; TRL: 2"""
    lambda_pos: PositiveFloat = 3.0
    """λ there; TRL: 3"""
    k_neg: PositiveFloat = 3.0
    """k where the advantage is negative; TRL: 3"""
    lambda_neg: PositiveFloat = 2.0
    """λ there; TRL: 2"""


AnyLoss = GPPO | ClipHigher | GRPO | CISPO | DGPO | DPPO | GSPO | SAPO | VESPO
_ALL: tuple[type[AnyLoss], ...] = get_args(AnyLoss)
LOSSES = {loss.model_fields["name"].default: loss for loss in _ALL}
CONSTANTS = {n: tuple(f for f in loss.model_fields if f != "name") for n, loss in LOSSES.items()}
"""What each of them reads."""


def loss_of(value: Any) -> Any:
    """A bare name is that loss, constants without a name are gppo's; unread ones are refused."""
    group = {"name": value} if isinstance(value, str) else value
    if isinstance(group, LossSettings):
        return group
    if not isinstance(group, dict):
        raise ValueError(f"{value!r} is no loss: write its name, or {{name: gppo, beta1: 0.5}}")
    name = str(group.get("name", "gppo"))
    if name not in LOSSES:
        raise ValueError(f"no loss is called {name!r}{nearest(name, LOSSES)} ({', '.join(LOSSES)})")
    for constant in group:
        if constant not in ("name", *CONSTANTS[name]):
            raise ValueError(unread(name, str(constant)))
    return LOSSES[name].model_validate(group)


def unread(loss: str, *constants: str, label: str = "") -> str:
    """Why this loss takes none of some constants, which the message calls `label`, or so."""
    own = CONSTANTS[loss]
    readers = [name for name, read in CONSTANTS.items() if {*constants} & {*read}]
    fix = f"leave it out, or take the loss {' or '.join(readers)}"
    if not readers:
        fix = f"no loss does{nearest(constants[0], own)}"
    label = label or constants[0]
    return f"{label} is not read by the loss {loss}, which reads {', '.join(own)}: {fix}"


PolicyLoss = Annotated[AnyLoss, Field(discriminator="name"), BeforeValidator(loss_of)]
