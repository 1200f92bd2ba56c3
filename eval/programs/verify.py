"""A program's verdict: run it on every test in the sandbox, compare outside of it.

The verdict is that of the first test that fails: AC, WA, TLE (CPU or wall time), MLE, OLE, RE, CE.
The wall limit is twice the CPU limit plus 4 s, so that a busy machine fails nobody. After
`stop_after_timeouts` time-outs in a row the remaining tests count as timed out without being run:
otherwise looping programs would cost more than everything else together.

An assertion that is one call with its result is judged as a call (`eval.programs.assert_calls`),
unless the result has no JSON form.

A checker test (many right answers) runs `checker` in the sandbox too, as
`checker.py input.txt output.txt answer.txt` with the program's output also on standard input. The
output is accepted when the checker ends with status 0 and prints nothing that says no (0, false,
wrong, …) on its last line. Status 3 is the checker's own failure (testlib): unscored.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from configs.settings.judging import JudgeSettings
from eval.programs import compare, lcb_runner
from eval.programs.assert_calls import NamedCall, as_call
from eval.records import AssertCase, CallCase, CheckerCase, StdinCase, TestSuite, Verdict
from eval.sandbox.sandbox import Outcome, Sandbox
from eval.sandbox.zygote.asserts import CANNOT_CROSS, PROGRAM_RAISED
from eval.sandbox.zygote.isolation import Limits
from eval.sandbox.zygote.roles import NOT_JSON

_MIB = 1 << 20
_INTERPRETER_BYTES = 64 * _MIB  # address space of the interpreter itself, on top of the limit
_COMPILE_CPU_S = 10.0
_CHECKER_FAILED = 3
_NO = frozenset({"0", "0.0", "false", "no", "wa", "wrong", "wrong answer", "reject", "rejected"})

_SAME_TEXT = {
    "lines": compare.same_text,
    "tokens": compare.same_tokens,
    "livecodebench": lcb_runner.same_text,
}


class TestsBroken(Exception):
    """The tests themselves cannot judge (a checker that fails, no tests): unscored."""

    __test__ = False  # not a pytest class


@dataclass(frozen=True)
class TestResult:
    __test__ = False  # not a pytest class
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class CodeVerdict:
    """`passed` of `total` tests; `verdict` and `reason` are those of the first failure."""

    verdict: Verdict
    passed: int
    total: int
    reason: str
    seconds: float


def chosen_suite(
    suite: TestSuite, problem_id: str, max_tests: int | None, draw: int = 0
) -> TestSuite:
    """The suite with the tests that every answer of this problem is judged on: all, or a sample
    fixed by id and draw.

    Answers to one prompt in one step of RL are compared with each other, so they share a draw.
    """
    if max_tests is None or len(suite.cases) <= max_tests:
        return suite
    seed = f"{problem_id}/{draw}" if draw else problem_id
    chosen = random.Random(seed).sample(range(len(suite.cases)), max_tests)
    return suite.model_copy(update={"cases": tuple(suite.cases[i] for i in sorted(chosen))})


def limits_of(suite: TestSuite, settings: JudgeSettings) -> Limits:
    cpu_s = suite.time_limit_s * settings.time_limit_factor
    return Limits(
        cpu_s=cpu_s,
        wall_s=2 * cpu_s + 4,
        memory=suite.memory_mb * _MIB + _INTERPRETER_BYTES,
        output=settings.output_limit_mb * _MIB,
    )


def longest_seconds(suite: TestSuite, settings: JudgeSettings) -> float:
    """No judgement of one program takes longer; the worker is killed after that."""
    return 120 + (len(suite.cases) + 1) * (limits_of(suite, settings)["wall_s"] + 5)


def judge_program(
    sandbox: Sandbox, suite: TestSuite, program: str, settings: JudgeSettings
) -> CodeVerdict:
    """Run `program` on every test.

    Raises SandboxDied when the sandbox fails and TestsBroken when the tests do.
    """
    started = time.monotonic()
    total = len(suite.cases)
    if not total:
        raise TestsBroken("the problem has no tests")
    limits = limits_of(suite, settings)
    passed, results, failure = 0, list[TestResult](), ""
    for result in _results(sandbox, suite, program, limits, settings):
        results.append(result)
        passed += result.verdict == "AC"
        if result.verdict == "CE":
            return CodeVerdict("CE", 0, total, result.reason, time.monotonic() - started)
        if result.verdict != "AC" and not failure:
            failure = f"test {len(results)} of {total}: {result.reason}"
        if _hopeless(results, settings):
            break
    if len(results) < total:
        failure += f" ({total - len(results)} tests not run)"
    first = next((result for result in results if result.verdict != "AC"), TestResult("AC"))
    return CodeVerdict(first.verdict, passed, total, failure, time.monotonic() - started)


def _hopeless(results: list[TestResult], settings: JudgeSettings) -> bool:
    """Whether the remaining tests count as failed without being run."""
    limit = settings.stop_after_timeouts or len(results) + 1
    timeouts = len(results) >= limit and all(r.verdict == "TLE" for r in results[-limit:])
    return timeouts or (settings.stop_at_first_failure and results[-1].verdict != "AC")


def _compile_error(sandbox: Sandbox, program: str, limits: Limits) -> TestResult | None:
    try:
        source = program.lstrip("\ufeff").encode()
    except UnicodeEncodeError:
        return TestResult("CE", "the program is not valid Unicode")
    generous = Limits(
        cpu_s=_COMPILE_CPU_S,
        wall_s=2 * _COMPILE_CPU_S + 4,
        memory=max(limits["memory"], 1024 * _MIB),
        output=max(limits["output"], 64 * _MIB),
    )
    outcome = sandbox.compile(source, generous)
    if outcome.status == 0:
        return None
    return TestResult("CE", outcome.last_error_line or "the compiler ran out of time or memory")


def _results(
    sandbox: Sandbox, suite: TestSuite, program: str, limits: Limits, settings: JudgeSettings
) -> Iterator[TestResult]:
    """Of every test, or that the program does not compile."""
    same_json, function = compare.same_json, suite.fn_name or ""
    error = _compile_error(sandbox, program, limits)
    if settings.comparator == "livecodebench" and not error and suite.kind in ("stdin", "call"):
        same_json, function = compare.equal_json, lcb_runner.CALL
        wrapped = lcb_runner.wrapped(program, suite.fn_name if suite.kind == "call" else None)
        error = _compile_error(sandbox, wrapped, limits)
    if error:
        yield error
        return
    for case in suite.cases:
        if isinstance(case, CallCase):
            yield _judge_call(sandbox, NamedCall(function, case), limits, same_json)
        elif not isinstance(case, AssertCase):
            yield _judge_stdin(sandbox, case, limits, _SAME_TEXT[settings.comparator])
        else:
            call = as_call(case, suite.fn_name)
            result = call and _judge_call(sandbox, call, limits, compare.equal_json)
            if result is None or (result.verdict == "RE" and result.reason.endswith(NOT_JSON)):
                result = _judge_assert(sandbox, suite.fn_name, case, limits)
            yield result


def _judge_stdin(
    sandbox: Sandbox,
    case: StdinCase | CheckerCase,
    limits: Limits,
    same_text: Callable[[str, str], bool],
) -> TestResult:
    limits = _with_room(limits, 2 * len(case.output) + 65_536)
    outcome = sandbox.run(case.input.encode("utf-8", "surrogatepass"), limits)
    failure = _failure(outcome, limits)
    if failure:
        return failure
    if isinstance(case, CheckerCase):
        return _ask_checker(sandbox, case, outcome.stdout, limits)
    if same_text(outcome.stdout.decode("utf-8", "replace"), case.output):
        return TestResult("AC")
    return TestResult("WA", "wrong output" if outcome.stdout.strip() else "no output")


def _ask_checker(sandbox: Sandbox, case: CheckerCase, output: bytes, limits: Limits) -> TestResult:
    expected = case.output.encode("utf-8", "surrogatepass")
    said = _checked(sandbox, case, output, limits)
    if _has_failed(said):
        # Whose fault? A checker that fails on the expected output too cannot judge anybody.
        if output == expected or _has_failed(_checked(sandbox, case, expected, limits)):
            raise TestsBroken(f"the checker failed: {said.last_error_line or 'no message'}")
        return TestResult("WA", "the checker fails on this output, and not on the expected one")
    last = said.stdout.decode("utf-8", "replace").strip().lower().rpartition("\n")[2].strip()
    if said.exit_code == 0 and last not in _NO:
        return TestResult("AC")
    return TestResult("WA", f"the checker says: {last[:200] or said.last_error_line or 'no'}")


def _checked(sandbox: Sandbox, case: CheckerCase, output: bytes, limits: Limits) -> Outcome:
    given, answer = (t.encode("utf-8", "surrogatepass") for t in (case.input, case.output))
    files = {"input.txt": given, "output.txt": output, "answer.txt": answer}  # in argv's order
    room = _with_room(limits, max(map(len, files.values())) + _MIB)
    return sandbox.check(case.checker, files, room)


def _with_room(limits: Limits, output: int) -> Limits:
    return Limits(**{**limits, "output": max(limits["output"], output)})


def _has_failed(said: Outcome) -> bool:
    return said.timed_out or said.exit_code == _CHECKER_FAILED


def _judge_call(
    sandbox: Sandbox, call: NamedCall, limits: Limits, same_json: Callable[[bytes, Any], bool]
) -> TestResult:
    function, case, names = call
    given = {"args": case.args, "names": names} if names else case.args
    outcome = sandbox.call(function, json.dumps(given).encode(), limits)
    failure = _failure(outcome, limits)
    if failure:
        return failure
    if not outcome.result:
        return TestResult("WA", "the program ended before it returned a value")
    if same_json(outcome.result, case.output):
        return TestResult("AC")
    return TestResult("WA", "wrong value returned")


def _judge_assert(
    sandbox: Sandbox, function: str | None, case: AssertCase, limits: Limits
) -> TestResult:
    program, tests = sandbox.asserts(case.code, function, limits)
    if tests.timed_out or program.cpu_s > limits["cpu_s"]:
        return TestResult("TLE", f"{program.cpu_s:.2f} s CPU, {tests.wall_s:.2f} s wall")
    error = tests.last_error_line
    if tests.exit_code == CANNOT_CROSS:
        raise TestsBroken(error)
    if tests.exit_code == PROGRAM_RAISED:
        # The program's own end says more, unless it was ended because the tests were over.
        own = _failure(program, limits) if program.exit_code > 0 else None
        return own or TestResult("MLE" if error.startswith("MemoryError") else "RE", error)
    if tests.exit_code == 1 and error.startswith("AssertionError"):
        return TestResult("WA", error)
    return _failure(tests, limits) or TestResult("AC")


def _failure(outcome: Outcome, limits: Limits) -> TestResult | None:
    """How a process failed by itself, whatever it wrote; None when it ended well."""
    if outcome.timed_out or outcome.cpu_s > limits["cpu_s"]:
        return TestResult("TLE", f"{outcome.cpu_s:.2f} s CPU, {outcome.wall_s:.2f} s wall")
    if max(len(outcome.stdout), len(outcome.result)) >= limits["output"]:
        return TestResult("OLE", f"{limits['output'] / _MIB:.0f} MiB of output")
    if outcome.exit_code == 0:
        return None
    error = outcome.last_error_line
    out_of_memory = error.startswith(("MemoryError", "numpy.core._exceptions._ArrayMemoryError"))
    if out_of_memory or outcome.exit_code == -9:
        return TestResult("MLE", error or f"killed at {outcome.peak_kb // 1024} MiB")
    return TestResult("RE", error or f"exit status {outcome.exit_code}")
