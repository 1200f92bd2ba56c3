"""Partial rollouts: no step waits for its longest answers (APRIL, arXiv 2509.18521).

As many answers as a step judges are decoded at all times. A rollout ends when as many groups as it
judges are complete over all processes: one that waited for its own share would wait for the longest
again. What is unfinished goes on in the next rollout under the new weights. Every token keeps the
log-probability that the sampler gave it, so ρ = π_old/π_sampler weighs it for the policy that it is
from, and the losses clip π_θ/π_old, with π_old the policy as the step begins: the decoupled PPO
objective of AReaL (arXiv 2505.24298).
"""

import json
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..packing import epoch_order
from .rollout import Processes
from .trainer import GPPOTrainer

EVERY = 32  # decoding steps between two counts of what is complete, with several processes


@dataclass
class Answer:
    tokens: array = field(default_factory=lambda: array("i"))
    logps: array = field(default_factory=lambda: array("f"))  # what the sampler gave, float32
    steps: list[list[int]] = field(default_factory=list)
    """[rollout step, tokens decoded in it], oldest first"""
    ended: bool = False

    def extend(self, step: int, tokens: Sequence[int], logps: list[float], ended: bool) -> None:
        if not self.steps or self.steps[-1][0] != step:
            self.steps.append([step, 0])
        self.steps[-1][1] += len(tokens)
        self.tokens.extend(tokens)
        self.logps.extend(logps)
        self.ended = ended


@dataclass
class Group:
    number: int  # from 0, of the prompts in their seeded order over all epochs
    answers: list[Answer]

    @property
    def complete(self) -> bool:
        return all(answer.ended for answer in self.answers)


class SteppedVLLM:
    """Decodes requests token by token, and can be left at any time."""

    def __init__(self, llm: Any, trainer: GPPOTrainer) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.engine = llm.llm_engine
        self.sampling = SamplingParams(
            temperature=trainer.args.temperature,
            logprobs=0,
            stop_token_ids=[*trainer.eos_token_ids],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def add(self, key: str, ids: list[int], most: int, seed: int) -> None:
        """A request for at most so many tokens after `ids`."""
        sampling = self.sampling.clone()
        sampling.max_tokens, sampling.seed = most, seed
        self.engine.add_request(key, {"prompt_token_ids": ids}, sampling)

    def step(self) -> Iterator[tuple[str, Sequence[int], list[float], bool]]:
        """New tokens by request, with their log-probabilities, and whether it has ended."""
        for output in self.engine.step():
            (new,) = output.outputs
            drawn = zip(new.token_ids, new.logprobs, strict=True)
            logps = [values[token].logprob for token, values in drawn]
            yield output.request_id, new.token_ids, logps, output.finished

    def abort(self, keys: list[str]) -> None:
        self.engine.abort_request(keys)


class Pool:
    """Groups that this process has begun and that no rollout has judged, in groups of `size`
    answers, of which `slots` are decoded at once."""

    def __init__(self, size: int, slots: int, seed: int, processes: Processes) -> None:
        self.size, self.slots, self.seed, self.processes = size, slots, seed, processes
        self.groups: list[Group] = []
        self.begun = 0

    def run(
        self, engine: SteppedVLLM, step: int, needed: int, prompt: Callable[[int], list[int]],
        most: int,
    ) -> list[Group]:  # fmt: skip
        """Decode until `needed` groups are complete over all processes, and take them: the first
        begun, on every process the same. `prompt` gives a group's ids; `most`: tokens an answer."""
        running: dict[str, Answer] = {}

        def submit(group: Group) -> None:
            for place, answer in enumerate(group.answers):
                if not answer.ended:
                    key = f"{group.number}-{place}"
                    ids = [*prompt(group.number), *answer.tokens]
                    seed = random.Random(f"{self.seed}:{key}:{step}").getrandbits(63)
                    engine.add(key, ids, most - len(answer.tokens), seed)
                    running[key] = answer

        for group in self.groups:
            submit(group)
        # as many decoding steps on each process: where a rollout ends must not depend on the clock
        every = 1 if self.processes.size == 1 else EVERY
        while sum(self.processes.each(sum(group.complete for group in self.groups))) < needed:
            for _ in range(every):
                while len(running) < self.slots:
                    number = self.begun * self.processes.size + self.processes.rank
                    self.groups.append(Group(number, [Answer() for _ in range(self.size)]))
                    self.begun += 1
                    submit(self.groups[-1])
                for key, tokens, logps, ended in engine.step():
                    running[key].extend(step, tokens, logps, ended)
                    if ended:
                        del running[key]
        engine.abort([*running])
        complete = self.processes.objects([group for group in self.groups if group.complete])
        taken = {group.number: group for group in sorted(complete, key=lambda g: g.number)[:needed]}
        self.groups = [group for group in self.groups if group.number not in taken]
        return [*taken.values()]

    def dumps(self) -> str:
        state = {"processes": self.processes.size, "begun": self.begun, "groups": self.groups}
        return json.dumps(state, default=lambda v: [*v] if isinstance(v, array) else vars(v))

    def loads(self, text: str) -> None:
        """Go on from what `dumps` wrote. Raises ValueError for another number of processes."""
        state = json.loads(text)
        if state["processes"] != self.processes.size:
            mistake = f"the checkpoint has answers of {state['processes']} processes in flight"
            raise ValueError(f"{mistake}, and these are {self.processes.size}: run as many again")
        self.begun = state["begun"]
        self.groups = [
            Group(group["number"], [
                Answer(array("i", a["tokens"]), array("f", a["logps"]), a["steps"], a["ended"])
                for a in group["answers"]
            ])
            for group in state["groups"]
        ]  # fmt: skip


@contextmanager
def colocated(trainer: GPPOTrainer) -> Iterator[SteppedVLLM]:
    """The engine that TRL made on CUDA; it sleeps during updates."""
    generation = trainer.vllm_generation
    trainer.load_policy()
    if generation.enable_sleep_mode:
        generation.llm.wake_up(tags=["kv_cache"])
    yield SteppedVLLM(generation.llm, trainer)
    if generation.enable_sleep_mode:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True


class PartialRollouts(TrainerCallback):
    """Gives `trainer` its rollouts out of a pool, which is a part of every checkpoint."""

    def __init__(
        self, trainer: GPPOTrainer, awake: Callable[[Any], AbstractContextManager[SteppedVLLM]]
    ) -> None:
        """`awake(trainer)`: an engine with the weights that the policy has then."""
        args, processes = trainer.args, trainer.processes
        self.trainer, self.awake = trainer, awake
        self.share = args.per_device_train_batch_size * args.updates_a_pass  # answers
        self.pool = Pool(trainer.num_generations, self.share, args.seed, processes)
        self._before = -1, ""  # updates made when the latest rollout began, and the pool then
        trainer.draw_rows, trainer.rollout_func = self.rows, lambda *_: self._answers
        trainer.callback_handler.callbacks.insert(0, self)  # before what marks a checkpoint whole

    def _row(self, number: int) -> dict[str, Any]:
        dataset: Any = self.trainer.train_dataset
        epoch, place = divmod(number, len(dataset))
        seed, shuffle = self.trainer.args.seed, bool(self.trainer.args.shuffle_dataset)
        return dataset[epoch_order(len(dataset), epoch, seed, shuffle)[place]]

    def _prompt(self, number: int) -> list[int]:
        return self.trainer.chat.prompt_ids([self._row(number)["prompt"][-1]["content"]])[0]

    def rows(self) -> list[dict[str, Any]]:
        """The next rollout of this process: a row of the dataset for each answer."""
        trainer, args, processes = self.trainer, self.trainer.args, self.trainer.processes
        done = trainer.state.global_step
        step, needed = done // args.updates, self.share * processes.size // self.pool.size
        self._before = done, self.pool.dumps()
        with self.awake(trainer) as engine:
            most = args.max_completion_length or 1
            groups = self.pool.run(engine, step, needed, self._prompt, most)
        each = needed // processes.size
        groups = groups[processes.rank * each :][:each]
        answers = [answer for group in groups for answer in group.answers]
        self._answers = {
            "prompt_ids": [self._prompt(g.number) for g in groups for _ in g.answers],
            "completion_ids": [answer.tokens.tolist() for answer in answers],
            "logprobs": [answer.logps.tolist() for answer in answers],
        }
        self._log(step, answers)
        return [self._row(group.number) for group in groups for _ in group.answers]

    def _log(self, step: int, answers: list[Answer]) -> None:
        metrics, processes = self.trainer._metrics["train"], self.trainer.processes
        ages = [(step - of_step, tokens) for a in answers for of_step, tokens in a.steps]
        carried = sum(len(a.tokens) for group in self.pool.groups for a in group.answers)
        sums = [sum(age * n for age, n in ages), sum(n for _, n in ages), carried]
        aged, tokens, carried = processes.total([float(value) for value in sums])
        metrics["partial/age_mean"].append(aged / max(tokens, 1.0))
        metrics["partial/age_max"].append(max(processes.each(max(age for age, _ in ages))))
        metrics["partial/carried_tokens"].append(carried)

    def _file(self, args: Any, state: Any) -> Path:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        return folder / f"partial_rollouts_{self.trainer.processes.rank}.json"

    def on_save(self, args, state, control, **_) -> None:
        """A stop during a rollout saves the state before it, which is that of the weights."""
        done, before = self._before
        text = before if done == state.global_step else self.pool.dumps()
        self._file(args, state).write_text(text)

    def on_train_begin(self, args, state, control, **_) -> None:
        if state.global_step:
            file = self._file(args, state)
            if not file.exists():
                why = "it was written without partial_rollouts, or by fewer processes"
                fix = f"set that back, or remove {file.parents[1]} to begin the stage again"
                raise ValueError(f"{file.parent} has no {file.name}: {why}; {fix}")
            self.pool.loads(file.read_text())
