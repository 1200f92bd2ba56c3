"""klear's judge as a reward function of TRL: `reward_funcs=judged`, in GRPOTrainer or GPPOTrainer.

The dataset has a column `problem`: one line of a problems file, as `klear judge` reads it.
"""

from klear.eval.judge.judge import Judge
from klear.eval.records import Problem

JUDGE = Judge()  # its workers start with the first answer that needs one


def judged(completions, problem, **_):
    """None is an answer that could not be judged: it has no reward, which is not a reward of 0."""
    texts = [completion[0]["content"] for completion in completions]
    problems = [Problem.model_validate_json(line) for line in problem]
    items = zip(problems, texts, range(len(texts)), strict=True)
    return [score.reward for score in JUDGE.judge_many(items)]
