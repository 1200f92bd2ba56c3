"""Assertions become calls where JSON says exactly the same."""

import pytest

from eval.programs.assert_calls import NamedCall, as_call
from eval.records import AssertCase, CallCase


def calls(*codes: str, fn_name: str | None = "f") -> list[NamedCall | None]:
    return [as_call(AssertCase(code=code), fn_name) for code in codes]


@pytest.mark.parametrize(
    ("code", "args", "output"),
    [
        ("assert f(1) == 2", (1,), 2),
        ("assert candidate([1, 2], 'x') == -0.5", ([1, 2], "x"), -0.5),
        ("assert Solution().f({'a': 1}) == 'yes', 'message'", ({"a": 1},), "yes"),
        ("assert f() == None", (), None),
    ],
)
def test_one_call_and_its_result_is_a_call(code, args, output):
    assert calls(code) == [NamedCall("f", CallCase(args=args, output=output))]


@pytest.mark.parametrize(
    "code",
    [
        "assert f(1) == [2]",  # a tuple could not be told from a list
        "assert f((1, 2)) == 3",
        "assert f({1}) == 3",
        "assert f({1: 2}) == 3",
        "assert f(x) == 3",
        "assert f(1) != 3",
        "assert f(1)",
        "assert f(1) == f(2)",
        "assert f(1) == 1 + 1",
        "assert abs(f(1)) == 2 < 3",
        "assert f(*[1]) == 2",
        "assert f(**{'a': 1}) == 2",
        "assert f.g(1) == 2",
        "assert len(f(1)) == 2",
        "x = f(1)\nassert x == 2",
        "assert f(1) ==",
        "assert f(" + "[" * 5000 + "]" * 5000 + ") == 1",
        "assert f(1) == 2\nassert f(2) == 3",
        "\0",
    ],
)
def test_anything_else_stays_an_assertion(code):
    assert calls(code) == [None]


def test_keywords_keep_their_names():
    assert calls("assert f([1], k=None) == 3", "assert f(b=2, a=1) == 3") == [
        NamedCall("f", CallCase(args=([1], None), output=3), ("k",)),
        NamedCall("f", CallCase(args=(2, 1), output=3), ("b", "a")),
    ]


def test_candidate_needs_a_name():
    assert calls("assert candidate(1) == 2", fn_name=None) == [None]
    assert calls("assert g(1) == 2", fn_name=None)[0] is not None
