"""A judge that pays for an even length, and rollouts that depend on no generator: so one process
and two can be compared.

`python -m tests.cluster.fixed_answers JOB.json` is `training.launch.run_job` with both: answers
follow from the prompt and the place in its group.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

from klear.eval.records import Problem, Score

GROUP = 4


class LengthJudge(nullcontext):
    """In the place of the judge, which would start a sandbox on every node; an untrained model has
    something to learn from it."""

    def __init__(self, settings: Any = None, remember: int = 0) -> None:
        super().__init__(self)

    def judge_many(
        self, items: Iterable[tuple[Problem, str, int]], draw: int = 0
    ) -> Iterator[Score]:
        for problem, text, index in items:
            good = len(text) % 2 == 0
            share, verdict = float(good), "AC" if good else "WA"
            yield Score(problem_id=problem.id, index=index, reward=share, correct=good,
                        pass_rate=share, verdict=verdict)  # fmt: skip


def roll_out(prompts: list[Any], trainer: Any, **_: Any) -> dict[str, Any]:
    """TRL's hook: 2 to 10 tokens of text for each prompt."""
    texts = [turns[-1]["content"] for turns in prompts]
    answers = [
        [65 + number(text, i % GROUP, j) % 60 for j in range(2 + number(text, i % GROUP) % 9)]
        for i, text in enumerate(texts)
    ]
    ids = trainer.chat.prompt_ids(texts)
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}


def number(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


def train(arguments: list[str]) -> int:
    """`training.launch.run_job`; SFT is as ever."""
    from klear.training.launch import run_job

    run_job.hide_unneeded()
    from klear.training.rl import train as rl

    judge = mock.patch.object(rl, "Judge", LengthJudge)
    with judge, mock.patch.object(rl, "roll_out", roll_out):
        return run_job.main(arguments)


if __name__ == "__main__":
    sys.exit(train(sys.argv[1:]))
