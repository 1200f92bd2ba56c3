"""Assertions that are nothing but a call and its result, turned into call-based tests.

`assert candidate(nums = [3, 2, 4], k = 2) == 4` needs no process for the test: the program's
process returns the value as JSON and the parent compares it, as exactly as the assertion does. Only
what JSON can say without loss is turned: results are numbers, texts, truth values or None, because
in a list a tuple could not be told from a list; arguments may be lists and dicts. All else stays an
assertion, which costs 2.5 times the CPU time.
"""

import ast
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

from eval.records import AssertCase, CallCase

_LONGEST = 1 << 20  # characters; a longer assertion is not parsed


class NamedCall(NamedTuple):
    """A call of `function`; the last of its arguments are passed as `names`."""

    function: str
    case: CallCase
    names: tuple[str, ...] = ()


def as_call(case: AssertCase, fn_name: str | None) -> NamedCall | None:
    """The call, where the assertion is nothing else. `candidate` means `fn_name`."""
    call = _parsed(case.code)
    if call is None or call.function != "candidate":
        return call
    name = (fn_name or "").rpartition(".")[2]
    return call._replace(function=name) if name else None


@lru_cache(maxsize=4096)
def _parsed(code: str) -> NamedCall | None:
    """The call of `assert f(…) == literal`, of the function as the test calls it."""
    if len(code) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(code).body
        match body:
            case [ast.Assert(ast.Compare(ast.Call(func, args, keywords), [ast.Eq()], [right]))]:
                name, names = _function_name(func), tuple(keyword.arg for keyword in keywords)
            case _:
                return None
        *given, output = map(_plain, (*args, *(keyword.value for keyword in keywords), right))
        if name is None or None in names or isinstance(output, list | dict):
            return None
        return NamedCall(name, CallCase(args=tuple(given), output=output), tuple(map(str, names)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _function_name(node: ast.expr) -> str | None:
    """f of `f(…)` and of `Solution().f(…)`."""
    match node:
        case ast.Name(name) | ast.Attribute(ast.Call(ast.Name("Solution"), [], []), name):
            return name
    return None


def _plain(node: ast.expr) -> Any:
    """The literal's value; ValueError where its JSON would read back as something else."""
    value = ast.literal_eval(node)
    if _is_json(value):
        return value
    raise ValueError("not JSON")


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, str | bool | int | float)
