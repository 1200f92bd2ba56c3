"""What fuzzing found, one named test each."""

import json

import pytest
from fuzz.strategies import SOURCES

from klear.eval.math_answers.verify import MAX_CHARACTERS, quick_verdict
from klear.eval.programs.formats import parse_suite
from klear.eval.records import Problem, Rejected
from klear.eval.row_files import Row, read_rows
from klear.tasks.data.sources import checked


@pytest.mark.parametrize("gold", ["1 " + "9" * 5000 + "/7", "9" * 5000 + r".1\overline{3}"])
def test_a_gold_of_thousands_of_digits_is_unscored_and_no_crash(gold: str) -> None:
    """int() refuses more than 4,300 digits: the ValueError ended the judge stage."""
    verdict = quick_verdict(gold, "3")
    assert verdict is not None
    assert (verdict.verdict, verdict.reason) == ("IE", "the gold answer is too long to be read")
    assert len(gold) > MAX_CHARACTERS
    same = quick_verdict(gold, gold)
    assert same is not None
    assert same.verdict == "AC"


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": "1", "output": "2", "testtype": "functional", "fn_name": "f"},
         {"input": [1], "output": "2"}],
        [{"input": "1", "output": 2, "testtype": "functional", "fn_name": "f"}],
        [{"input": "", "output": [], "testtype": "functional"}],
        {"kind": "stdin", "cases": [{"input": "", "output": ""}], "time_limit_s": 1e300},
        {"kind": "stdin", "cases": [{"input": "", "output": ""}], "time_limit_s": float("inf")},
        {"kind": "stdin", "cases": [{"input": "", "output": ""}], "memory_mb": 10**12},
    ],
)  # fmt: skip
def test_tests_of_the_wrong_kind_are_a_reject_and_end_no_stage(tests) -> None:
    """A TypeError left `parse_suite`, and one bad row ended the collect stage."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_suite(tests)
    made = checked(Row("f", 7, {"problem": "p", "tests": tests}), SOURCES[2], {})
    assert isinstance(made, Rejected)
    assert made.reason.startswith("f row 7: field tests: ")


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_test_that_expects_nan_is_rejected_and_not_turned_into_null(tmp_path, value) -> None:
    """The table held null, and `return None` would have been right."""
    suite = {"kind": "call", "fn_name": "f", "cases": [{"args": [1], "output": [value]}]}
    (tmp_path / "r.jsonl").write_text(json.dumps({"problem": "p", "tests": suite}) + "\n")
    (row,) = read_rows(tmp_path / "r.jsonl")
    made = checked(row, SOURCES[2], {})
    assert isinstance(made, Rejected)
    assert "Out of range float" in made.reason
    suite["cases"] = [{"args": [None, 1.5], "output": None}]
    assert isinstance(
        checked(Row("f", 1, {"problem": "p", "tests": suite}), SOURCES[2], {}), Problem
    )
