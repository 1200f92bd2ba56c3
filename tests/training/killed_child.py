"""A training stage that may signal itself: `python killed_child.py KIND … HOOK CALL SIGNAL`.

KIND is sft, rl, or vllm_colocate: rl with that sampler. Without a HOOK (an empty word) the stage
runs to its end. A HOOK is a method of TrainerCallback, or judge_many (of the rollout after update
CALL), load_to_train or save_trained (before the first step and after the last).
"""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import TrainerCallback

from klear.configs.settings.training import RLSettings, SFTSettings, TrainRuntime
from klear.training import models, sft
from klear.training.launch.jobs import RLJob, SFTJob
from klear.training.rl import train as rl
from tests.cluster.fixed_answers import LengthJudge

OUTSIDE = ("load_to_train", "save_trained")  # where a SIGTERM ends the process at once
RUNTIME = TrainRuntime(
    precision="fp32", gradient_checkpointing=False, threads=1, micro_batch_tokens=1024
)
RL = RLSettings(
    steps=4, prompts_per_step=4, rollouts_per_prompt=4, mini_batch_prompts=1, learning_rate=1e-3,
    warmup_steps=1, max_tokens=16, engine="transformers", checkpoint_steps=2,
    runtime=RUNTIME,
)  # fmt: skip
SFT = SFTSettings(
    epochs=2, learning_rate=3e-3, min_learning_rate=3e-4, batch_tokens=256, max_length=256,
    checkpoint_steps=3, optimizer="muon", runtime=RUNTIME,
)  # fmt: skip


def rl_settings(kind: str) -> RLSettings:
    """Of the stage `kind`; vLLM samples two rollouts, of four updates that move the policy far."""
    if kind == "rl":
        return RL
    more = {"engine": kind, "steps": 2, "learning_rate": 1e-2}
    return RL.model_copy(update={**more, "warmup_steps": 0})


def killer(hook: str, call: int, sign: int) -> TrainerCallback:
    """A callback that sends this process the signal in the `call`-th call of `hook`."""
    calls: list[int] = []

    def die(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), sign)

    return type("Killer", (TrainerCallback,), {hook: die})()


def train(
    kind: str,
    checkpoint: Path,
    data: Path,
    out: Path,
    hook: str = "",
    call: int = 0,
    sign: int = signal.SIGKILL,
) -> None:
    """Run the stage in this process; with a `hook`, until the process gets the signal in it."""
    module = sft if kind == "sft" else rl
    original = module.build_trainer

    def build(*args: Any) -> Any:
        trainer = original(*args)
        if hasattr(TrainerCallback, hook):  # first in line: before what marks a checkpoint whole
            trainer.callback_handler.callbacks.insert(0, killer(hook, call, sign))
        return trainer

    class Judge(LengthJudge):
        """With the hook judge_many: signals after update `call`, when the next rollout is made."""

        def judge_many(self, items: Any, draw: int = 0) -> Any:
            if hook == "judge_many" and draw == call:
                os.kill(os.getpid(), sign)
            return super().judge_many(items, draw=draw)

    if hook in OUTSIDE:
        outside = mock.patch.object(models, hook, side_effect=lambda *_: os.kill(os.getpid(), sign))
    else:
        outside = nullcontext()
    build_it = mock.patch.object(module, "build_trainer", build)
    with build_it, outside, mock.patch.object(rl, "Judge", Judge):
        if kind == "sft":
            sft.run_sft(SFTJob(out=out, base=checkpoint, examples=data, seed=3, settings=SFT))
        else:
            s = rl_settings(kind)
            rl.run_rl(RLJob(out=out, checkpoint=checkpoint, problems=data, seed=3, settings=s))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    kind, base, data, out, hook, call, sign = sys.argv[1:]
    train(kind, Path(base), Path(data), Path(out), hook, int(call), int(sign))
