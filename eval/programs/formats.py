"""Tests as public code datasets write them, turned into a `TestSuite`.

| seen in | form |
|---|---|
| this project | the suite itself: `{"kind": …, "cases": […]}` |
| Codeforces, DeepCoder, Kodsport | `[{"input": …, "output": …}]`, optionally `type` or `testtype` |
| others | one such object, pairs, or other names of both: `_INPUT`, `_OUTPUT` |
| APPS, TACO, Skywork-OR1, PRIME | `{"inputs": […], "outputs": […], "fn_name": …}` |
| CodeContests | `{"input": […], "output": […]}`, or groups of these by name, as `public_tests` |
| LiveOIBench | `{"01a": {"input": …, "output": …}}`, by the name of the test |
| LiveCodeBench | the list above as JSON, or packed (`unpack_tests`) |
| LeetCodeDataset, HumanEval | `def check(candidate): assert candidate(…) == …` |
| Skywork-OR1, LeetCode part | `{"test_code": the above, "entry_point": …}` |
| MBPP | `["assert f(1) == 2", …]`; Skywork-OR1 calls it `assert_case`, KlearReasoner `functional` |
| BigCodeBench | `class TestCases(unittest.TestCase): …`, a case each method |
| KodCode | `from solution import f` and `def test_f(): assert …`, a case each function |

Every form may also come as a JSON or Python text, and fields that hold null count as absent.

Of stdin tests an expected output that is no text is what Python prints for it: numbers, `True` and
`False`, and a list of these or of texts is lines. Null, an object or a list of lists has no one
spelling and is refused. So are objects, lists of numbers and `nums = [1], k = 2` as inputs:
they are arguments of a function that nothing names.
"""

import ast
import base64
import binascii
import builtins
import json
import pickletools
import re
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from ..records import AssertCase, CheckerCase, TestSuite
from ..sandbox.zygote.asserts import PROVIDED
from .assertions import names_of
from .evalplus import functions
from .harness_tests import harness_tests
from .literals import literal

LARGEST_UNPACKED = 512 << 20  # bytes of text that a packed suite may hold
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
_INPUT = ("input", "stdin", "in", "test_input", "input_data", "stdin_input")
_OUTPUT = ("output", "expected_output", "out", "stdout", "expected", "expected_stdout",
           "test_output", "answer")  # fmt: skip
_LISTS = (("inputs", "outputs"), ("input", "output"), ("inputs", "expected_outputs"))
_RETURNS_A_LIST = r"->\s*(?:typing\.)?(?:list|tuple|sequence|iterable)\b"
_SAYS_A_LIST = re.compile(
    r"\breturns?\s+(?:(?:a|an|the|all|your)\s+)?(?:\w+\s+)?(?:list|array|vector|tuple)s?\b", re.I
)
_CALLS = ("functional", "function_call", "call")  # types of tests
_INNER = ("assert_case", "functional", "test_code", "test_cases")  # hold one of the other forms
_NAMED = re.compile(r"\s*[A-Za-z_]\w*\s*=\s*[-\[\"'\dtTfFnN]")  # nums = [1], k = 2
_NO_PYTHON = (SyntaxError, TypeError, RecursionError, MemoryError)


def parse_suite(
    value: Any, *, fn_name: str = "", time_limit_s: float = 6.0, memory_mb: int = 1024,
    helpers: str = "",
) -> TestSuite:  # fmt: skip
    """The suite in `value`; limits and function name count where it names none. `helpers`, the
    statement, may hold functions that tests use, as HumanEval's, and say that a list is returned.
    Raises ValueError that says what is wrong with the value."""
    suite = _suite(_decode(value) if isinstance(value, str) else value, fn_name, helpers)
    if suite.get("wrapped") and _returns_a_list(helpers, str(suite["fn_name"])):
        cases = [{**case, "output": [case["output"]]} for case in suite["cases"]]
        suite = {**suite, "cases": cases, "wrapped": False}
    limits = {"time_limit_s": time_limit_s, "memory_mb": memory_mb}
    try:
        return TestSuite.model_validate({**limits, **suite})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(p) for p in first["loc"])
        raise ValueError(f"{path}: {first['msg']}" if path else first["msg"]) from error


def joined(suites: Sequence[TestSuite]) -> TestSuite:
    """One suite of the cases of all, in order. Raises ValueError when they are of two kinds."""
    first = suites[0]
    for other in suites[1:]:
        if (other.kind, other.fn_name) != (first.kind, first.fn_name):
            raise ValueError(f"{first.kind} tests and {other.kind} tests cannot be one suite")
    cases = tuple(c for s in suites for c in s.cases)
    return first.model_copy(update={"cases": cases, "wrapped": all(s.wrapped for s in suites)})


def with_setup(suite: TestSuite, code: str) -> TestSuite:
    """Assertions each of which runs after `code`. Raises ValueError for tests of another kind."""
    if not code:
        return suite
    if suite.kind != "assert":
        raise ValueError(f"code before the tests is for assertions, not for {suite.kind} tests")
    codes = [case.code for case in suite.cases if isinstance(case, AssertCase)]
    cases = tuple(AssertCase(code=f"{code}\n{own}") for own in codes)
    return suite.model_copy(update={"cases": cases})


def with_checker(suite: TestSuite, program: str) -> TestSuite:
    """A stdin suite whose outputs the Python `program` judges, called as open-r1 calls its
    checkers, `checker.py input answer output`: CheckerCase has the last two exchanged. Raises
    ValueError."""
    if suite.kind != "stdin":
        raise ValueError(f"a checker cannot judge {suite.kind} tests")
    try:
        ast.parse(program)
    except _NO_PYTHON as error:
        raise ValueError(f"the checker is no Python program: {error}") from error
    checker = f"import sys\nsys.argv[2:4] = sys.argv[3:1:-1]\nexec({program!r})"
    cases = tuple(CheckerCase(**case.model_dump(), checker=checker) for case in suite.cases)
    return suite.model_copy(update={"kind": "checker", "cases": cases})


def _returns_a_list(statement: str, fn_name: str) -> bool:
    """By the signature in the statement, else by its words."""
    signature = rf"\bdef\s+{re.escape(fn_name)}\s*\(.*?\)\s*(?:->|:)"
    match = re.search(signature, statement, re.DOTALL)
    if match and match[0].endswith("->"):
        return bool(re.match(_RETURNS_A_LIST, statement[match.end() - 2 :], re.IGNORECASE))
    return bool(_SAYS_A_LIST.search(statement))


def _decode(text: str) -> Any:
    """JSON, packed JSON, or the text itself when it is a program."""
    if not text.strip():
        raise ValueError("there are no tests")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return unpack_tests(text) or _literal(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits
        raise ValueError(f"tests cannot be read: {error}") from error
    if isinstance(value, str):
        raise ValueError("tests are a JSON text, not an object or a list")
    return value


def _literal(text: str) -> Any:
    """The list or object that a Python text spells (SYNTHETIC-1); else the text."""
    with suppress(*_NO_PYTHON, ValueError):
        return literal(text) if text.lstrip()[:1] in ("[", "{") else text
    return text


def unpack_tests(text: str) -> Any:
    """The JSON value in `text`; None when that is not base64. Raises ValueError with the reason."""
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LARGEST_UNPACKED)
        if unpacker.unconsumed_tail:
            raise ValueError(f"over {LARGEST_UNPACKED >> 20} MiB of tests")
        return json.loads(pickled_text(data))
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"packed tests cannot be read: {error}") from error


def pickled_text(data: bytes) -> str:
    """The text in a pickle of one text; nothing is unpickled. Raises ValueError for any other."""
    text: str | None = None
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXTS and text is None:
            text = str(argument)
        elif opcode.name not in _HARMLESS:
            raise ValueError(f"the pickle holds {opcode.name}; only one text is accepted")
    if text is None:
        raise ValueError("the pickle ends early")
    return text


def _suite(value: Any, fn_name: str, helpers: str = "") -> dict[str, Any]:
    match value:
        case str():
            try:
                return _python_tests(value, fn_name, helpers)
            except _NO_PYTHON as error:
                raise ValueError(f"tests are neither JSON nor Python: {error}") from error
        case []:
            raise ValueError("there are no tests")
        case [*codes] if all(isinstance(code, str) for code in codes):  # MBPP
            return _of_kind("assert", fn_name, [{"code": code.strip()} for code in codes])
        case [dict(), *_]:
            cases = [_renamed(case) for case in value]
            return _listed(cases, cases[0], fn_name)
        case [[_, _], *_] if all(isinstance(c, list | tuple) and len(c) == 2 for c in value):
            return _paired([pair[0] for pair in value], [pair[1] for pair in value], fn_name)
        case dict():
            return _object({k: v for k, v in value.items() if v is not None}, fn_name)
    raise ValueError(f"tests cannot be a {type(value).__name__}")


def _object(value: dict[str, Any], fn_name: str) -> dict[str, Any]:
    fn_name = str(value.get("fn_name") or value.get("entry_point") or fn_name)
    if "kind" in value:
        return {**value, "fn_name": fn_name} if fn_name else value
    for inputs, outputs in _LISTS:
        one = inputs == "input" and not isinstance(value.get(inputs), list)
        if inputs in value and outputs in value and not one:
            return _paired(value[inputs], value[outputs], fn_name)
    if {"input", "output"} <= (one := _renamed(value)).keys():
        return _listed([one], one, fn_name)
    for name in _INNER:
        if name in value:
            return _suite(value[name], fn_name)
    named = [_renamed(case) for case in value.values() if case not in ({}, [])]
    if named and all(isinstance(case, dict) and "input" in case for case in named):
        if all(isinstance(case["input"], list) and "output" in case for case in named):
            inputs, outputs = ([v for g in named for v in g[k]] for k in ("input", "output"))
            return _paired(inputs, outputs, fn_name)
        return _listed(named, named[0], fn_name)
    raise ValueError(f"an object with {sorted(value)[:6]} is no known form of tests")


def _renamed(case: Any) -> Any:
    """A test with its `input` and `output` under these names, where it has one of each."""
    if not isinstance(case, dict) or "args" in case or "code" in case:
        return case
    names = [[n for n in aliases if n in case] for aliases in (_INPUT, _OUTPUT)]
    return {**case, "input": case[names[0][0]], "output": case[names[1][0]]} if all(names) else case


def _listed(cases: Sequence[Any], first: dict[str, Any], fn_name: str) -> dict[str, Any]:
    if "args" in first or "code" in first:
        return _of_kind("call" if "args" in first else "assert", fn_name, cases)
    try:
        inputs, outputs = [c["input"] for c in cases], [c["output"] for c in cases]
    except (TypeError, KeyError) as error:
        raise ValueError("every test needs input and output") from error
    kinds = [str(case.get("testtype") or case.get("type") or "") for case in cases]
    kind = kinds[0]
    if len({kind in _CALLS for kind in kinds if kind}) > 1:
        raise ValueError("some tests call a function and some do not")
    if kind not in _CALLS:
        if fn_name and not kind:  # LeetCodeDataset's input_output, which mixes notations
            fix = "name the field that holds `def check(candidate)`"
            raise ValueError(f"tests of {fn_name} without testtype are ambiguous; {fix}")
        return _paired(inputs, outputs, "")
    beside = first.get("metadata")  # DeepCoder keeps LiveCodeBench's beside each test
    beside = beside.get("func_name") if isinstance(beside, Mapping) else ""
    fn_name = str(first.get("fn_name") or beside or fn_name)
    if not isinstance(inputs[0], str):
        return _paired(inputs, outputs, fn_name)
    if not all(isinstance(text, str) for text in inputs):
        raise ValueError("some inputs are texts and some are not")
    # LiveCodeBench: a JSON text a line. `splitlines` would cut at U+2028 and others too.
    lines = [re.split(r"[\r\n]+", text) for text in inputs]
    arguments = [[_json(line) for line in text if line] for text in lines]
    return _calls(arguments, [_json(output) for output in outputs], fn_name)


def _paired(inputs: Any, outputs: Any, fn_name: str) -> dict[str, Any]:
    """Parallel lists; with a function name they hold arguments and results, else texts."""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs:
        raise ValueError("inputs and outputs must be lists with at least one test")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs but {len(outputs)} outputs")
    if not fn_name:
        _refuse_arguments(inputs, outputs)
        texts = zip(map(_text, inputs), map(_printed, outputs), strict=True)
        return {"kind": "stdin", "cases": [{"input": i, "output": o} for i, o in texts]}
    # APPS and TACO wrap each result in a list; nothing tells a function that returns such ones.
    wrapped = all(isinstance(o, list) and len(o) == 1 for o in outputs)
    outputs = [o[0] for o in outputs] if wrapped else outputs
    arguments = [list(i) if isinstance(i, list | tuple) else [i] for i in inputs]
    calls = _calls(arguments, outputs, fn_name)
    return calls | ({"wrapped": True} if wrapped else {})


def _refuse_arguments(inputs: list[Any], outputs: list[Any]) -> None:
    """Raises ValueError for tests of a function that nothing names: no program reads them so."""
    if all(isinstance(i, str) and _NAMED.match(i) for i in inputs):
        raise ValueError(f"{inputs[0][:30]!r} are arguments of a function, and no stdin")
    objects = any(isinstance(i, dict) for i in inputs)
    values = all(isinstance(i, list) and not _is_text(i) for i in inputs)
    if objects or (values and not all(map(_is_text, outputs))):
        raise ValueError("inputs are arguments of a function that nothing names")


def _is_text(value: Any) -> bool:
    lines = value if isinstance(value, list) else [value]
    return all(isinstance(line, str) for line in lines)


def _calls(arguments: list[Any], outputs: list[Any], fn_name: str) -> dict[str, Any]:
    cases = [{"args": a, "output": o} for a, o in zip(arguments, outputs, strict=True)]
    return _of_kind("call", fn_name, cases)


def _of_kind(kind: str, fn_name: str, cases: Sequence[Any]) -> dict[str, Any]:
    return {"kind": kind, "fn_name": fn_name or None, "cases": cases}


def _text(value: Any) -> str:
    """A stdin text; APPS writes some as a list of lines."""
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _printed(value: Any) -> str:
    """The expected text of stdout: what Python prints. Raises ValueError for no one spelling."""
    lines = value if isinstance(value, list) else [value]
    for line in lines:
        if not isinstance(line, str | int | float):
            shown = json.dumps(value, default=str)[:60]
            raise ValueError(f"an expected output must be text, numbers or lines of these: {shown}")
    return "\n".join(map(str, lines))


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{str(text)[:40]!r} is no JSON value") from error


def _python_tests(source: str, fn_name: str, helpers: str = "") -> dict[str, Any]:
    """HumanEval, LeetCodeDataset: a case for each assertion of `def check(candidate)` or the
    module; one for all when there is other code among them."""
    module = ast.parse(source).body
    if harness := harness_tests(module):
        return _of_kind("assert", fn_name, [{"code": code} for code in harness])
    check = next((n for n in module if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
    body: Sequence[ast.stmt] = check.body if check else module
    if not any(isinstance(n, ast.Assert) for b in module for n in ast.walk(b)):  # or in a helper
        raise ValueError("the Python tests hold no assert")
    lines = re.split(r"\r\n|\r|\n", source)  # as Python counts them
    setup, helping = list[ast.stmt](), ""
    if check:
        setup = [n for n in module if n is not check and not isinstance(n, ast.Expr)]
        used, _ = names_of(_code(lines, body))
        setup = setup if names_of(_code(lines, setup))[1] & used else []
        # some datasets use functions that only their own harness or their prompt defines
        used, own = names_of(_code(lines, [*setup, *body]))
        unknown = used - own - PROVIDED.keys() - {"candidate", fn_name, *dir(builtins)}
        if unknown and unknown <= (theirs := functions(helpers)).keys():
            helping = "\n".join(theirs[name] for name in sorted(unknown))
        elif unknown:
            raise ValueError(f"they use {sorted(unknown)[0]}, which they do not define")
    each = all(isinstance(n, ast.Assert) for n in body)
    parts = [[n] for n in body] if each else [body]
    codes = (_code(lines, [*setup, *part]) for part in parts)
    cases = [{"code": "\n".join(filter(None, (helping, code)))} for code in codes]
    for node in module:  # what the module itself passes to `check`, as in `check(Solution().f)`
        match node:
            case ast.Expr(ast.Call(func=ast.Name(id="check"), args=[what])):
                fn_name = fn_name or ast.unparse(what)
    return _of_kind("assert", fn_name, cases)


def _code(lines: list[str], nodes: Sequence[ast.stmt]) -> str:
    spans = dict.fromkeys((n.lineno - 1, n.end_lineno) for n in nodes)  # `a; b` is one line
    texts = ("\n".join(lines[start:end]) for start, end in spans)
    return "\n".join(textwrap.dedent(text).strip() for text in texts)
