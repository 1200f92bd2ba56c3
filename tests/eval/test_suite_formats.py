"""Public test formats become the one TestSuite; what cannot is refused with a reason."""

import base64
import json
import os
import pickle
import pickletools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.programs.formats import parse_suite, pickled_text, unpack_tests, with_checker
from eval.records import AssertCase, CallCase, StdinCase, TestSuite

STDIN = (StdinCase(input="1\n", output="2\n"), StdinCase(input="3\n", output="4\n"))
META = {"func_name": "f"}
CALLS = (CallCase(args=(1, [2]), output=3), CallCase(args=(4, [5]), output=[6, 7]))


def packed(value) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


FUNCTION_CALLS = [
    {"type": "function_call", "fn_name": "f", "input": [1, [2]], "output": [3]},
    {"type": "function_call", "fn_name": "f", "input": [4, [5]], "output": [[6, 7]]},
]
AS_LIST = [{"input": "1\n", "output": "2\n"}, {"input": "3\n", "output": "4\n"}]
AS_PAIRS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}


@pytest.mark.parametrize(
    "value",
    [
        AS_LIST,
        AS_PAIRS,
        {"input": ["1\n", "3\n"], "output": ["2\n", "4\n"]},
        json.dumps(AS_LIST),
        json.dumps(AS_PAIRS),
        [{**case, "testtype": "stdin"} for case in AS_LIST],
        [{**case, "type": "stdin_stdout", "fn_name": None} for case in AS_LIST],
        packed([{**case, "testtype": "stdin"} for case in AS_LIST]),
        TestSuite(kind="stdin", cases=STDIN).model_dump(),
    ],
)
def test_stdin_tests_in_every_form_are_the_same_suite(value):
    suite = parse_suite(value)
    assert (suite.kind, suite.cases) == ("stdin", STDIN)


@pytest.mark.parametrize(
    "value",
    [
        {"fn_name": "f", "inputs": [[1, [2]], [4, [5]]], "outputs": [3, [6, 7]], "pytest": None},
        {"fn_name": "f", "inputs": [[1, [2]], [4, [5]]], "outputs": [[3], [[6, 7]]]},
        {"entry_point": "f", "inputs": [[1, [2]], [4, [5]]], "outputs": [3, [6, 7]]},
        {"kind": "call", "fn_name": "f", "cases": [call.model_dump() for call in CALLS]},
        [  # DeepCoder keeps LiveCodeBench's metadata beside each test
            {"input": "1\n[2]", "output": "3", "testtype": "functional", "metadata": META},
            {"input": "4\n[5]", "output": "[6, 7]", "testtype": "functional", "metadata": META},
        ],
        {"language": "python", "test_cases": FUNCTION_CALLS},
        FUNCTION_CALLS,
    ],
)
def test_call_tests_in_every_form_are_the_same_suite(value):
    suite = parse_suite(value)
    assert (suite.kind, suite.fn_name, suite.cases) == ("call", "f", CALLS)


def test_the_source_names_the_function_where_its_tests_do_not():
    suite = parse_suite([{"args": [1, [2]], "output": 3}], fn_name="f")
    assert (suite.fn_name, suite.cases) == ("f", CALLS[:1])


def test_lines_in_a_list_are_one_text():
    suite = parse_suite({"inputs": [["1", "2"]], "outputs": [["3", "4"]]})
    assert suite.cases == (StdinCase(input="1\n2", output="3\n4"),)


def test_each_assert_of_a_check_function_is_one_case():
    source = (
        "import math\n\ndef check(candidate):\n"
        "    assert candidate(n = 1) == 2\n"
        "    assert candidate(\n        n = 2) == 3, 'two'\n"
    )
    suite = parse_suite(source, fn_name="Solution().f")
    assert suite.kind == "assert"
    assert suite.fn_name == "Solution().f"
    assert suite.cases == (
        AssertCase(code="assert candidate(n = 1) == 2"),
        AssertCase(code="assert candidate(\n    n = 2) == 3, 'two'"),
    )


def test_a_check_function_with_other_code_stays_one_case():
    source = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i\n"
    (case,) = parse_suite(source).cases
    assert case == AssertCase(code="for i in range(3):\n    assert candidate(i) == i")


def test_what_the_asserts_need_from_around_them_comes_along():
    source = (
        "from math import inf as far\n\nMETADATA = {}\n\ndef check(candidate):\n"
        "    assert candidate(1) == far\n"
        "    assert [candidate(i) for i in range(2)] == [far, far]\n"
    )
    for case in parse_suite(source).cases:
        program = {"candidate": lambda _: float("inf")}
        exec(case.model_dump()["code"], program)
        with pytest.raises(AssertionError):
            exec(case.model_dump()["code"], {"candidate": lambda _: 0})


def test_a_list_of_asserts_is_an_assert_suite():
    suite = parse_suite(["assert f(1) == 2", "assert f(2) == 3"])
    assert [c.model_dump() for c in suite.cases] == [
        {"code": "assert f(1) == 2"},
        {"code": "assert f(2) == 3"},
    ]


def test_limits_come_from_the_source_unless_the_suite_names_them():
    own = {"kind": "stdin", "cases": AS_LIST, "time_limit_s": 1.5}
    suite = parse_suite(own, time_limit_s=9, memory_mb=64)
    assert (suite.time_limit_s, suite.memory_mb) == (1.5, 64)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "there are no tests"),
        ("", "there are no tests"),
        (None, "cannot be a NoneType"),
        (7, "cannot be a int"),
        ('"text"', "JSON text"),
        ("not python !", "neither JSON nor Python"),
        ("def check(candidate):\n    pass", "no assert"),
        ("def check(candidate):\n    assert candidate(node_tree([1])) == 1", "they use node_tree"),
        ([{"input": "1"}], "test 1 needs input and output"),
        ([{"input": "1", "output": "2"}, 3], "test 2 is no object"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs but 0 outputs"),
        ({"inputs": "12", "outputs": "34"}, "must be lists"),
        ({"weird": 1}, "no known form"),
        ({"kind": "stdin", "cases": [{"input": "1"}]}, "cases"),
        ([{"args": [1], "output": 1}], "fn_name"),
        ([{"input": "1\nx", "output": "2", "testtype": "functional"}], "'x' is no JSON value"),
        (base64.b64encode(b"whatever").decode(), "packed tests cannot be read"),
        (base64.b64encode(zlib.compress(b"x" * 100)[:10]).decode(), "packed tests cannot be read"),
        ({"pytest": "def test_f(): ..."}, "pytest cannot be run one by one"),
        ('{"inputs": [' + "7" * 5000 + '], "outputs": [1]}', "tests cannot be read: Exceeds"),
    ],
)
def test_unusable_tests_are_refused_with_a_reason(value, reason):
    with pytest.raises(ValueError, match=reason):
        parse_suite(value)


def test_examples_in_mixed_notations_are_refused():
    with pytest.raises(ValueError, match="without testtype are ambiguous"):
        parse_suite([{"input": "a = 1", "output": "2"}], fn_name="Solution().f")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "data",
    [pickle.dumps(v) for v in (Evil(), ["a"], ("a", "b"), {"a": 1}, 7, None, b"bytes", os.mkdir)],
)
def test_anything_but_one_text_is_refused_unexecuted(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"only one text is accepted|ends early"):
        pickled_text(data)
    with pytest.raises(ValueError, match="packed tests cannot be read: the pickle"):
        parse_suite(base64.b64encode(zlib.compress(data)).decode())
    assert list(tmp_path.iterdir()) == []


@given(st.text(), st.sampled_from(range(1, pickle.HIGHEST_PROTOCOL + 1)))
def test_the_text_of_every_protocol_is_read(text, protocol):
    assert pickled_text(pickle.dumps(text, protocol)) == text


def test_texts_of_every_length_are_read_and_a_memo_index_claims_no_memory():
    for length in (0, 255, 256, 70_000):
        data = pickle.dumps("é" * length)
        assert pickled_text(data) == pickled_text(pickletools.optimize(data)) == "é" * length
    assert pickled_text(b"\x80\x04X\x01\x00\x00\x00ar\xff\xff\xff\x7f.") == "a"


def test_a_text_that_is_not_base64_is_something_else():
    assert unpack_tests("def check(candidate): ...") is None


def test_the_setup_of_mbpp_stands_before_every_assertion():
    suite = parse_suite(["assert f(root)", "assert not f(0)"], setup="root = 1\r\n")
    codes = [c.model_dump()["code"] for c in suite.cases]
    assert codes == ["root = 1\nassert f(root)", "root = 1\nassert not f(0)"]


def test_only_a_line_break_of_json_separates_the_arguments_of_a_call():
    text = "a\u2028b\x85c"
    case = {"input": f'"{text}"\r\n[2]\n', "output": "3", "testtype": "functional"}
    suite = parse_suite([case], fn_name="f")
    assert suite.cases == (CallCase(args=(text, [2]), output=3),)


def test_the_exchange_of_names_comes_after_the_docstring_of_a_checker():
    """Python counts no U+2028, NEL or form feed as a line; `splitlines` does."""
    suite = parse_suite(AS_LIST)
    docstring = '"""a\u2028b\x85c"""'
    head = ["# \x0c", docstring, "from __future__ import annotations"]
    program = "\r\n".join([*head, "print(1)"])
    (checker, *_) = [c.model_dump()["checker"] for c in with_checker(suite, program).cases]
    *before, exchange, last = checker.split("\n")
    assert (before, last) == (head, "print(1)")
    assert exchange.startswith("import sys")


def test_a_checker_judges_programs_and_nothing_else():
    suite = parse_suite(AS_LIST)
    checked = with_checker(suite, "print(1)")
    assert checked.kind == "checker"
    assert [(c.model_dump()["input"], c.model_dump()["output"]) for c in checked.cases] == [
        (case.input, case.output) for case in STDIN
    ]
    with pytest.raises(ValueError, match="the checker is no Python program"):
        with_checker(suite, "int main() {}")
    with pytest.raises(ValueError, match="a checker cannot judge call tests"):
        with_checker(parse_suite({"fn_name": "f", "inputs": [[1]], "outputs": [2]}), "print(1)")


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
