"""The examples of the README work as they stand there, and the tests that RELIABILITY.md and
SECURITY.md name exist."""

import ast
import re
from pathlib import Path

import pytest

from klear.configs.loading import load_profile
from klear.configs.settings.judging import JudgeSettings
from klear.eval.judge.files import judge_files

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SCRIPT = re.compile(r"`(?:python )?(tests/[\w/]+\.py)\b")


@pytest.fixture
def readme() -> str:
    return (ROOT / "README.md").read_text()


def test_the_profile_is_one(readme: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", readme, re.S)
    (tmp_path / "mine.yaml").write_text(example)

    profile = load_profile(str(tmp_path / "mine.yaml"))

    assert profile.collect.sources[0].name == "mine"
    assert profile.distill.engine.runtime.approve_above == 50
    assert profile.base.model == load_profile("single_gpu").base.model


def test_the_answers_are_judged_right(readme: str, tmp_path: Path) -> None:
    for name, key in (("P", "id"), ("S", "problem_id")):
        lines = re.findall(rf'^{{"{key}": .*$', readme, re.M)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))

    verdicts = judge_files(
        tmp_path / "P.jsonl", tmp_path / "S.jsonl", tmp_path / "scores.jsonl", JudgeSettings()
    )

    assert verdicts == {"AC": 2}


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
