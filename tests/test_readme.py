"""The README is short and true, and every test that a promise names exists."""

import ast
import re
from pathlib import Path

import pytest

from docs import hooks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROMISES = ["docs/reliability.md", "docs/security.md"]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SCRIPT = re.compile(r"`(?:python )?(tests/[\w/]+\.py)\b")


def test_the_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 1400


def test_the_table_of_what_was_seen_is_that_of_the_facts() -> None:
    assert f"<!-- status -->\n{hooks.status()}\n<!-- /status -->" in README, hooks.status()


def test_the_table_of_what_was_seen_names_tests_that_are_there() -> None:
    named = re.findall(r"\]\((tests/[^)]*)\)", hooks.status())
    assert len(named) == (ROOT / "docs/status.toml").read_text().count('\ncpu = "')


def test_the_points_that_the_honest_lines_quote_are_in_the_results() -> None:
    equal, gain = re.findall(r"\d+\.\d ± \d+\.\d", README)
    (lost,) = re.findall(r"−\d+\.\d \(−\d+\.\d to \+\d+\.\d\)", README)
    lines = (ROOT / hooks.RESULTS).read_text().splitlines()
    quoted = {"gppo over clip-higher -": equal, "gppo over cispo +": gain}
    for contrast, points in quoted.items():
        assert any(f"{contrast}{points}" in line for line in lines), contrast
    (line,) = [line for line in lines if lost.replace("−", "-") in line]
    assert "gppo over clip-higher" in line


@pytest.mark.parametrize("page", PROMISES)
def test_every_test_that_a_promise_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = NAMED.findall(text)
    assert len(named) > 10
    assert len(named) == text.count("::test_")
    missing = [f"{file}::{test}" for file, test in named if test not in functions(ROOT / file)]
    assert not missing
    assert not [file for file in SCRIPT.findall(text) if not (ROOT / file).is_file()]


@pytest.mark.parametrize("page", PROMISES)
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
