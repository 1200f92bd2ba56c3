"""Tests written in Python, taken apart into assertions that run one by one."""

import ast
import builtins
import itertools
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from eval.zygote_asserts import PROVIDED


def listed_asserts(asserts: Sequence[str], fn_name: str, setup: str = "") -> dict[str, Any]:
    """MBPP: one case for each assertion, `setup` before it."""
    before = f"{setup.strip()}\n" if setup.strip() else ""
    cases = [{"code": before + code.strip()} for code in asserts]
    return {"kind": "assert", "fn_name": fn_name or None, "cases": cases}


def python_tests(source: str, fn_name: str) -> dict[str, Any]:
    """HumanEval, LeetCodeDataset: one case for each assertion of `def check(candidate)`, or of the
    module; one for all when there is other code among them. Raises ValueError.
    """
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
        _refuse_undefined_names([*setup, *body], fn_name)
    lines = re.split(r"\r\n|\r|\n", source)  # as Python counts them
    cases = [{"code": _code(lines, [*setup, *part])} for part in _parts(body)]
    return {"kind": "assert", "fn_name": fn_name or _checked_name(module), "cases": cases}


def _checked_name(module: ast.Module) -> str | None:
    """What the module itself passes to `check`, as in `check(Solution().twoSum)`."""
    for node in module.body:
        match node:
            case ast.Expr(ast.Call(func=ast.Name(id="check"), args=[what])):
                return ast.unparse(what)
    return None


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


def _refuse_undefined_names(nodes: Sequence[ast.stmt], fn_name: str) -> None:
    """Some datasets use functions that only their own harness or their prompt defines."""
    read, bound = _names(nodes)
    unknown = read - bound - PROVIDED - {"candidate", fn_name, *dir(builtins)}
    if unknown:
        raise ValueError(f"they use {sorted(unknown)[0]}, which they do not define")
