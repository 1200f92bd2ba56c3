"""RELIABILITY.md and SECURITY.md name tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SCRIPT = re.compile(r"`(?:python )?(tests/[\w/]+\.py)\b")


@pytest.mark.parametrize("page", ["RELIABILITY.md", "SECURITY.md"])
def test_every_test_that_a_promise_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = NAMED.findall(text)
    assert len(named) > 10
    assert len(named) == text.count("::test_")
    missing = [f"{file}::{test}" for file, test in named if test not in functions(ROOT / file)]
    assert not missing
    assert not [file for file in SCRIPT.findall(text) if not (ROOT / file).is_file()]


@pytest.mark.parametrize("page", ["RELIABILITY.md", "SECURITY.md"])
def test_every_row_of_a_table_names_its_test(page: str) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / page).read_text(), re.MULTILINE):
        heading, _, *rows = table.splitlines()
        if heading.rstrip(" |").endswith("test"):
            assert not [row for row in rows if "::test_" not in row]


def functions(file: Path) -> set[str]:
    if not file.is_file():
        return set()
    body = ast.parse(file.read_text()).body
    return {n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
