"""A sandbox that fails is replaced once; a second failure is nobody's wrong answer."""

import pytest

from configs.judging import JudgeSettings
from eval import code_task
from eval.records import TestSuite
from eval.sandbox_errors import SandboxDied
from eval.verify_code import CodeVerdict

SUITE = TestSuite.model_validate({"kind": "stdin", "cases": [{"input": "", "output": "1"}]})
RIGHT = CodeVerdict("AC", 1, 1, "", 0.0)


class FakeSandbox:
    started = 0
    closed = 0

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def start(self) -> None:
        FakeSandbox.started += 1

    def close(self) -> None:
        FakeSandbox.closed += 1


@pytest.fixture(autouse=True)
def sandboxes(monkeypatch):
    monkeypatch.setattr(code_task, "Sandbox", FakeSandbox)
    monkeypatch.setattr(code_task, "assert_isolated", lambda sandbox: None)
    monkeypatch.setattr(code_task, "_sandbox", None)
    monkeypatch.setattr(FakeSandbox, "started", 0)
    monkeypatch.setattr(FakeSandbox, "closed", 0)


def judged(monkeypatch, failures: int) -> CodeVerdict | None:
    answers = iter([SandboxDied("gone")] * failures + [RIGHT])

    def judge_program(*_: object) -> CodeVerdict:
        answer = next(answers)
        if isinstance(answer, SandboxDied):
            raise answer
        return answer

    monkeypatch.setattr(code_task, "judge_program", judge_program)
    return code_task.run(SUITE, "p", "print(1)", JudgeSettings())


def test_a_sandbox_serves_many_programs(monkeypatch):
    assert judged(monkeypatch, 0) == judged(monkeypatch, 0) == RIGHT
    assert (FakeSandbox.started, FakeSandbox.closed) == (1, 0)


def test_a_dead_sandbox_is_replaced(monkeypatch):
    assert judged(monkeypatch, 1) == RIGHT
    assert (FakeSandbox.started, FakeSandbox.closed) == (2, 1)


def test_a_second_death_is_an_infrastructure_failure(monkeypatch):
    with pytest.raises(SandboxDied):
        judged(monkeypatch, 2)
    assert FakeSandbox.started == FakeSandbox.closed == 2
