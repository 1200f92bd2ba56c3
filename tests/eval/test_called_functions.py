"""Functions that a test calls: what they are given, and what they may return."""

import pytest

from configs.judging import JudgeSettings
from eval.records import TestSuite
from eval.sandbox import Sandbox
from eval.verify_code import CodeVerdict, judge_program


@pytest.fixture
def verdict():
    def judged(program: str, **suite) -> CodeVerdict:
        tests = TestSuite.model_validate(suite)
        with Sandbox("bubblewrap") as sandbox:
            return judge_program(sandbox, tests, "p", program, JudgeSettings())

    return judged


def test_a_call_may_return_a_very_long_integer(verdict):
    cases = [{"args": [40_000], "output": 2**40_000}]
    power = "def power(n): return 2 ** n"

    assert verdict(power, kind="call", fn_name="power", cases=cases).verdict == "AC"
    assert verdict(power + " + 1", kind="call", fn_name="power", cases=cases).verdict == "WA"


def test_leetcodes_nodes_may_be_named_in_a_function_that_is_called(verdict):
    program = "def size(head: Optional[ListNode]): return 0 if head is None else 1"
    cases = [{"args": [None], "output": 0}]

    assert verdict(program, kind="call", fn_name="size", cases=cases).verdict == "AC"
