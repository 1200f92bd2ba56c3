"""Assertions that are nothing but a call and its result, turned into call-based tests.

`assert candidate(nums = [3, 2, 4], k = 2) == 4` needs no process for the test: the program's
process returns the value as JSON and the parent compares it, as exactly as the assertion does. Only
what JSON can say without loss is turned: results are numbers, texts, truth values or None, because
in a list a tuple could not be told from a list; arguments may be lists and dicts. All else stays an
assertion.
"""

import ast
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from eval.records import AssertCase, CallCase

_LONGEST = 1 << 20  # characters; a longer assertion is not parsed


class NamedCall(NamedTuple):
    """A call of `function`; the last of its arguments are passed as `names`."""

    function: str
    case: CallCase
    names: tuple[str, ...] = ()


def as_calls(cases: Sequence[AssertCase], fn_name: str | None) -> list[NamedCall | None]:
    """For each case the call where it is nothing else, or None. `candidate` means `fn_name`."""
    candidate = (fn_name or "").rpartition(".")[2]
    return [_named(_parsed(case.code), candidate) for case in cases]


def _named(call: NamedCall | None, candidate: str) -> NamedCall | None:
    if call is None or call.function != "candidate":
        return call
    return call._replace(function=candidate) if candidate else None


@lru_cache(maxsize=4096)
def _parsed(code: str) -> NamedCall | None:
    """The call of `assert f(…) == literal`, of the function as the test calls it."""
    if len(code) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match module.body:
        case [
            ast.Assert(
                test=ast.Compare(left=ast.Call() as call, ops=[ast.Eq()], comparators=[right])
            )
        ]:
            name = _function_name(call.func)
        case _:
            return None
    if name is None or any(keyword.arg is None for keyword in call.keywords):
        return None
    try:
        args = [_plain(node) for node in (*call.args, *(k.value for k in call.keywords))]
        output = _plain(right)
        if isinstance(output, list | dict):
            return None
        case = CallCase(args=tuple(args), output=output)
    except (ValueError, TypeError, RecursionError, SyntaxError, MemoryError):
        return None
    return NamedCall(name, case, tuple(str(k.arg) for k in call.keywords))


def _function_name(node: ast.expr) -> str | None:
    """f of `f(…)` and of `Solution().f(…)`."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Call(func=ast.Name(id="Solution"), args=[]), attr=name):
            return name
    return None


def _plain(node: ast.expr) -> Any:
    """The literal's value; ValueError where its JSON would read back as something else."""
    value = ast.literal_eval(node)
    if _kinds(value):
        return value
    raise ValueError("not JSON")


def _kinds(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_kinds, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _kinds(item) for key, item in value.items())
    return value is None or isinstance(value, str | bool | int | float)
