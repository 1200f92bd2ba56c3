"""A program's verdict: run it on every test in the sandbox, compare outside of it.

The verdict is that of the first test that fails: AC, WA, TLE (CPU or wall time), MLE, OLE, RE, CE.
The wall limit is twice the CPU limit plus 4 s, and one test that ends there without having used its
CPU time runs once more: a busy machine fails nobody. A program that has slept for two such limits
has failed the other tests too. An assertion that is one call with its result is judged as a call,
in one process instead of two, where that can tell whether two values are equal.

A checker test runs `checker.py input.txt output.txt answer.txt` in the sandbox too, with the output
also on standard input: accepted by status 0 and no word for no (0, 0.5, wrong, …) on the last line.
Status 3 is the checker's own failure (testlib): unscored.
"""

import ast
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ...configs.settings.judging import JudgeSettings
from ..records import AssertCase, CallCase, CheckerCase, Judgement, StdinCase, TestSuite
from ..sandbox.bubblewrap import PACKAGES
from ..sandbox.sandbox import ProcessResult, Sandbox
from ..sandbox.zygote.asserts import CANNOT_CROSS, PROGRAM_RAISED
from ..sandbox.zygote.main import Limits
from ..sandbox.zygote.roles import NOT_JSON
from ..sandbox.zygote.values import pack
from . import compare, lcb_runner
from .assertions import TestsBroken, prepared

_MIB = 1 << 20
_INTERPRETER_BYTES = 64 * _MIB  # address space of the interpreter itself, on top of the limit
_COMPILE_CPU_S = 10.0
MORE_WALL_S = 4  # than twice the CPU limit
_UNTOLD = "only the assertion itself can tell"
_NO = re.compile(  # of a checker: also less than all points, and the number of an error
    r"-\d|0*(?:\.\d+)?$|(?:false|no|none)[.!]?$"
    r"|(?:wa|wrong|incorrect|invalid|not|failed|fail|rejected|reject)(?![a-z])"
)

_OUT_OF_MEMORY = re.compile(r"(?:[\w.]+\.)?_?(?:Array)?MemoryError\b|OSError: \[Errno 12\]")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

_SAME_TEXT = {"lines": compare.same_text, "tokens": compare.same_tokens}
_SAME_TEXT["livecodebench"] = lcb_runner.same_text
SameText = Callable[[str, str], bool]
IsRight = Callable[[bytes], bool | None]


class NamedCall(NamedTuple):
    """A call of `function` and its result, by `values.pack`; its last arguments have `names`."""

    function: str
    args: Any
    output: Any
    names: tuple[str, ...] = ()


def chosen_suite(suite: TestSuite, problem_id: str, most: int | None, draw: int = 0) -> TestSuite:
    """The suite with all tests, or a sample by id and draw, which answers of one RL step share."""
    if most is None or len(suite.cases) <= most:
        return suite
    seed = f"{problem_id}/{draw}" if draw else problem_id
    chosen = random.Random(seed).sample(range(len(suite.cases)), most)
    return suite.model_copy(update={"cases": tuple(suite.cases[i] for i in sorted(chosen))})


def limits_of(suite: TestSuite, settings: JudgeSettings) -> Limits:
    memory = suite.memory_mb * _MIB + _INTERPRETER_BYTES
    return _limits(suite.time_limit_s, memory, settings.output_limit_mb * _MIB)


def _limits(cpu_s: float, memory: int, output: int) -> Limits:
    return Limits(cpu_s=cpu_s, wall_s=2 * cpu_s + MORE_WALL_S, memory=memory, output=output)


def longest_seconds(suite: TestSuite, settings: JudgeSettings) -> float:
    """No judgement of one program takes longer; the worker is killed after that."""
    return 120 + (len(suite.cases) + 2) * (limits_of(suite, settings)["wall_s"] + 5)


def judge_program(
    sandbox: Sandbox, suite: TestSuite, program: str, settings: JudgeSettings
) -> Judgement:
    """Run `program` on every test, or until the rest count as failed by the settings. Raises
    SandboxDied when the sandbox fails and TestsBroken when the tests do."""
    started = time.monotonic()
    total = len(suite.cases)
    if not total:
        raise TestsBroken("the problem has no tests")
    results, timeouts = list[Judgement](), 0
    for result in _results(sandbox, suite, program, settings):
        results.append(result)
        timeouts = timeouts + 1 if result.verdict == "TLE" else 0
        failed = settings.stop_at_first_failure and result.verdict != "AC"
        if failed or settings.stop_after_timeouts == timeouts:
            break
        if sandbox.waited_s > 2 * limits_of(suite, settings)["wall_s"] and len(results) < total:
            results.append(Judgement("TLE", f"{sandbox.waited_s:.0f} s asleep in all tests"))
            break
    passed = sum(result.verdict == "AC" for result in results)
    failures = ((i, result) for i, result in enumerate(results, 1) if result.verdict != "AC")
    number, first = next(failures, (0, Judgement("AC")))
    reason = first.reason
    if first.verdict not in ("AC", "CE"):
        skipped = f" ({total - len(results)} tests not run)" if len(results) < total else ""
        reason = f"test {number} of {total}: {reason}{skipped}"
    return Judgement(first.verdict, reason, time.monotonic() - started, passed, total)


def _results(
    sandbox: Sandbox, suite: TestSuite, program: str, settings: JudgeSettings
) -> Iterator[Judgement]:
    """Of every test, or that the program does not compile."""
    limits = limits_of(suite, settings)
    same_json, function = compare.same_json, suite.fn_name or ""
    error = _compile_error(sandbox, program, limits)
    if settings.comparator == "livecodebench" and not error and suite.kind in ("stdin", "call"):
        same_json, function = compare.equal_json, lcb_runner.CALL
        wrapped = lcb_runner.wrapped(program, suite.fn_name if suite.kind == "call" else None)
        error = _compile_error(sandbox, wrapped, limits)
    if error:
        yield error
        return
    same_text = _SAME_TEXT[settings.comparator]
    if settings.comparator != "livecodebench" and compare.answers_yes_or_no(suite):
        same_text = partial(compare.same_in_either_case, same_text)
    for case in suite.cases:
        if isinstance(case, CallCase):
            call = {"args": case.args, "names": ()}
            readings = [case.output, [case.output]] if suite.wrapped else [case.output]

            def is_right(result: bytes, readings: list[Any] = readings) -> bool:
                return any(same_json(result, reading) for reading in readings)

            yield _judge_call(sandbox, function, call, limits, is_right)
        elif isinstance(case, AssertCase):
            yield _judge_assert(sandbox, suite.fn_name, case, limits)
        else:
            yield _judge_stdin(sandbox, case, limits, same_text)


def _compile_error(sandbox: Sandbox, program: str, limits: Limits) -> Judgement | None:
    try:
        source = program.lstrip("\ufeff").encode()
    except UnicodeEncodeError:
        return Judgement("CE", "the program is not valid Unicode")
    memory, output = max(limits["memory"], 1024 * _MIB), max(limits["output"], 64 * _MIB)
    outcome = sandbox.compile(source, _limits(_COMPILE_CPU_S, memory, output))
    if outcome.exit_code == 0:
        return None
    return Judgement("CE", outcome.last_error_line or "the compiler ran out of time or memory")


def _judge_stdin(
    sandbox: Sandbox, case: StdinCase | CheckerCase, limits: Limits, same_text: SameText
) -> Judgement:
    limits = {**limits, "output": max(limits["output"], 2 * len(case.output) + 65_536)}
    outcome = sandbox.run(case.input.encode("utf-8", "surrogatepass"), limits)
    if failure := _failure(outcome, limits):
        return failure
    if isinstance(case, CheckerCase):
        return _ask_checker(sandbox, case, outcome.stdout, limits)
    if same_text(outcome.stdout.decode("utf-8", "replace"), case.output):
        return Judgement("AC")
    return Judgement("WA", "wrong output" if outcome.stdout.strip() else "no output")


def _ask_checker(sandbox: Sandbox, case: CheckerCase, output: bytes, limits: Limits) -> Judgement:
    input_text, expected = (t.encode("utf-8", "surrogatepass") for t in (case.input, case.output))
    files = {"input.txt": input_text, "output.txt": output, "answer.txt": expected}  # as in argv
    limits = {**limits, "output": max(limits["output"], max(map(len, files.values())) + _MIB)}
    checked = sandbox.check(case.checker, files, limits)
    if _has_failed(checked):
        # Whose fault? A checker that fails on the expected output too cannot judge anybody.
        fair = sandbox.check(case.checker, files | {"output.txt": expected}, limits)
        if _has_failed(fair):
            raise TestsBroken(f"the checker failed: {checked.last_error_line or 'no message'}")
        return Judgement("WA", "the checker fails on this output, and not on the expected one")
    last = checked.stdout.decode("utf-8", "replace").strip().lower().rpartition("\n")[2].strip()
    if checked.exit_code == 0 and not (last and _NO.match(last)):
        return Judgement("AC")
    return Judgement("WA", f"the checker says: {last[:200] or checked.last_error_line or 'no'}")


def _has_failed(checked: ProcessResult) -> bool:
    """Whether a checker ended without a word on the output: too late, by its own status for that,
    or by an exception."""
    raised = bool(checked.exit_code and checked.last_error_line)
    return checked.timed_out or checked.exit_code == 3 or raised


def _judge_call(
    sandbox: Sandbox, function: str, call: dict[str, Any], limits: Limits, is_right: IsRight
) -> Judgement:
    outcome = sandbox.call(function, json.dumps(call).encode(), limits)
    if failure := _failure(outcome, limits):
        return failure
    if not outcome.result:
        return Judgement("WA", "the program ended before it returned a value")
    right = is_right(outcome.result)
    wrong = _UNTOLD if right is None else "wrong value"
    return Judgement("AC") if right else Judgement("WA", wrong)


def _judge_assert(
    sandbox: Sandbox, function: str | None, case: AssertCase, limits: Limits
) -> Judgement:
    if call := as_call(case.code, function):
        arguments = {"args": call.args, "names": call.names, "typed": True}
        is_right = partial(compare.equal_packed, expected=call.output)
        result = _judge_call(sandbox, call.function, arguments, limits, is_right)
        if result.reason != _UNTOLD and not result.reason.endswith(NOT_JSON):
            return result
    program, tests = sandbox.asserts(prepared(case.code, function), function, limits)
    if tests.timed_out or program.cpu_s > limits["cpu_s"]:
        return Judgement("TLE", f"{program.cpu_s:.2f} s CPU, {tests.wall_s:.2f} s wall")
    error = tests.last_error_line
    if tests.exit_code == CANNOT_CROSS:
        raise TestsBroken(error)
    if tests.exit_code == PROGRAM_RAISED:
        # The program's own end says more, unless it was ended because the tests were over.
        own = _failure(program, limits) if program.exit_code > 0 else None
        return own or _raised(error)
    if tests.exit_code == 1 and error.startswith("AssertionError"):
        return Judgement("WA", error)
    return _failure(tests, limits) or Judgement("AC")


def _failure(outcome: ProcessResult, limits: Limits) -> Judgement | None:
    """How a process failed by itself, whatever it wrote; None when it ended well."""
    if outcome.timed_out or outcome.cpu_s > limits["cpu_s"]:
        return Judgement("TLE", f"{outcome.cpu_s:.2f} s CPU, {outcome.wall_s:.2f} s wall")
    if max(len(outcome.stdout), len(outcome.result)) >= limits["output"]:
        return Judgement("OLE", f"{limits['output'] / _MIB:.0f} MiB of output")
    if outcome.exit_code == 0:
        return None
    error = outcome.last_error_line
    if outcome.exit_code == -9:
        return Judgement("MLE", error or "killed")
    return _raised(error or f"exit status {outcome.exit_code}")


def _raised(error: str) -> Judgement:
    """The verdict on a program's error; a package that is not there leaves it unscored."""
    missing = _MISSING.match(error)
    if missing and missing[1] not in sys.stdlib_module_names and missing[1] not in PACKAGES:
        has = f"the sandbox has {', '.join(PACKAGES)}"
        return Judgement("IE", f"the program needs the module {missing[1]!r}; {has}")
    return Judgement("MLE" if _OUT_OF_MEMORY.match(error) else "RE", error)


def _is_no_value(value: Any) -> Any:
    raise TypeError(f"{value!r} is no plain data")


_LONGEST_PARSED = 1 << 20  # characters: this process has no limit of its own


@lru_cache(maxsize=4096)
def as_call(code: str, tested: str | None) -> NamedCall | None:
    """The call of `assert f(…) == literal` or `assert Solution().f(…) == literal`, if the test is
    nothing else. `candidate` means the function that is `tested`."""
    if len(code) > _LONGEST_PARSED:
        return None
    try:
        match ast.parse(code).body:
            case [ast.Assert(ast.Compare(ast.Call(func, args, keywords), [ast.Eq()], [right]))]:
                names = [keyword.arg for keyword in keywords]
            case _:
                return None
        match func:
            case ast.Name(name) | ast.Attribute(ast.Call(ast.Name("Solution"), [], []), name):
                nodes = (*args, *(keyword.value for keyword in keywords), right)
            case _:
                return None
        *arguments, output = map(ast.literal_eval, nodes)
        args, packed = pack(arguments, _is_no_value), pack(output, _is_no_value)
        json.dumps([args, packed])  # not an integer of too many digits
        name = (tested or "").rpartition(".")[2] if name == "candidate" else name
        if name and None not in names:
            return NamedCall(name, args, packed, tuple(map(str, names)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        pass  # no plain data, or not of this form
    return None
