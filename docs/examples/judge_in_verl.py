"""klear's judge as verl's reward: `reward.custom_reward_function.path=judge_in_verl.py` and
`reward.custom_reward_function.name=compute_score` (in older versions without `reward.`).

`ground_truth` of a row is one line of a problems file, as `klear judge` reads it.
"""

from klear.eval.judge.judge import Judge
from klear.eval.records import Problem

JUDGE = Judge()


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """verl knows no answer without a score, so one that cannot be judged ends the run."""
    score = JUDGE.judge(Problem.model_validate_json(ground_truth), solution_str)
    if score.reward is None:
        raise RuntimeError(f"not judged: {score.reason}")
    return score.reward
