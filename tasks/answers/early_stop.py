"""Early stop: prompts that have enough right answers are asked no more (a setting of distill).

All prompts still open get some samples, these are judged, and the next round begins. So a prompt's
samples depend on its answers alone, a killed stage ends with the same ones, and a round is large
enough to keep an engine busy.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from configs.settings.engines import EarlyStop
from configs.settings.judging import JudgeSettings
from eval.judge.judge import Judge
from eval.records import Problem
from eval.tables import Lookup
from tasks.answers.asking import Plan
from tasks.answers.judge import ScoreJournal, judged
from tasks.store.store import SCRATCH
from training.engines.journal import Journal, journal_path

Ask = Callable[[Plan], float]


def ask_in_rounds(
    out: Path, whole: Plan, with_tests: Path, early: EarlyStop, ask: Ask
) -> tuple[float, int]:
    """Ask until every problem has `early.right` right answers or all of `whole`'s.

    `with_tests` is the parquet of the problems. Returns the tokens a second of the last round that
    asked anything, and how many problems stopped early.
    """
    right: Counter[str] = Counter()
    still, speed, per_prompt, early_ones = list(whole.problems), 0.0, len(whole.indices), 0
    lookup = Lookup(with_tests, Problem)
    for number, start in enumerate(range(0, per_prompt, early.at_once)):
        indices = range(start, min(start + early.at_once, per_prompt))
        plan = Plan(still, indices, whole.seed)
        speed = ask(plan) or speed
        if indices.stop == per_prompt:
            break
        scores = ScoreJournal(out / SCRATCH / f"round-{number:02d}.jsonl")
        _judge_round(scores, out, plan, lookup, early.judge)
        for score in scores:
            right[score.problem_id] += score.correct is True
        early_ones += sum(right[p.id] >= early.right for p in still)
        still = [p for p in still if right[p.id] < early.right]
        if not still:
            break
    return speed, early_ones


def _judge_round(
    scores: ScoreJournal, out: Path, plan: Plan, lookup: Lookup[Problem], settings: JudgeSettings
) -> None:
    """Judge the answers of one round; verdicts on file are not judged again."""
    with Journal(journal_path(out)) as journal:
        left = [k for k in plan.sample_keys() if k in journal][scores.done :]
        if left:
            with Judge(settings) as judge:
                for _ in scores.append(judged(judge, lookup, journal.samples(left))):
                    pass
