"""Tests as public code datasets write them, turned into a `TestSuite`.

| seen in | form |
|---|---|
| this project | the suite itself: `{"kind": …, "cases": […]}` |
| Codeforces, DeepCoder | `[{"input": …, "output": …}]`, optionally `type` or `testtype` |
| APPS, TACO, Skywork-OR1 | `{"inputs": […], "outputs": […], "fn_name": …}` |
| CodeContests | `{"input": […], "output": […]}` |
| LiveCodeBench | the list above as JSON, or base64 of a zlib-packed pickle of that JSON |
| LeetCodeDataset, HumanEval | `def check(candidate): assert candidate(…) == …` |
| MBPP | `["assert f(1) == 2", …]` |

Every form may also come as a JSON string.
"""

import ast
import base64
import binascii
import builtins
import io
import itertools
import json
import pickle
import re
import textwrap
import zlib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from eval.records import TestSuite

LARGEST_UNPACKED = 1 << 30
CALLS = ("functional", "function_call", "call")


def parse_suite(
    value: Any, *, fn_name: str = "", time_limit_s: float = 6.0, memory_mb: int = 1024
) -> TestSuite:
    """The suite in `value`; limits and function name count where the value names none.

    Raises ValueError that says what is wrong with the value.
    """
    if isinstance(value, str):
        value = _decode(value)
    suite = _suite_dict(value, fn_name)
    limits = {"time_limit_s": time_limit_s, "memory_mb": memory_mb}
    try:
        return TestSuite.model_validate({**limits, **suite})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error


def _suite_dict(value: Any, fn_name: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"kind": "assert", "fn_name": fn_name or None, "cases": _check_function(value)}
    if isinstance(value, dict):
        if "kind" in value:
            return value if value.get("fn_name") or not fn_name else {**value, "fn_name": fn_name}
        if "inputs" in value and "outputs" in value:
            return _paired(value["inputs"], value["outputs"], value.get("fn_name") or fn_name)
        if "input" in value and "output" in value:
            return _paired(value["input"], value["output"], value.get("fn_name") or fn_name)
        raise ValueError(f"an object with {sorted(value)[:6]} is no known form of tests")
    if isinstance(value, Sequence):
        return _listed(value, fn_name)
    raise ValueError(f"tests cannot be a {type(value).__name__}")


def _listed(cases: Sequence[Any], fn_name: str) -> dict[str, Any]:
    if not cases:
        raise ValueError("there are no tests")
    if all(isinstance(c, str) for c in cases):
        asserts = [{"code": c} for c in cases]
        return {"kind": "assert", "fn_name": fn_name or None, "cases": asserts}
    for i, case in enumerate(cases):
        if not isinstance(case, dict):
            raise ValueError(f"test {i + 1} is no object but a {type(case).__name__}")
    first = cases[0]
    if "args" in first or "code" in first:
        kind = "call" if "args" in first else "assert"
        return {"kind": kind, "fn_name": fn_name or None, "cases": list(cases)}
    fn_name = str(first.get("fn_name") or fn_name)
    missing = next((i for i, c in enumerate(cases) if not {"input", "output"} <= set(c)), None)
    if missing is not None:
        raise ValueError(f"test {missing + 1} needs input and output")
    inputs = [c["input"] for c in cases]
    outputs = [c["output"] for c in cases]
    if str(first.get("testtype") or first.get("type") or "") not in CALLS:
        return _paired(inputs, outputs, "")
    if isinstance(inputs[0], str):  # LiveCodeBench: one JSON value a line
        inputs = [[_json(line) for line in text.splitlines()] for text in inputs]
        outputs = [_json(text) for text in outputs]
        calls = [{"args": a, "output": o} for a, o in zip(inputs, outputs, strict=True)]
        return {"kind": "call", "fn_name": fn_name or None, "cases": calls}
    return _paired(inputs, outputs, fn_name)


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


def _check_function(source: str) -> list[dict[str, str]]:
    """One case for each assert of `def check(candidate)`; one for all when it holds other code."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"tests are neither JSON nor Python: {error}") from error
    check = next(
        (n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None
    )
    body: Sequence[ast.stmt] = check.body if check else module.body
    if not any(isinstance(n, ast.Assert) for b in body for n in ast.walk(b)):
        raise ValueError("the Python tests hold no assert")
    setup: list[ast.stmt] = []
    if check:
        setup = [n for n in module.body if n is not check and not isinstance(n, ast.Expr)]
        setup = setup if _names(setup)[1] & _names(body)[0] else []
        _refuse_undefined_names([*setup, *body])
    lines = re.split(r"\r\n|\r|\n", source)  # as Python counts them
    return [{"code": _code(lines, [*setup, *part])} for part in _parts(body)]


def _parts(body: Sequence[ast.stmt]) -> list[Sequence[ast.stmt]]:
    """Each assert by itself where every statement is one, on lines of its own."""
    apart = all((a.end_lineno or a.lineno) < b.lineno for a, b in itertools.pairwise(body))
    if apart and all(isinstance(n, ast.Assert) for n in body):
        return [[n] for n in body]
    return [body]


def _code(lines: list[str], nodes: Sequence[ast.stmt]) -> str:
    spans = dict.fromkeys((n.lineno - 1, n.end_lineno) for n in nodes)  # `a; b` is one line
    texts = ("\n".join(lines[start:end]) for start, end in spans)
    return "\n".join(textwrap.dedent(text).strip() for text in texts)


def _names(nodes: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """The names that the statements read, and the names that they bind."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.partition(".")[0])
    return read, bound


def _refuse_undefined_names(nodes: Sequence[ast.stmt]) -> None:
    """LeetCodeDataset builds trees and lists with functions that only its own harness defines."""
    read, bound = _names(nodes)
    unknown = read - bound - {"candidate", *dir(builtins)}
    if unknown:
        raise ValueError(f"they use {sorted(unknown)[0]}, which they do not define")


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
    except (ValueError, RecursionError):
        return _unpack(text) or text
    if isinstance(value, str):
        raise ValueError("tests are a JSON text, not an object or a list")
    return value


def _unpack(text: str) -> Any:
    """LiveCodeBench's private tests; None when `text` is something else."""
    try:
        packed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, LARGEST_UNPACKED)
        value = _TextOnly(io.BytesIO(data)).load()
        return json.loads(value)
    except (zlib.error, pickle.UnpicklingError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"packed tests cannot be read: {error}") from error


class _TextOnly(pickle.Unpickler):
    """Unpickles plain values only: a pickle that names any class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}; only text is accepted")
