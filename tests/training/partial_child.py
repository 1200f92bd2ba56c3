"""A stage with partial rollouts that writes down what it samples and what it trains on.

`python partial_child.py CHECKPOINT PROBLEMS OUT JOURNAL SNAPSHOT`, with vLLM. SNAPSHOT is a copy of
OUT as a SIGKILL after the first step would leave it.
"""

import json
import random
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import TrainerCallback

from klear.training.launch.jobs import RLJob
from klear.training.rl import train as rl
from klear.training.rl import vllm_on_cpu
from tests.cluster.fixed_answers import LengthJudge
from tests.training.killed_child import RL

SETTINGS = RL.model_copy(update={
    "engine": "vllm_colocate", "partial_rollouts": True, "importance_cap": 5.0, "steps": 3,
    "learning_rate": 1e-2, "warmup_steps": 0, "checkpoint_steps": 1, "max_tokens": 128,
    "drop_zero_advantage": False,
})  # fmt: skip
"""An untrained model ends some answers long before the others."""


class Scripted:
    """An engine whose tokens follow from the seed of a request, and whose answers have a length."""

    def __init__(self, longest: int, end: int = 0) -> None:
        self.longest, self.end = longest, end
        self.requests: dict[str, list[Any]] = {}

    def length(self, key: str) -> int:
        number, place = map(int, key.split("-"))
        return 1 + (number * 5 + place * 11) % self.longest

    def add(self, key: str, ids: list[int], most: int, seed: int) -> None:
        self.requests[key] = [random.Random(seed), self.longest - most]

    def step(self) -> Iterator[tuple[str, list[int], list[float], bool]]:
        for key, request in [*self.requests.items()]:
            rng, done = request
            ended = done + 1 == self.length(key)
            request[1] += 1
            if ended:
                del self.requests[key]
            token = self.end if ended else rng.randrange(5, 200)
            yield key, [token], [-rng.randrange(1, 64) / 64], ended

    def abort(self, keys: list[str]) -> None:
        for key in keys:
            del self.requests[key]


class ScriptedSampler:
    """In the place of VLLMOnCPU."""

    def __init__(self, model: Any, args: Any) -> None: ...

    @contextmanager
    def awake(self, trainer: Any) -> Iterator[Scripted]:
        yield Scripted(trainer.args.max_completion_length, trainer.eos_token_ids[0])


class Journal:
    """Tokens and log-probabilities by request as the engine gave them, and of trained answers."""

    def __init__(self) -> None:
        self.sampled = defaultdict[str, list[list[Any]]](lambda: [[], []])
        self.trained: list[list[list[Any]]] = []

    def watch(self, step: Any) -> Any:
        def stepped(engine: Any) -> Iterator[Any]:
            for key, tokens, logps, ended in step(engine):
                self.sampled[key][0] += tokens
                self.sampled[key][1] += logps
                yield key, tokens, logps, ended

        return stepped

    def add(self, record: Any) -> None:
        rollout = record.rollout
        for ids, prompt, logps in zip(
            rollout.tokens, rollout.prompt_length, rollout.sampling_logp, strict=True
        ):
            self.trained.append([ids[prompt:].tolist(), logps.tolist()])


def train(
    checkpoint: Path, problems: Path, out: Path, judge: type = LengthJudge, snapshot: Any = None,
    **changes: Any,
) -> Journal:  # fmt: skip
    """Run the stage in this process."""
    journal, build = Journal(), rl.build_trainer

    class Copy(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == SETTINGS.prompts_per_step:  # updates of the first step
                shutil.copytree(out, snapshot)

    def build_trainer(*args: Any) -> Any:
        trainer = build(*args)
        if snapshot is not None:
            trainer.add_callback(Copy())
        return trainer

    def add(self: Any, record: Any) -> None:
        journal.add(record)
        original(self, record)

    engine, original = vllm_on_cpu.SteppedVLLM, rl.RolloutJournal.add
    if vllm_on_cpu.VLLMOnCPU is ScriptedSampler:
        engine = Scripted
    s = SETTINGS.model_copy(update=changes)
    with (
        mock.patch.object(rl, "Judge", judge),
        mock.patch.object(rl, "build_trainer", build_trainer),
        mock.patch.object(rl.RolloutJournal, "add", add),
        mock.patch.object(engine, "step", journal.watch(engine.step)),
    ):
        rl.run_rl(RLJob(out=out, checkpoint=checkpoint, problems=problems, seed=3, settings=s))
    return journal


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    checkpoint, problems, out, file, folder = map(Path, sys.argv[1:])
    journal = train(checkpoint, problems, out, snapshot=None if folder.exists() else folder)
    file.write_text(json.dumps([journal.sampled, journal.trained]))
