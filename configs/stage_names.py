"""The stages of the pipeline, in the order a run goes through them.

Plain names, so that the command line can check `--force` and `--until` without importing them.
"""

from typing import Literal, get_args

StageName = Literal[
    "collect",
    "benchmarks",
    "dedup",
    "decontaminate",
    "distill",
    "judge",
    "rate",
    "judge_rate",
    "difficulty",
    "select",
    "filter_tests",
    "sample",
    "judge_rl",
    "filter_rl",
    "agreement",
    "judge_agreement",
    "base",
    "sft",
    "rl_math",
    "rl_code",
    "evaluate_base",
    "evaluate_sft",
    "evaluate_rl_math",
    "evaluate_rl_code",
    "report",
]
STAGES: tuple[str, ...] = get_args(StageName)
