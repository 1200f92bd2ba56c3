"""The judge on a cluster: what its workers share, and what their deaths may not change."""

import pytest
from processes import killing

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge import workers
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem
from klear.eval.sandbox import MachineUnfit

SETTINGS = JudgeSettings(runtime=JudgeRuntime(workers=1))
RIGHT = "print(sum(map(int, input().split())))"
SLOW = f"import time; time.sleep(1)\n{RIGHT}"


def adding(size: int = 1) -> Problem:
    """Add two numbers, or `size` of them in one of the tests."""
    cases = [
        {"input": "1 2\n", "output": "3\n"},
        {"input": "1 " * size, "output": str(size)},
        *({"input": f"{i} 1\n", "output": f"{i + 1}\n"} for i in range(4)),
    ]
    tests = {"kind": "stdin", "cases": cases, "time_limit_s": 60}
    return Problem.model_validate({"domain": "code", "prompt": f"Add {size}.", "tests": tests})


def answer(problem: Problem, program: str, index: int = 0) -> tuple[Problem, str, int]:
    return problem, f"<think></think>\n```python\n{program}\n# {index}\n```", index


def test_programs_and_a_large_suite_and_math_are_judged_at_once(cluster):
    surd = Problem(domain="math", prompt="The root of 8?", answer=r"2\sqrt{2}")
    problem = adding(200_000)
    with Judge(SETTINGS) as judge:
        waiting = [judge.begin(*answer(problem, (RIGHT, "print(3)")[i % 2], i)) for i in range(8)]
        assert judge.judge(surd, r"<think></think>\boxed{\sqrt{8}}").verdict == "AC"
        assert [wait().verdict for wait in waiting] == ["AC", "WA"] * 4


def test_work_whose_worker_dies_every_time_is_unscored_and_the_next_is_judged(cluster):
    with Judge(SETTINGS) as judge:
        judge.check_sandbox()
        with killing(lambda: cluster.processes("ray::judged")):
            score = judge.judge(*answer(adding(), SLOW))
        assert (score.verdict, score.reward, score.correct) == ("IE", None, None)
        assert "lost with its worker 3 times" in score.reason
        assert judge.judge(*answer(adding(), RIGHT)).verdict == "AC"


def test_a_node_with_other_code_judges_nothing(cluster, monkeypatch):
    monkeypatch.setattr(workers, "code_digest", lambda: "another commit")
    with Judge(SETTINGS) as judge, pytest.raises(MachineUnfit, match="install the same commit"):
        judge.judge(*answer(adding(), RIGHT))
