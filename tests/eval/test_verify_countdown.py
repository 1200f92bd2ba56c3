"""Make the target: exactly these numbers, exactly this value."""

import re

import pytest

from klear.eval.families.countdown import verify_countdown

NUMBERS = (3, 4, 7, 9)


@pytest.mark.parametrize(
    "answer",
    [
        "9*3-7+4",
        r"9 \times 3 - 7 + 4",
        r"(9 \cdot 3) - (7 - 4)",
        "4 + 9 × 3 − 7",
        "9*3-7+4 = 24",
        r"\left(9*3\right)-7+4",
        "[9*3]-{7-4}",
    ],
)
def test_the_target_from_each_number_once_is_right(answer):
    assert verify_countdown(answer, "24", NUMBERS).verdict == "AC"


def test_division_is_exact_and_a_target_that_is_no_number_is_unscored():
    assert verify_countdown(r"\frac{8}{3-\frac{8}{3}}", "24", (8, 3, 8, 3)).verdict == "AC"
    assert verify_countdown("1", "many", (1,)).verdict == "IE"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("24", "exactly once"),
        ("9*3-3", "exactly once"),
        ("9*3-7+4+0", "exactly once"),
        ("9+3+7+4", "the value is 23"),
        ("9*3-7+4 = 25", "does not hold"),
        ("9*3-7+(4", "never closed"),
        ("9*3-7+4)", "unmatched"),
        ("9**3-7+4", "not an expression"),
        ("9/(3-3)+7+4", "not an expression"),
        ("__import__('os')", "unexpected"),
        ("(" * 900 + "9" + ")" * 900, "."),
        ("-" * 1999 + "9", "."),
        ("9" * 5000, "too long"),
        ("", "not an expression"),
    ],
)
def test_anything_else_is_wrong_with_a_reason(answer, reason):
    verdict = verify_countdown(answer, "24", NUMBERS)
    assert verdict.verdict == "WA"
    assert re.search(reason, verdict.reason)
