"""Base model → long-CoT SFT → math RL → code RL (§4.1)."""

from dataclasses import dataclass

from configs.settings import Pipeline
from flows.data import Data
from tasks.store import Artifact
from tasks.train import base, rl, sft

rl_math, rl_code = rl.named("rl_math"), rl.named("rl_code")


@dataclass(frozen=True)
class Checkpoints:
    """The model after each step of training."""

    base: Artifact
    sft: Artifact
    rl_math: Artifact
    rl_code: Artifact


def train(data: Data, s: Pipeline) -> Checkpoints:
    """Two-stage RL: first math, then code, from the SFT model."""
    start = base(data.examples, settings=s.base)
    tuned = sft(start, data.examples, settings=s.sft)
    after_math = rl_math(tuned, data.rl_problems, settings=s.rl_math)
    after_code = rl_code(after_math, data.rl_problems, settings=s.rl_code)
    return Checkpoints(base=start, sft=tuned, rl_math=after_math, rl_code=after_code)
