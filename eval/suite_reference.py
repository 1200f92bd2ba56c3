"""Tests that name a reference solution instead of results: MBPP+ and HumanEval+ of EvalPlus.

A case runs the reference beside the candidate and compares what they return. Numbers with a
fraction may differ by EvalPlus's own tolerance.
"""

import ast
from collections.abc import Mapping
from typing import Any

REFERENCE_FIELDS = frozenset({"base_input", "canonical_solution", "entry_point"})
_TOLERANCE = 1e-6
_NO_LISTS = "base_input and plus_input must be lists of argument lists"

_CASE = """\
reference = {{}}
exec({source!r}, reference)
def same(found, right):
    if isinstance(right, float) and isinstance(found, (int, float)):
        return found == right or abs(found - right) <= {tolerance!r} + 1e-7 * abs(right)
    if isinstance(right, (list, tuple)) and isinstance(found, type(right)):
        return len(found) == len(right) and all(map(same, found, right))
    return found == right
assert same(candidate(*{arguments}), reference[{name!r}](*{arguments}))"""


def reference_tests(row: Mapping[str, Any]) -> dict[str, Any]:
    """The suite of one EvalPlus row. Raises ValueError that says what is wrong with it."""
    name, base, more = row["entry_point"], row["base_input"], row.get("plus_input") or []
    source = _reference(row, name)
    if not isinstance(base, list) or not isinstance(more, list):
        raise ValueError(_NO_LISTS)
    inputs = [*base, *more]
    if not inputs or not all(isinstance(arguments, list) for arguments in inputs):
        raise ValueError(_NO_LISTS)
    tolerance = row.get("atol") or _TOLERANCE
    cases = [
        {"code": _CASE.format(source=source, name=name, tolerance=tolerance, arguments=repr(a))}
        for a in inputs
    ]
    return {"kind": "assert", "fn_name": name, "cases": cases}


def _reference(row: Mapping[str, Any], name: str) -> str:
    """HumanEval's solution goes on where the prompt stops; MBPP's stands by itself."""
    solution = row["canonical_solution"]
    for source in (solution, f"{row.get('prompt', '')}{solution}"):
        try:
            functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
        except (SyntaxError, ValueError, TypeError, RecursionError):
            continue
        if any(f.name == name for f in functions):
            return source
    raise ValueError(f"canonical_solution does not define {name}")
