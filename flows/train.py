"""Base model → long-CoT SFT → math RL → code RL (§4.1)."""

from dataclasses import dataclass

from configs.placing import placed
from configs.settings import Pipeline
from flows.data import Data
from tasks.store import Artifact
from tasks.train import base, rl, sft

rl_math, rl_code = rl.named("rl_math"), rl.named("rl_code")


@dataclass(frozen=True)
class Checkpoints:
    """The model after each step of training that this run has; None: left out of the plan."""

    base: Artifact
    sft: Artifact | None
    rl_math: Artifact | None
    rl_code: Artifact

    @property
    def named(self) -> tuple[tuple[str, Artifact], ...]:
        """The models there are, in training order."""
        every = (
            ("base", self.base),
            ("sft", self.sft),
            ("rl_math", self.rl_math),
            ("rl_code", self.rl_code),
        )
        return tuple((name, model) for name, model in every if model is not None)


def train(data: Data, s: Pipeline) -> Checkpoints:
    """Two-stage RL: first math, then code, from the SFT model (or from what `base` stands for)."""
    corpus = (data.examples,) if s.base.kind == "random" and data.examples else ()
    start = base(*corpus, settings=s.base)
    tuned = sft(start, data.examples, settings=placed(s.sft, s.topology)) if data.examples else None
    after_math = None
    if s.base.stands_for != "rl_math":
        after_math = rl_math(
            tuned or start, data.rl_problems, settings=placed(s.rl_math, s.topology)
        )
    after_code = rl_code(
        after_math or start, data.rl_problems, settings=placed(s.rl_code, s.topology)
    )
    return Checkpoints(base=start, sft=tuned, rl_math=after_math, rl_code=after_code)
