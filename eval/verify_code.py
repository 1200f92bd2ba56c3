"""A program's verdict: run it on every test in the sandbox, compare outside of it.

The verdict is that of the first test that fails: AC, WA, TLE (CPU or wall time), MLE, OLE, RE, CE.
The wall limit is twice the CPU limit plus 4 s, so that a busy machine fails nobody. After three
time-outs in a row the remaining tests count as timed out without being run: otherwise looping
programs would cost more than everything else together.

A checker test (many right answers) runs `checker` in the sandbox too, as
`checker.py input.txt output.txt answer.txt` with the program's output also on standard input. The
output is accepted when the checker ends with status 0 and prints nothing that says no (0, false,
wrong, …) on its last line. Status 3 is the checker's own failure (testlib): unscored.
"""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from configs.judging import JudgeSettings
from eval.compare import same_json, same_text
from eval.records import AssertCase, CallCase, CheckerCase, StdinCase, TestSuite, Verdict
from eval.sandbox import Outcome, Sandbox
from eval.zygote_asserts import PROGRAM_RAISED
from eval.zygote_isolation import Limits

_MIB = 1 << 20
_INTERPRETER_BYTES = 64 * _MIB  # address space of the interpreter itself, on top of the limit
_COMPILE_CPU_S = 10.0
_CONSECUTIVE_TIMEOUTS = 3
_CHECKER_FAILED = 3
_NO = frozenset({"0", "0.0", "false", "no", "wa", "wrong", "wrong answer", "reject", "rejected"})

Case = StdinCase | CallCase | AssertCase | CheckerCase


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


def chosen_tests(suite: TestSuite, problem_id: str, max_tests: int | None) -> list[Case]:
    """The tests every answer of this problem is judged on: all, or a sample fixed by its id."""
    if max_tests is None or len(suite.cases) <= max_tests:
        return list(suite.cases)
    chosen = random.Random(problem_id).sample(range(len(suite.cases)), max_tests)
    return [suite.cases[i] for i in sorted(chosen)]


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
    tests = len(suite.cases) if settings.max_tests is None else settings.max_tests
    per_test = limits_of(suite, settings)["wall_s"] + 5
    return 120 + (min(tests, len(suite.cases)) + 1) * per_test


def judge_program(
    sandbox: Sandbox, suite: TestSuite, problem_id: str, program: str, settings: JudgeSettings
) -> CodeVerdict:
    """Run `program` on the chosen tests.

    Raises SandboxDied when the sandbox fails and TestsBroken when the tests do.
    """
    started = time.monotonic()
    cases = chosen_tests(suite, problem_id, settings.max_tests)
    if not cases:
        raise TestsBroken("the problem has no tests")
    limits = limits_of(suite, settings)
    results: list[TestResult] = []
    error = _compile_error(sandbox, program, limits)
    for result in [error] if error else _results(sandbox, suite, cases, limits):
        results.append(result)
        if result.verdict == "CE" or _hopeless(results, settings):
            break
    failure = next(((i, r) for i, r in enumerate(results) if r.verdict != "AC"), None)
    passed = sum(r.verdict == "AC" for r in results)
    seconds = time.monotonic() - started
    if failure is None:
        return CodeVerdict("AC", passed, len(cases), "", seconds)
    place = "" if failure[1].verdict == "CE" else f"test {failure[0] + 1} of {len(cases)}: "
    reason = place + failure[1].reason
    if len(results) < len(cases) and failure[1].verdict != "CE":
        reason += f" ({len(cases) - len(results)} tests not run)"
    return CodeVerdict(failure[1].verdict, passed, len(cases), reason, seconds)


def _hopeless(results: list[TestResult], settings: JudgeSettings) -> bool:
    """Whether the remaining tests count as failed without being run."""
    last = results[-_CONSECUTIVE_TIMEOUTS:]
    timeouts = len(last) == _CONSECUTIVE_TIMEOUTS and all(r.verdict == "TLE" for r in last)
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
    sandbox: Sandbox, suite: TestSuite, cases: list[Case], limits: Limits
) -> Iterator[TestResult]:
    for case in cases:
        if isinstance(case, CallCase):
            yield _judge_call(sandbox, suite.fn_name or "", case, limits)
        elif isinstance(case, AssertCase):
            yield _judge_assert(sandbox, suite.fn_name, case, limits)
        else:
            yield _judge_stdin(sandbox, case, limits)


def _judge_stdin(sandbox: Sandbox, case: StdinCase | CheckerCase, limits: Limits) -> TestResult:
    room = 2 * len(case.output) + 65_536
    limits = Limits(**{**limits, "output": max(limits["output"], room)})
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
    texts = {"input.txt": case.input, "output.txt": "", "answer.txt": case.output}
    files = {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}
    room = max(map(len, (*files.values(), output))) + _MIB
    limits = Limits(**{**limits, "output": max(limits["output"], room)})
    said = sandbox.check(case.checker, files | {"output.txt": output}, limits)
    if said.timed_out or said.exit_code == _CHECKER_FAILED:
        raise TestsBroken(f"the checker failed: {said.last_error_line or 'no message'}")
    last = said.stdout.decode("utf-8", "replace").strip().lower().rpartition("\n")[2].strip()
    if said.exit_code == 0 and last not in _NO:
        return TestResult("AC")
    return TestResult("WA", f"the checker says: {last[:200] or said.last_error_line or 'no'}")


def _judge_call(sandbox: Sandbox, function: str, case: CallCase, limits: Limits) -> TestResult:
    outcome = sandbox.call(function, json.dumps(list(case.args)).encode(), limits)
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
