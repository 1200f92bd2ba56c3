"""klear's judge in prime-rl: an environment of its library verifiers. Install this file as the
module `klear_judge`, and name it: `[[orchestrator.train.env]]`, `id = "klear-judge"`.
"""

import asyncio
from pathlib import Path

import verifiers as vf
from datasets import Dataset

from klear.eval.judge.judge import Judge
from klear.eval.records import Problem


def load_environment(problems: str):
    """`problems`: a file as `klear judge` reads it, one problem a line."""
    judge, lines = Judge(), Path(problems).read_text().splitlines()
    prompts = [Problem.model_validate_json(line).prompt for line in lines]
    rows = [
        {"prompt": [{"role": "user", "content": prompt}], "answer": line}
        for prompt, line in zip(prompts, lines, strict=True)
    ]

    async def judged(completion, answer) -> float:
        problem, text = Problem.model_validate_json(answer), completion[-1]["content"]
        score = await asyncio.to_thread(judge.judge, problem, text)
        if score.reward is None:
            raise RuntimeError(f"not judged: {score.reason}")
        return score.reward

    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[judged]))
