"""Tests as public code datasets write them, turned into a `TestSuite`.

| seen in | form |
|---|---|
| this project | the suite itself: `{"kind": …, "cases": […]}` |
| Codeforces, DeepCoder, Kodsport | `[{"input": …, "output": …}]`, optionally `type` or `testtype` |
| APPS, TACO, Skywork-OR1, PRIME | `{"inputs": […], "outputs": […], "fn_name": …}` |
| CodeContests | `{"input": […], "output": […]}` |
| LiveCodeBench | the list above as JSON, or packed (`suite_packed`) |
| LeetCodeDataset, HumanEval | `def check(candidate): assert candidate(…) == …` (`suite_asserts`) |
| Skywork-OR1, LeetCode part | `{"test_code": the above, "entry_point": …}` |
| MBPP | `["assert f(1) == 2", …]`; Skywork-OR1 calls it `assert_case`, KlearReasoner `functional` |
| MBPP+, HumanEval+ | `{"base_input", "plus_input", "canonical_solution"}` (`suite_reference`) |

Every form may also come as a JSON string, and fields that hold null count as absent.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from pydantic import ValidationError

from eval.records import CheckerCase, StdinCase, TestSuite
from eval.suite_asserts import listed_asserts, python_tests
from eval.suite_packed import unpack_tests
from eval.suite_reference import REFERENCE_FIELDS, reference_tests

CALLS = ("functional", "function_call", "call")


def parse_suite(
    value: Any,
    *,
    fn_name: str = "",
    setup: str = "",
    time_limit_s: float = 6.0,
    memory_mb: int = 1024,
) -> TestSuite:
    """The suite in `value`; limits and function name count where the value names none.

    `setup` is Python code that the assertions of a list need before them. Raises ValueError that
    says what is wrong with the value.
    """
    if isinstance(value, str):
        value = _decode(value)
    suite = _suite_dict(value, fn_name, setup)
    limits = {"time_limit_s": time_limit_s, "memory_mb": memory_mb}
    try:
        return TestSuite.model_validate({**limits, **suite})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error


def joined(suites: Sequence[TestSuite]) -> TestSuite:
    """One suite of the cases of all, in order. Raises ValueError when they are of two kinds."""
    first = suites[0]
    for other in suites[1:]:
        if (other.kind, other.fn_name) != (first.kind, first.fn_name):
            raise ValueError(f"{first.kind} tests and {other.kind} tests cannot be one suite")
    return first.model_copy(update={"cases": tuple(c for s in suites for c in s.cases)})


def with_checker(suite: TestSuite, program: str) -> TestSuite:
    """A stdin suite whose outputs the Python `program` judges.

    The program is called as open-r1 calls its checkers, `checker.py input answer output`; a
    CheckerCase names the output second, so the names are exchanged first. Raises ValueError.
    """
    if suite.kind != "stdin":
        raise ValueError(f"a checker cannot judge {suite.kind} tests")
    try:
        body = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the checker is no Python program: {error}") from error
    first = next((n.lineno for n in body if not _stays_first(n)), 1)
    lines = [line.rstrip("\n") for line in _lines(program)]
    exchange = "import sys; sys.argv[2:4] = sys.argv[3:1:-1]"
    checker = "\n".join([*lines[: first - 1], exchange, *lines[first - 1 :]])
    cases = tuple(
        CheckerCase(input=c.input, output=c.output, checker=checker)
        for c in suite.cases
        if isinstance(c, StdinCase)
    )
    return suite.model_copy(update={"kind": "checker", "cases": cases})


def _stays_first(node: ast.stmt) -> bool:
    """The docstring and `from __future__` must come before any other statement."""
    match node:
        case ast.Expr(ast.Constant(str())) | ast.ImportFrom(module="__future__"):
            return True
    return False


def _suite_dict(value: Any, fn_name: str, setup: str) -> dict[str, Any]:
    if isinstance(value, str):
        return python_tests(value, fn_name)
    if isinstance(value, dict):
        return _from_object({k: v for k, v in value.items() if v is not None}, fn_name, setup)
    if isinstance(value, Sequence):
        return _listed(value, fn_name, setup)
    raise ValueError(f"tests cannot be a {type(value).__name__}")


def _from_object(value: dict[str, Any], fn_name: str, setup: str) -> dict[str, Any]:
    fn_name = str(value.get("fn_name") or value.get("entry_point") or fn_name)
    if "kind" in value:
        return value if value.get("fn_name") or not fn_name else {**value, "fn_name": fn_name}
    if value.keys() >= REFERENCE_FIELDS:
        return reference_tests(value)
    for inputs, outputs in (("inputs", "outputs"), ("input", "output")):
        if inputs in value and outputs in value:
            return _paired(value[inputs], value[outputs], fn_name)
    for name in ("assert_case", "functional", "test_code", "test_cases"):
        if name in value:
            return _suite_dict(value[name], fn_name, setup)
    if "pytest" in value:
        raise ValueError("tests for pytest cannot be run one by one")
    raise ValueError(f"an object with {sorted(value)[:6]} is no known form of tests")


def _listed(cases: Sequence[Any], fn_name: str, setup: str) -> dict[str, Any]:
    if not cases:
        raise ValueError("there are no tests")
    if all(isinstance(c, str) for c in cases):
        return listed_asserts(cases, fn_name, setup)
    for i, case in enumerate(cases):
        if not isinstance(case, dict):
            raise ValueError(f"test {i + 1} is no object but a {type(case).__name__}")
    first = cases[0]
    if "args" in first or "code" in first:
        kind = "call" if "args" in first else "assert"
        return {"kind": kind, "fn_name": fn_name or None, "cases": list(cases)}
    missing = next((i for i, c in enumerate(cases) if not {"input", "output"} <= set(c)), None)
    if missing is not None:
        raise ValueError(f"test {missing + 1} needs input and output")
    inputs = [c["input"] for c in cases]
    outputs = [c["output"] for c in cases]
    kind = str(first.get("testtype") or first.get("type") or "")
    if kind not in CALLS:
        if fn_name and not kind:  # LeetCodeDataset's input_output, which mixes notations
            raise ValueError(
                f"tests of {fn_name} without testtype are ambiguous; name the field that holds "
                "`def check(candidate)`"
            )
        return _paired(inputs, outputs, "")
    fn_name = str(first.get("fn_name") or _func_name(first.get("metadata")) or fn_name)
    if isinstance(inputs[0], str):  # LiveCodeBench: one JSON value a line
        if others := {type(t).__name__ for t in (*inputs, *outputs)} - {"str"}:
            raise ValueError(f"a test of JSON texts holds a {min(others)}")
        inputs = [[_json(line) for line in _lines(text)] for text in inputs]
        outputs = [_json(text) for text in outputs]
        calls = [{"args": a, "output": o} for a, o in zip(inputs, outputs, strict=True)]
        return {"kind": "call", "fn_name": fn_name or None, "cases": calls}
    return _paired(inputs, outputs, fn_name)


def _func_name(metadata: Any) -> str:
    """DeepCoder keeps LiveCodeBench's metadata beside each test."""
    return str(metadata.get("func_name") or "") if isinstance(metadata, Mapping) else ""


def _paired(inputs: Any, outputs: Any, fn_name: str) -> dict[str, Any]:
    """Parallel lists; with a function name they hold arguments and results, else texts."""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise ValueError("inputs and outputs must be lists with at least one test")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs but {len(outputs)} outputs")
    if not fn_name:
        texts = zip(map(_text, inputs), map(_text, outputs), strict=True)
        return {"kind": "stdin", "cases": [{"input": i, "output": o} for i, o in texts]}
    if all(isinstance(o, list) and len(o) == 1 for o in outputs):
        outputs = [o[0] for o in outputs]  # APPS and TACO wrap each result in a list
    calls = [
        {"args": i if isinstance(i, list) else [i], "output": o}
        for i, o in zip(inputs, outputs, strict=True)
    ]
    return {"kind": "call", "fn_name": fn_name, "cases": calls}


def _text(value: Any) -> str:
    """A stdin or stdout text; APPS writes some as a list of lines."""
    if isinstance(value, list):
        return "\n".join(str(line) for line in value)
    return value if isinstance(value, str) else json.dumps(value)


def _lines(text: str) -> StringIO:
    """The lines as Python and JSON know them; `splitlines` would cut at U+2028 and others too."""
    return StringIO(text, newline=None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is no JSON value") from error


def _decode(text: str) -> Any:
    """JSON, packed JSON, or the text itself when it is a program."""
    if not text.strip():
        raise ValueError("there are no tests")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return unpack_tests(text) or text
    except (ValueError, RecursionError) as error:  # a number of thousands of digits
        raise ValueError(f"tests cannot be read: {error}") from error
    if isinstance(value, str):
        raise ValueError("tests are a JSON text, not an object or a list")
    return value
