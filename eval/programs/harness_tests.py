"""Tests written for unittest or pytest (BigCodeBench, KodCode) as assertions, one for each test.
They run apart from the program: what reaches into its process (mocks, fixtures) is refused."""

import ast
from collections.abc import Sequence
from pathlib import Path

from . import pytest_names

_PROGRAMS = ("solution", "answer", "main", "your_module", "submission")
"""Modules that tests import the program from; it is not imported here."""


def harness_tests(module: list[ast.stmt]) -> list[str]:
    """Code for each test method of `unittest` classes, or each test function as pytest runs it;
    none for other tests. Raises ValueError for what only their own harness can run."""
    classes = [n for n in module if isinstance(n, ast.ClassDef) and "TestCase" in _words(n.bases)]
    functions = [n for n in module if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    checks = (n for n in module if isinstance(n, ast.FunctionDef) and n.name == "check")
    if not (classes or functions) or any(checks):
        return []
    if unlike := _words(module) & {"patch", "MagicMock", "monkeypatch", "parametrize", "fixture"}:
        raise ValueError(f"they use {min(unlike)}, which does not reach a program judged apart")
    own = [n for n in module if not _is_import_of_the_program(n) and not _runs_tests(n)]
    used = _words(module)
    own = [n for n in own if not isinstance(n, ast.Import) or used & _bound(n)]
    helping = [*_other_names(module), *_for_pytest(own)]
    own = [n for n in own if not _imports(n, "pytest")]
    rest = "\n".join([*helping, *(ast.unparse(n) for n in own if n not in functions)])
    codes: list[str] = []
    for function in functions:
        if arguments := function.args.posonlyargs + function.args.args:
            raise ValueError(f"{function.name} takes {arguments[0].arg}, a fixture of its harness")
        codes.append(f"{rest}\n{ast.unparse(function)}\n{function.name}()")
    for group in classes:
        names = (n.name for n in group.body if isinstance(n, ast.FunctionDef))
        codes += [
            f"import unittest\n{rest}\n_result = unittest.TestResult()\n"
            f"{group.name}({name!r}).run(_result)\n"
            "_failed = [text for _, text in _result.failures + _result.errors]\n"
            "assert not _failed, _failed[0].strip().splitlines()[-1]"
            for name in names
            if name.startswith("test")
        ]
    return codes


def _for_pytest(nodes: Sequence[ast.stmt]) -> list[str]:
    """What stands for pytest, where the tests import it. Raises ValueError for more of it."""
    imports = [n for n in nodes if _imports(n, "pytest")]
    inner = [n for node in nodes for n in ast.walk(node)]
    attributes = (n for n in inner if isinstance(n, ast.Attribute))
    used = {n.attr for n in attributes if _words([n.value]) == {"pytest"}}
    names = [a.name for n in imports if isinstance(n, ast.ImportFrom) for a in n.names]
    if more := {*used, *names} - {"raises", "approx", "fail"}:
        raise ValueError(f"they use pytest.{min(more)}, which only pytest can run")
    own = [f"{name} = pytest.{name}" for name in names]
    return [Path(pytest_names.__file__).read_text("utf-8"), *own] if imports else []


def _imports(node: ast.stmt, module: str) -> bool:
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
    return module in names or (isinstance(node, ast.ImportFrom) and node.module == module)


def _bound(node: ast.Import) -> set[str]:
    return {(a.asname or a.name).partition(".")[0] for a in node.names}


def _is_import_of_the_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.level > 0 or node.module in _PROGRAMS)


def _other_names(module: Sequence[ast.stmt]) -> list[str]:
    """What the tests call the program's names: `from solution import f as g`."""
    imports = [n for n in module if isinstance(n, ast.ImportFrom) and _is_import_of_the_program(n)]
    names = [(a.asname, a.name) for node in imports for a in node.names]
    return [f"{other} = {name}" for other, name in names if other and other != name]


def _runs_tests(node: ast.stmt) -> bool:
    """`if __name__ == "__main__": unittest.main()`, or the call alone."""
    guard = isinstance(node, ast.If) and "__name__" in _words([node.test])
    return guard or (isinstance(node, ast.Expr) and "main" in _words([node]))


def _words(nodes: Sequence[ast.AST]) -> set[str]:
    """Names and attributes that are used anywhere in the code."""
    inner = [n for node in nodes for n in ast.walk(node)]
    return {n.id for n in inner if isinstance(n, ast.Name)} | {
        n.attr for n in inner if isinstance(n, ast.Attribute)
    }
