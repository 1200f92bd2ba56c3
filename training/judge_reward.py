"""The RL reward: the one judge, called once for all answers of a rollout."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from transformers import TrainerState

from eval.records import Problem, Score


class ManyJudge(Protocol):
    """What `eval.judge.Judge` offers."""

    def judge_many(
        self, items: Iterable[tuple[Problem, str, int]], /, draw: int
    ) -> Iterable[Score]: ...


class JudgeReward:
    """A TRL reward function. None is unscored: the answer leaves its group, it is never a 0.

    Where a problem is judged on a part of its tests, all answers of a step share that part, and
    the next step draws another.
    """

    __name__ = "judge"

    def __init__(self, judge: ManyJudge, problems: Sequence[Problem]) -> None:
        self.judge = judge
        self.problems: Mapping[str, Problem] = {p.id: p for p in problems}
        self.scores: list[Score] = []
        """Of the latest rollout, in the order of its answers."""

    def __call__(
        self,
        *,
        completions: list[Any],
        problem_id: list[str],
        trainer_state: TrainerState,
        log_metric: Any = None,
        **_: Any,
    ) -> list[float | None]:
        texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
        seen: dict[str, int] = {}
        items = []
        for pid, text in zip(problem_id, texts, strict=True):
            seen[pid] = seen.get(pid, -1) + 1
            items.append((self.problems[pid], text, seen[pid]))
        self.scores = list(self.judge.judge_many(items, draw=trainer_state.global_step))
        if log_metric is not None:
            for name, value in components(self.scores).items():
                log_metric(name, value)
        return [s.reward for s in self.scores]


def components(scores: Sequence[Score]) -> dict[str, float]:
    """Shares of the rollout behind its mean reward; unscored answers count in `unscored` only.

    Of this process: the trainer logs their mean over processes. That is no way to join standard
    deviations, so `reward/std` comes from `training.rollout_metrics`, which sees all rewards.
    """
    scored = [s for s in scores if not s.unscored]
    shares = {"reward/unscored": 1 - len(scored) / max(1, len(scores))}
    if scored:
        shares["reward/mean"] = sum(s.reward or 0.0 for s in scored) / len(scored)
        shares["reward/correct"] = sum(bool(s.correct) for s in scored) / len(scored)
        shares["reward/pass_rate"] = sum(s.pass_rate or 0.0 for s in scored) / len(scored)
        for verdict in sorted({s.verdict for s in scored}):
            share = sum(s.verdict == verdict for s in scored) / len(scored)
            shares[f"verdict/{verdict}"] = share
    return shares


def audit_rows(count: int, size: int, step: int) -> list[int]:
    """Which of `size` answers of rollout `step` are kept to read: the same ones every time."""
    return sorted(random.Random(f"audit:{step}").sample(range(size), min(count, size)))
