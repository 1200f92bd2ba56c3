"""Programs are judged on all four kinds of tests, and cannot talk their way to a verdict."""

import json
from pathlib import Path

import pytest

from klear.configs.settings.judging import JudgeSettings
from klear.eval.programs import verify
from klear.eval.programs.verify import NamedCall, TestsBroken, as_call, judge_program
from klear.eval.records import Judgement, TestSuite
from klear.eval.sandbox.zygote.values import pack


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text().splitlines()]


@pytest.fixture
def verdict(sandbox):
    def judged(program: str, settings: JudgeSettings | None = None, **suite) -> Judgement:
        return judge_program(sandbox, TestSuite(**suite), program, settings or JudgeSettings())

    return judged


def stdin(*pairs: tuple[str, str], **limits) -> dict:
    return {"kind": "stdin", "cases": [{"input": i, "output": o} for i, o in pairs], **limits}


def asserts(*codes: str, **rest) -> dict:
    return {"kind": "assert", "cases": [{"code": code} for code in codes], **rest}


@pytest.mark.parametrize("row", rows("verdicts.jsonl"), ids=lambda row: row["what"])
def test_a_verdict_names_what_went_wrong(verdict, row):
    result = verdict(row["program"], JudgeSettings(**row.get("settings", {})), **row["suite"])
    assert (result.verdict, result.passed) == (row["verdict"], row["passed"])
    assert result.total == len(row["suite"]["cases"])
    assert result.reason or result.verdict == "AC"


SLEEPS = "import time\ntime.sleep({seconds})\nprint(input())"


@pytest.mark.parametrize(
    ("program", "verdict_of_all", "passed", "more_s"),
    [
        (SLEEPS.format(seconds="60"), "TLE", 0, 1),
        (SLEEPS.format(seconds="3"), "TLE", 3, 4),  # each test passes, all of them take too long
        (SLEEPS.format(seconds="0.3"), "AC", 6, 4),
        (
            "import threading, time\nthreading.Timer(0.3, lambda: print(input())).start()",
            "AC",
            6,
            4,
        ),
        ("n = input()\nwhile n < '4': pass\nprint(n)", "TLE", 2, 4),  # loops are CPU time
        ("import time\nn = input()\nif n == '1': time.sleep(60)\nprint(n)", "TLE", 5, 1),
    ],
)
def test_an_answer_sleeps_for_two_tests_at_most(
    verdict, monkeypatch, program, verdict_of_all, passed, more_s
):
    """`more_s`: of the wall over twice the CPU's, less where nothing but a time-out can come."""
    monkeypatch.setattr(verify, "MORE_WALL_S", more_s)
    tests = stdin(*((f"{i}\n", f"{i}") for i in range(6)), time_limit_s=0.1)
    result = verdict(program, **tests)
    assert (result.verdict, result.passed, result.total) == (verdict_of_all, passed, 6)
    assert result.seconds < 3 * (2 * 0.1 + more_s) + 6


def test_time_outs_in_a_row_can_end_the_judgement(verdict):
    tests = stdin(*[("", "")] * 50, time_limit_s=0.1)
    result = verdict("while True: pass", JudgeSettings(stop_after_timeouts=3), **tests)
    assert (result.verdict, result.passed, result.total) == ("TLE", 0, 50)
    assert "47 tests not run" in result.reason


def test_a_call_may_return_a_long_integer(verdict):
    suite = {"kind": "call", "fn_name": "f", "cases": [{"args": [40_000], "output": 2**40_000}]}
    assert verdict("def f(n): return 2 ** n", **suite).verdict == "AC"
    assert verdict("def f(n): return 2 ** n + 1", **suite).verdict == "WA"


@pytest.mark.parametrize("row", rows("assertions.jsonl"), ids=lambda row: row["what"])
def test_assertions_are_decided_where_the_program_has_no_code(verdict, row):
    # Of CPU: a list that ends nowhere is followed for a second before it is refused.
    tests = asserts(*row["tests"], time_limit_s=4.0, fn_name=row.get("function"))
    try:
        decided = verdict(row["program"], **tests).verdict
    except TestsBroken:
        decided = "IE"
    assert decided in row["verdict"].split(" or ")


@pytest.mark.parametrize(
    ("code", "arguments", "output"),
    [
        ("assert candidate([1, 2], 'x') == -0.5", ([1, 2], "x"), -0.5),
        ("assert Solution().f({'a': 1}) == 'yes', 'message'", ({"a": 1},), "yes"),
        ("assert f((1, 2), {3}) == (4, {5: [6]})", ((1, 2), {3}), (4, {5: [6]})),
        *((code, None, None) for code in ("assert f(x) == 3", "assert f(1) != 3", "\0",
                                          "x = f(1)\nassert x == 2", "assert f(**{'a': 1}) == 2")),
    ],
)  # fmt: skip
def test_an_assertion_of_one_call_and_its_result_is_a_call_and_no_other(code, arguments, output):
    call = arguments and NamedCall("f", pack(list(arguments), print), pack(output, print))
    assert as_call(code, "f") == call
    assert as_call("assert f(b=2, a=1) == 3", "f") == NamedCall("f", [2, 1], 3, ("b", "a"))


@pytest.mark.parametrize("failure", ["sys.exit(3)", "exec('while True: pass')", "import testlib"])
def test_an_output_that_breaks_the_checker_is_wrong_and_its_own_failure_nobodys(verdict, failure):
    checker = f"import sys\nif open('output.txt').read() != '3\\n': {failure}"
    case = {"input": "9\n", "output": "3\n", "checker": checker}
    assert verdict("print(3)", kind="checker", cases=[case]).verdict == "AC"
    suite = {"kind": "checker", "cases": [case], "time_limit_s": 0.5}
    assert verdict("print('x')", **suite).verdict == "WA"
    with pytest.raises(TestsBroken, match="checker"):
        verdict("print('x')", **suite | {"cases": [case | {"output": "x"}]})


YES = ["", "1", "1.0", "100", "ok", "YES", "True", "accepted", "AC", "Correct", "notable", "wait"]
YES += ["no errors", "1 point", "ok 0 errors", "Wrong format\nok"]
NO = ["0", "0.0", "0.5", ".25", "00", "-1", "-1.0", "None", "False", "no", "No.", "FAIL", "failed"]
NO += ["WA", "wa on test 2", "Incorrect", "Wrong answer: line 1", "not ok", "invalid", "1\n0"]


@pytest.mark.parametrize(("words", "accepted"), [(YES, len(YES)), (NO, 0)])
def test_a_checker_says_no_by_a_word_or_by_less_than_all_points(verdict, words, accepted):
    case = {"input": "9\n", "output": "3\n"}
    cases = [case | {"checker": f"print({word!r})"} for word in words]
    assert verdict("print(3)", kind="checker", cases=cases).passed == accepted


# Legitimate ways to read, write and return: a program, the `function` that tests call if they call
# one, and its cases. An expected text `line*1000` stands for a thousand such lines.
IDIOMS = rows("idioms.jsonl")


def suite_of(idiom: dict) -> dict:
    if "function" in idiom:
        calls = [{"args": arguments, "output": output} for arguments, output in idiom["cases"]]
        return {"kind": "call", "fn_name": idiom["function"], "cases": calls}
    return stdin(*((arguments, repeated(output)) for arguments, output in idiom["cases"]))


def repeated(output: str) -> str:
    line, star, times = output.rpartition("\n*")
    return (line + "\n") * int(times) if star else output


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom["name"])
def test_a_legitimate_idiom_is_accepted(verdict, idiom):
    result = verdict(idiom["program"], **suite_of(idiom))
    assert result.verdict == "AC", result.reason


def test_memory_of_numpy_is_memory_and_a_package_that_is_not_there_is_unscored(verdict):
    one = stdin(("", "1"), memory_mb=256)
    assert verdict("import numpy as np\nnp.ones(10**9)", **one).verdict == "MLE"
    missing = verdict("import pandas\nprint(1)", **one)
    assert missing.verdict == "IE"
    assert missing.reason.startswith("test 1 of 1: the program needs the module 'pandas'; the ")
    assert verdict("import klear_not\nimport winreg", **one).verdict == "IE"
    assert verdict("import winreg", **one).verdict == "RE"  # another system's: the program's fault
    assert verdict("try:\n import pandas\nexcept ImportError:\n print(1)", **one).verdict == "AC"
    for package in ("numpy", "scipy.sparse", "sympy", "networkx", "sortedcontainers"):
        roomy = stdin(("", "1"), memory_mb=1024, time_limit_s=20)
        assert verdict(f"import {package}\nprint(1)", **roomy).verdict == "AC", package
