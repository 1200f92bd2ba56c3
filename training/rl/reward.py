"""The RL reward: the one judge, called once for all answers of a rollout."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformers import TrainerState

from eval.judge.judge import Judge
from eval.records import Problem, Score


class JudgeReward:
    """A TRL reward function. None is unscored: the answer leaves its group, it is never a 0.

    Where a problem is judged on a part of its tests, all answers of a step share that part, and
    the next step draws another.
    """

    __name__ = "judge"

    def __init__(self, judge: Judge, problems: Sequence[Problem]) -> None:
        self.judge = judge
        self.problems = {p.id: p for p in problems}
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
        seen: Counter[str] = Counter()
        items = []
        for id_, turns in zip(problem_id, completions, strict=True):
            text = turns if isinstance(turns, str) else turns[-1]["content"]
            items.append((self.problems[id_], text, seen[id_]))
            seen[id_] += 1
        self.scores = list(self.judge.judge_many(items, draw=trainer_state.global_step))
        if log_metric is not None:
            for name, value in components(self.scores).items():
                log_metric(name, value)
        return [s.reward for s in self.scores]


def components(scores: Sequence[Score]) -> dict[str, float]:
    """Shares of the rollout behind its mean reward; unscored answers count in `unscored` only.

    Of this process: the trainer logs their mean over processes. That is no way to join standard
    deviations, so `reward/std` comes from `training.rl.statistics`, which sees all rewards.
    """
    scored = [s for s in scores if not s.unscored]
    shares = {"reward/unscored": 1 - len(scored) / max(1, len(scores))}
    if scored:
        shares["reward/mean"] = sum(s.reward or 0.0 for s in scored) / len(scored)
        shares["reward/correct"] = sum(bool(s.correct) for s in scored) / len(scored)
        shares["reward/pass_rate"] = sum(s.pass_rate or 0.0 for s in scored) / len(scored)
        for verdict, count in sorted(Counter(s.verdict for s in scored).items()):
            shares[f"verdict/{verdict}"] = count / len(scored)
    return shares
