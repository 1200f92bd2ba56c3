"""EvalPlus' own files (HumanEval+, MBPP+): inputs and a reference program, no expected outputs.

The tests run the reference beside the answer, in the sandbox's process for tests. JSON has neither
tuples nor sets: inputs get the types of the statement's example call, and are tuples where the
reference fails on lists. Where it fails in every form, the answer is unscored.
"""

import ast
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..records import AssertCase, TestSuite

IN_ANY_ORDER = {
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
    "intersection_array", "find_dissimilar", "Diff",
}  # fmt: skip
"""Functions of MBPP+ whose results EvalPlus compares as sets."""
FOUND_OR_NOT = {"check_str", "text_match_three", "text_starta_endb"}
"""… of which it asks whether they return anything, where that is no boolean."""
SECONDS = 30.0
"""Of all inputs: EvalPlus has up to a thousand for a problem, and the reference runs too."""
_TESTS = """
import copy
import math

inf, nan, {own} = float("inf"), float("nan"), {{"__name__": "reference"}}
exec({reference!r}, {own})

def same(result, expected):
    if {function!r} in {found_or_not!r}:
        result, expected = (x if isinstance(x, bool) else x is not None for x in (result, expected))
    if {function!r} in {in_any_order!r}:
        return set(result) == set(expected)
    return result == expected or close(result, expected)

def close(result, expected):
    if isinstance(expected, (list, tuple)):
        alike = isinstance(result, (list, tuple)) and len(result) == len(expected)
        return alike and all(map(close, result, expected))
    if isinstance(expected, float) or {everything!r}:
        numbers = isinstance(result, (int, float)) and isinstance(expected, (int, float))
        return numbers and math.isclose(result, expected, rel_tol=1e-7, abs_tol={tolerance!r})
    return result == expected

def tuples(value):
    return tuple(map(tuples, value)) if isinstance(value, list) else value

for given in {inputs!r}:
    for args in (given, tuple(map(tuples, given))):
        try:
            expected = {own}[{function!r}](*copy.deepcopy(args))
            break
        except Exception as error:
            failure = error
    else:  # an ImportError of the tests is nobody's fault: unscored
        raise ImportError(f"the reference program fails on {{given!r:.100}}: {{failure!r}}")
    result = candidate(*copy.deepcopy(args))
    if {function!r} == "find_zero":  # any root will do
        assert abs(sum(c * result**i for i, c in enumerate(args[0]))) <= 1e-4, args
    else:
        assert same(result, expected), f"{{args!r:.100}}"
"""


def reference_suite(
    inputs: Sequence[Any], program: str, function: str, statement: str, tolerance: float = 0.0
) -> TestSuite:
    """One test of all `inputs`, lists of arguments. `program` is the reference, or what follows the
    `statement` where that is the head of a function. Raises ValueError."""
    if not (program.strip() and function):
        raise ValueError("inputs without expected outputs need canonical_solution and entry_point")
    if not all(isinstance(args, list | tuple) for args in inputs):
        raise ValueError("each input must be a list of arguments")
    complete = program if function in functions(program) else f"{statement}{program}"
    if function not in functions(complete):
        raise ValueError(f"the reference program does not define {function}")
    example = _example(statement, function)
    typed = [tuple(_like(list(args), example)) for args in inputs]
    code = _TESTS.format(
        own="reference_names",
        reference=complete,
        function=function,
        inputs=typed,
        everything=bool(tolerance),
        tolerance=tolerance or 1e-6,
        in_any_order=sorted(IN_ANY_ORDER),
        found_or_not=sorted(FOUND_OR_NOT),
    )
    case = AssertCase(code=code)
    return TestSuite(kind="assert", fn_name=function, cases=(case,), time_limit_s=SECONDS)


def statements(program: str) -> list[ast.stmt]:
    """Of Python code; none of any other text."""
    with suppress(SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return ast.parse(program).body
    return []


def functions(program: str) -> dict[str, str]:
    """The functions that Python code defines, by name."""
    return {n.name: ast.unparse(n) for n in statements(program) if isinstance(n, ast.FunctionDef)}


def _example(statement: str, function: str) -> list[Any]:
    """The arguments of the first call of the function that the statement shows; none without."""
    for line in re.findall(r"^\s*(?:assert|>>>)\s*(.*)", statement, re.M):
        try:
            for node in ast.walk(ast.parse(line)):
                match node:
                    case ast.Call(func=ast.Name(id=name), args=args) if name == function:
                        return [ast.literal_eval(argument) for argument in args]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            continue
    return []


def _like(value: Any, example: Any) -> Any:
    """A JSON value with the types of an example: tuples, sets and complex numbers."""
    match example:
        case int() | float() | complex() if isinstance(value, str):
            return complex(value) if isinstance(example, complex) else float(value)
        case set() if isinstance(value, list):
            return set(value)
        case dict() if isinstance(value, dict) and example:
            first = next(iter(example.values()))
            return {key: _like(each, first) for key, each in value.items()}
        case list() | tuple() if isinstance(value, list) and example:
            each = enumerate(value)
            return type(example)(_like(v, example[min(n, len(example) - 1)]) for n, v in each)
    return value
