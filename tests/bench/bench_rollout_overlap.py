"""What one RL step of the paper costs when its rollouts do, or do not, wait for the longest answer.

    python tests/bench/bench_rollout_overlap.py [--steps 30] [--stretch 1 3]

A simulation, no measurement: Qwen3-8B on H100s, 128 prompts of 8 answers, answers as long as the
graded chains of thought in ../shared/data (30 problems of AIME 2024, 33 answers each; a group draws
from one problem), cut at 32,768 tokens; `--stretch 3` makes each three times as long before that.
The schemes:

- synchronous: all cards generate 1,024 answers, then all cards train;
- early stop: twice the prompts; the step trains on the first 128 groups that are complete, and what
  is unfinished is thrown away;
- partial: as many answers in flight at all times; 128 complete groups end the step, and unfinished
  answers go on in the next one, under the new weights;
- partial by share: so, but each card ends by itself, with its share of the groups;
- overlap: some cards generate the next step while the others train on the last.

One JSON line a scheme, length and number of cards: seconds a step, times faster than synchronous,
tokens of the trained answers, and how many steps before it trains an answer was begun, by tokens.
"""

import argparse
import gzip
import heapq
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
PROMPTS, GROUP, PROMPT_TOKENS, MOST = 128, 8, 150, 32_768
PARAMETERS = 8.19e9
WEIGHT_BYTES = 2 * PARAMETERS  # bfloat16
CACHE_BYTES = 36 * 8 * 128 * 2 * 2  # a token: layers x key-value heads x width, keys and values
FLOPS, BANDWIDTH = 989e12, 3.35e12  # an H100 SXM's, dense bfloat16 and HBM3
COMPUTE_SHARE, BANDWIDTH_SHARE, TRAIN_SHARE = 0.6, 0.7, 0.4
"""Of the card's peak that decoding, its reads of memory, and training reach."""
STEP_S = 0.003  # the scheduler and the sampler, a decoding step
TRAIN_FLOPS = (2 + 6 + 2) * PARAMETERS  # a token: π_old, forward and backward, recomputation
PREFILL_FLOPS = 2 * PARAMETERS


def lengths_by_problem() -> list[list[int]]:
    """Tokens of the answers of each problem, by Qwen3's tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(SHARED / "tokenizers" / "qwen3" / "tokenizer.json"))
    answers = defaultdict[str, list[str]](list)
    with gzip.open(SHARED / "skythought_cot" / "aime24.jsonl.gz", "rt") as file:
        for row in map(json.loads, file):
            answers[row["question"]].append(row["response"])
    encode = tokenizer.encode_batch_fast
    return [[len(e) for e in encode(texts)] for texts in answers.values()]


@dataclass
class Answer:
    group: int
    tokens: int
    done: int = 0
    """Tokens of earlier steps, whose keys and values are computed again"""
    first_step: int = 0
    """The step that it was begun in"""


class Instance:
    """One card that decodes: every active answer gets a token a step."""

    def __init__(self) -> None:
        self.time, self.decoded = 0.0, 0
        self._ends: list[tuple[int, int, Answer]] = []
        self._context = 0  # tokens of prompts and answers, all active answers
        self._added = itertools.count()  # of equal ends the first that came

    def add(self, answer: Answer) -> None:
        end = self.decoded + answer.tokens - answer.done
        heapq.heappush(self._ends, (end, next(self._added), answer))
        self._context += PROMPT_TOKENS + answer.done
        self.time += (PROMPT_TOKENS + answer.done) * PREFILL_FLOPS / (FLOPS * COMPUTE_SHARE)

    @property
    def active(self) -> int:
        return len(self._ends)

    def next_end(self) -> float:
        """When the next answer is finished, if none is added before."""
        return self.time + self._seconds(self._ends[0][0] - self.decoded)

    def finish_next(self) -> Answer:
        steps = self._ends[0][0] - self.decoded
        self.time += self._seconds(steps)
        self.decoded += steps
        self._context += steps * self.active
        _, _, answer = heapq.heappop(self._ends)
        self._context -= PROMPT_TOKENS + answer.tokens
        return answer

    def stop(self, time: float) -> list[Answer]:
        """The unfinished answers at `time`, each with the tokens that it has by then."""
        left = time - self.time
        steps = int(left / self._seconds(1)) if self._ends and left > 0 else 0
        unfinished = []
        for end, _, answer in self._ends:
            answer.done = min(answer.tokens - 1, answer.tokens - (end - self.decoded) + steps)
            unfinished.append(answer)
        return unfinished

    def _seconds(self, steps: int) -> float:
        """Of `steps` decoding steps with what is active now: whichever is slower, memory or
        arithmetic; the context grows meanwhile, so its mean is read."""
        context = self._context + self.active * steps / 2
        read = (WEIGHT_BYTES + context * CACHE_BYTES) / (BANDWIDTH * BANDWIDTH_SHARE)
        compute = self.active * PREFILL_FLOPS / (FLOPS * COMPUTE_SHARE)
        return steps * (max(read, compute) + STEP_S)


class Rollouts:
    """Groups of answers, drawn from real lengths, on `cards` instances."""

    def __init__(self, problems: list[list[int]], cards: int, stretch: float, seed: int) -> None:
        self._random, self._problems, self._stretch = random.Random(seed), problems, stretch
        self.cards, self._groups = cards, 0
        self._finished = defaultdict[int, list[Answer]](list)
        """Answers of groups that are not complete yet"""

    def group(self, step: int = 0) -> list[Answer]:
        self._groups += 1
        drawn = self._random.sample(self._random.choice(self._problems), GROUP)
        tokens = [max(1, min(MOST, int(n * self._stretch))) for n in drawn]
        return [Answer(self._groups, n, first_step=step) for n in tokens]

    def run(
        self, waiting: list[Answer], complete: int, in_flight: int | None = None, step: int = 0
    ) -> tuple[float, list[Answer], list[Answer]]:
        """Seconds until `complete` more groups are complete, their answers, and the unfinished.

        `in_flight` answers run at once: what is more waits, and with fewer left new groups come.
        """
        most = in_flight or len(waiting)
        queue = iter(waiting) if in_flight is None else self._endless(waiting, step)
        instances = [Instance() for _ in range(self.cards)]
        for n in range(most):
            instances[n % self.cards].add(next(queue))
        ends = [(i.next_end(), n) for n, i in enumerate(instances) if i.active]
        heapq.heapify(ends)
        trained = list[Answer]()
        while len(trained) < complete * GROUP:
            _, n = heapq.heappop(ends)
            answer = instances[n].finish_next()
            self._finished[answer.group].append(answer)
            if len(self._finished[answer.group]) == GROUP:
                trained += self._finished.pop(answer.group)
            if in_flight is not None:
                instances[n].add(next(queue))
            if instances[n].active:
                heapq.heappush(ends, (instances[n].next_end(), n))
        now = max(instance.time for instance in instances)
        unfinished = [a for instance in instances for a in instance.stop(now)]
        return now, trained, unfinished

    def _endless(self, waiting: list[Answer], step: int) -> Iterator[Answer]:
        yield from waiting
        while True:
            yield from self.group(step)


def train_seconds(answers: list[Answer], cards: int) -> float:
    tokens = sum(PROMPT_TOKENS + a.tokens for a in answers)
    return tokens * TRAIN_FLOPS / (cards * FLOPS * TRAIN_SHARE)


def synchronous(rollouts: Rollouts, steps: int, prompts: int = PROMPTS) -> dict[str, float]:
    """Of more prompts than a step trains on, the groups that are complete first."""
    seconds, trained = [], list[Answer]()
    for _ in range(steps):
        answers = [a for _ in range(prompts) for a in rollouts.group()]
        generated, complete, _ = rollouts.run(answers, PROMPTS)
        seconds.append(generated + train_seconds(complete, rollouts.cards))
        trained += complete
    return summary(seconds, trained, [0] * len(trained))


def unfinished_go_on(rollouts: Rollouts, steps: int, together: bool) -> dict[str, float]:
    """A step ends for all cards together, or waits for the card whose share of the groups is
    complete last. The first steps fill the queue of long answers: only the second half counts."""
    cards, parts = rollouts.cards, 1 if together else rollouts.cards
    share, waiting = PROMPTS // parts, [list[Answer]() for _ in range(parts)]
    rollouts.cards = cards // parts
    seconds, trained, ages = [], list[Answer](), list[int]()
    for step in range(2 * steps):
        generated, complete = 0.0, list[Answer]()
        for part in range(parts):
            time, ended, waiting[part] = rollouts.run(
                waiting[part], share, in_flight=share * GROUP, step=step
            )
            generated, complete = max(generated, time), complete + ended
        if step >= steps:
            seconds.append(generated + train_seconds(complete, cards))
            trained += complete
            ages += [step - a.first_step for a in complete]
    rollouts.cards = cards
    return summary(seconds, trained, ages)


def overlap(rollouts: Rollouts, steps: int) -> dict[str, float]:
    """The best of the splits by eighths of the cards; every answer is one policy old."""
    total, best = rollouts.cards, dict[str, float]()
    for eighths in range(1, 8):
        rollouts.cards = total * eighths // 8
        seconds, trained = [], list[Answer]()
        for _ in range(steps):
            answers = [a for _ in range(PROMPTS) for a in rollouts.group()]
            generated, complete, _ = rollouts.run(answers, PROMPTS)
            seconds.append(max(generated, train_seconds(complete, total - rollouts.cards)))
            trained += complete
        result = summary(seconds, trained, [1] * len(trained))
        if not best or result["seconds"] < best["seconds"]:
            best = result | {"generating_cards": rollouts.cards}
    rollouts.cards = total
    return best


def summary(seconds: list[float], trained: list[Answer], ages: list[int]) -> dict[str, float]:
    tokens = sum(a.tokens for a in trained)
    age = sum(a.tokens * n for a, n in zip(trained, ages, strict=True)) / tokens
    return {"seconds": mean(seconds), "tokens": tokens / len(trained), "begun_steps_ago": age}


SCHEMES = {
    "synchronous": synchronous,
    "early stop": partial(synchronous, prompts=2 * PROMPTS),
    "partial": partial(unfinished_go_on, together=True),
    "partial by share": partial(unfinished_go_on, together=False),
    "overlap": overlap,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--stretch", type=float, nargs="*", default=[1.0, 3.0])
    options = parser.parse_args()
    problems = lengths_by_problem()
    for stretch in options.stretch:
        for cards in (16, 64):
            base = 0.0
            for name, scheme in SCHEMES.items():
                result = scheme(Rollouts(problems, cards, stretch, seed=0), options.steps)
                base = base or result["seconds"]
                line = {"bench": f"rollout overlap: {name}", "cards": cards, "stretch": stretch}
                line |= {n: round(value, 2) for n, value in result.items()}
                print(json.dumps(line | {"ratio": round(base / result["seconds"], 2)}))


if __name__ == "__main__":
    main()
