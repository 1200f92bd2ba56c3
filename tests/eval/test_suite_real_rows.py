"""Real rows of public code datasets: every one becomes a suite or is refused with a reason.

The counts are of the files in ../shared/data: HumanEval's four use functions of their prompt.
"""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from eval.programs.formats import joined, parse_suite

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")


def rows(name: str, step: int = 1) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt") as file:
        return [json.loads(line) for line in itertools.islice(file, None, None, step)]


@pytest.mark.parametrize(
    ("name", "field", "fn_field", "kind", "step"),
    [
        ("leetcode/v0.2.0_train.jsonl.gz", "test", "entry_point", "assert", 10),
        ("leetcode/v0.3.1_test.jsonl.gz", "test", "entry_point", "assert", 10),
        ("mbpp/mbpp.jsonl.gz", "test_list", "", "assert", 1),
        ("mbpp_plus/MbppPlus.jsonl.gz", "", "", "assert", 1),
        ("rllm_code/codeforces_test.jsonl.gz", "tests", "", "stdin", 1),
        ("kodsport/problems.jsonl.gz", "tests", "", "stdin", 1),
    ],
)
def test_every_row_is_a_suite(name, field, fn_field, kind, step):
    for row in rows(name, step):
        suite = parse_suite(row[field] if field else row, fn_name=row.get(fn_field, ""))
        assert (suite.kind, bool(suite.cases)) == (kind, True)


def test_the_cases_of_a_suite_are_those_of_the_row():
    for row in rows("rllm_code/codeforces_test.jsonl.gz", 20):
        cases = [c.model_dump() for c in parse_suite(row["tests"]).cases]
        assert cases == [{"input": t["input"], "output": t["output"]} for t in row["tests"]]
    for row in rows("mbpp_plus/MbppPlus.jsonl.gz", 20):
        number = len(row["base_input"]) + len(row["plus_input"])
        assert len(parse_suite(row).cases) == number
    for row in rows("leetcode/v0.3.1_test.jsonl.gz", 20):
        suite = parse_suite(row["test"], fn_name=row["entry_point"])
        assert len(suite.cases) == row["test"].count("assert candidate(")
        assert suite.fn_name == row["entry_point"]


def test_humaneval_tests_that_need_functions_of_their_prompt_are_refused_by_name():
    refused: dict[str, str] = {}
    for row in rows("humaneval/test.jsonl.gz"):
        try:
            assert parse_suite(row["test"], fn_name=row["entry_point"]).cases
        except ValueError as error:
            refused[row["task_id"]] = str(error)
    names = {"32": "poly", "38": "encode_cyclic", "50": "encode_shift"}
    assert refused == {
        f"HumanEval/{number}": f"they use {name}, which they do not define"
        for number, name in names.items()
    }


def test_more_tests_of_a_row_join_its_suite():
    more = next(r for r in rows("mbpp/mbpp.jsonl.gz") if r["challenge_test_list"])
    suites = [parse_suite(more[name]) for name in ("test_list", "challenge_test_list")]
    assert len(joined(suites).cases) == len(more["test_list"]) + len(more["challenge_test_list"])
