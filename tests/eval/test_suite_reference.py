"""EvalPlus rows: the reference solution decides what is right."""

import pytest

from eval.programs.formats import parse_suite

PLUS = {
    "task_id": 3,
    "prompt": '"""Halve a number."""\n',
    "entry_point": "half",
    "canonical_solution": "\ndef half(n):\n    return n / 2\n",
    "base_input": [[4], [1]],
    "plus_input": [[3]],
    "atol": 0,
    "contract": "",
}


def passes(code: str, candidate) -> bool:
    try:
        exec(code, {"candidate": candidate})
    except AssertionError:
        return False
    return True


def test_every_input_is_a_case_that_the_reference_decides():
    suite = parse_suite(PLUS)
    codes = [c.model_dump()["code"] for c in suite.cases]
    assert (suite.kind, suite.fn_name, len(codes)) == ("assert", "half", 3)
    assert all(passes(code, lambda n: n / 2) for code in codes)
    assert not any(passes(code, lambda n: n) for code in codes)


def test_fractions_may_differ_by_the_tolerance_and_whole_numbers_may_not():
    code = parse_suite({**PLUS, "base_input": [[3]], "plus_input": [], "atol": 0.1}).cases[0]
    close = code.model_dump()["code"]
    assert passes(close, lambda _: 1.55)
    assert not passes(close, lambda _: 1.7)
    whole = {**PLUS, "canonical_solution": "def half(n):\n    return n // 2\n", "atol": 0.9}
    assert not passes(parse_suite(whole).cases[0].model_dump()["code"], lambda _: 1)


def test_humanevals_solution_goes_on_where_its_prompt_stops():
    row = {**PLUS, "prompt": "def half(n):\n", "canonical_solution": "    return n / 2\n"}
    assert passes(parse_suite(row).cases[0].model_dump()["code"], lambda n: n / 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"canonical_solution": "x = 1"}, "does not define half"),
        ({"base_input": [], "plus_input": None}, "lists of argument lists"),
        ({"base_input": [4]}, "lists of argument lists"),
    ],
)
def test_a_row_that_cannot_test_is_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        parse_suite({**PLUS, **change})
