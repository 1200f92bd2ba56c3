"""The verdicts on the shared cases: attacks, idioms, a corpus of programs, pairs of math answers.

The cases lie beside the repository and were written by people who did not know this judge. Where
the expected verdict of a math pair is a matter of policy, ours is recorded below.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge.judge import Judge
from klear.eval.programs.formats import parse_suite
from klear.eval.programs.verify import judge_program
from klear.eval.records import Problem
from klear.eval.sandbox.sandbox import Sandbox
from tests.bench.bench_judge import suite_of

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
SUMS = ((3, 4), (-5, 6), (10**12, 1))


def cases(name: str) -> list[dict[str, Any]]:
    file = CASES / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else []


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(JudgeSettings(runtime=JudgeRuntime(workers=1))) as running:
        yield running


def sums(case: dict[str, Any]) -> dict[str, Any]:
    """What every attack is asked for: the sum of two numbers."""
    between = "\n" if case["fn"] else " "
    inputs, outputs = zip(*((f"{a}{between}{b}\n", f"{a + b}\n") for a, b in SUMS), strict=True)
    return case | {"inputs": inputs, "outputs": outputs}


@pytest.mark.system
@pytest.mark.parametrize("case", cases("attacks"), ids=lambda case: case["name"])
def test_an_attack_scores_only_where_it_computes_the_answer(
    sandbox: Sandbox, case: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "expected.json").write_text('{"outputs": ["7"]}')
    source = case["src"].replace("{victim}", str(tmp_path)).replace("{secret}", str(tmp_path))
    verified = judge_program(sandbox, suite_of(sums(case)), source, JudgeSettings())
    assert [file.name for file in tmp_path.iterdir()] == ["expected.json"]
    if case["want"] != "any":
        assert (verified.verdict == "AC") == (case["want"] == "pass"), verified.reason
    honest = "a, b = map(int, input().split())\nprint(a + b)"
    plain = suite_of(sums({"fn": None}))
    assert judge_program(sandbox, plain, honest, JudgeSettings()).verdict == "AC"


@pytest.mark.parametrize(
    "case", cases("idioms") + cases("code_corpus"), ids=lambda case: case["name"]
)
def test_a_right_program_is_accepted_and_its_corruption_is_not(sandbox, case):
    verified = judge_program(sandbox, suite_of(case), case["src"], JudgeSettings())
    assert verified.verdict == "AC", verified.reason
    wrong = "def f(*a, **k): return '?'\n" + (f"{case['fn']} = f" if case["fn"] else "print('?')")
    stop = JudgeSettings(stop_at_first_failure=True)
    assert judge_program(sandbox, suite_of(case), wrong, stop).verdict == "WA"


@pytest.mark.parametrize("case", cases("math_cases"), ids=lambda case: case["id"])
def test_a_pair_of_math_answers_has_its_verdict(judge: Judge, case: dict[str, Any]) -> None:
    problem = Problem(domain="math", prompt=case["id"], answer=case["gold"], source="cases")
    assert judge.judge(problem, case["answer"]).correct == case["expected"]


@pytest.mark.parametrize(
    "case",
    [c for c in cases("real_code") if len(c["tests"]) < 300],  # one is cut off there, in the file
    ids=lambda case: case["id"],
)
def test_a_program_on_tests_as_datasets_write_them_has_its_verdict(
    judge: Judge, case: dict[str, Any]
) -> None:
    try:
        value = ast.literal_eval(case["tests"])
    except (SyntaxError, ValueError):
        value = case["tests"]
    try:
        named = "g" if "functional" in case["tests"] else ""
        tests = parse_suite(value, fn_name=named, memory_mb=512)
    except ValueError:
        tests = None
    if tests is None:
        assert "REJ" in case["want"]
        return
    problem = Problem(domain="code", prompt="p", tests=tests)
    score = judge.judge(problem, f"<think>x</think>\n```python\n{case['program']}\n```")
    assert score.verdict in case["want"], score.reason
