"""What counts as the same output: layout is forgiven, values are not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klear.eval.programs.compare import equal_json, same_json, same_text, same_tokens, same_value

SAME = [
    ("7 \n\n", "7"), ("1 2 \n3", "1 2\n3\n"), ("1  2", "1 2"), ("7.00", "7"), ("1e3", "1000"),
    ("0.30000000000000004", "0.3"), ("1\r\n2\r\n", "1\n2\n"), ("9" * 6000, "9" * 6000),
]  # fmt: skip
OTHER = [
    ("", "7"), ("7 7", "7"), ("7", "7 7"), ("1 2 3", "1 2\n3"), ("1\n\n2", "1\n2"), ("yes", "YES"),
    ("7.0000001", "7"),  # an integer has no tolerance
    ("1_000", "1000"), ("nan", "0.5"), ("inf", "1.5"), ("0.3001", "0.3"),
    ("10000000000000000000001", "10000000000000000000000"),
    ("\N{ARABIC-INDIC DIGIT SEVEN}", "7"), ("1e999999999", "1.0"), ("1e-999999", "1.0"),
]  # fmt: skip


@pytest.mark.parametrize("pair", SAME + OTHER, ids=lambda pair: f"{pair[0]:.20} {pair[1]:.20}")
def test_layout_and_float_noise_are_forgiven_and_other_values_are_other_answers(pair):
    assert same_text(*pair) == (pair in SAME)


DIGITS = st.text("0123456789", min_size=1, max_size=30)
INTEGERS = st.integers(-(10**30), 10**30)
BEFORE = st.sampled_from(["0", "00", "+", "-0", "+0"])


@given(DIGITS, BEFORE, st.sampled_from(["", ".0", ".50", "e+05"]))
def test_a_string_of_digits_has_one_spelling(digits, before, after):
    text = before + digits + after  # no program prints a number so
    number = f"{int(digits)}{after}"
    for same in (same_text, same_tokens):
        assert same(f"x {text}\n", f"x {text}")
        assert not same(number, text)
        assert not same(f"-{number}", text)
        if before != "-0" or digits.strip("0"):
            assert not same(text, number)


@given(INTEGERS)
def test_what_is_no_number_as_programs_print_it_is_a_text(number):
    for text in (f"{number}e5", f"{number}E2", f"{number}.", f"{number}_0", f"0x{abs(number)}"):
        assert same_text(text, text)
        assert not same_text(f"{float(text):.0f}" if "e" in text.lower() else f"{number}", text)


@given(INTEGERS, st.integers(-300, 300))
def test_a_number_has_many_spellings_and_a_neighbour_none_of_them(number, power):
    spellings = [f"{number}.0", f"{number}.", f"{number}.000", f"{number * 10}e-1"]
    for same in (same_text, same_tokens):
        assert all(same(text, f"{number}") for text in spellings)
        assert not any(same(text, f"{number + 1}") for text in spellings)
    for real in (f"{number}.5", f"{number}.25e-3", f"7.5e{power}", f"-1e{power:+03d}"):
        assert same_text(f"{float(real)!r}", real)
        assert not same_text(f"{float(real) * 1.001 + 0.002}", real)


EQUAL = [
    ([3, 4], [3, 4]), (0.1 + 0.2, 0.3), ([[1.0]], [[1]]), (True, 1), ({"a": [1]}, {"a": [1]})
]  # fmt: skip
UNEQUAL = [
    (1, [1, 2, 3]),  # a judge that compares with expected[0] accepts this
    ([1], [1, 2]), ([1, 2], {"0": 1}), ("7", 7), (7, "7"), (10**400, 1.5), (float("inf"), 1.5),
    (7.0000001, 7), (None, 0), ([], False), ({}, None),
]  # fmt: skip


def test_returned_values_compare_as_json_and_garbage_is_wrong_and_no_crash():
    for actual, expected in EQUAL:
        assert same_json(json.dumps(actual).encode(), expected)
    for actual, expected in UNEQUAL:
        assert not same_value(actual, expected), (actual, expected)
    for garbage in (b"", b"[1", b"\xff", b"[" * 100_000, b"9" * 100_000):
        assert not same_json(garbage, [1])
        assert not equal_json(garbage, [1])
    assert equal_json(b"[1.0, true]", [1, 1])
    assert not equal_json(b"0.30000000000000004", 0.3)
    assert not equal_json(b"NaN", float("nan"))
    assert not equal_json(b"2", [2])


def test_a_very_long_number_is_compared_in_linear_time(quickest):
    for wrong in ("1" * 4_000_000 + "x", "." + "1" * 4_000_000 + "x"):
        assert quickest(lambda text=wrong: same_text(text, "7"), below=1.0) < 1.0
        assert not same_text(wrong, "7")
