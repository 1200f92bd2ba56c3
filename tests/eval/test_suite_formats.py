"""Public test formats become the one TestSuite; what cannot is refused with a reason."""

import base64
import itertools
import json
import os
import pickle
import pickletools
import zlib

import pytest
from shared_data import shared_rows

from klear.eval.programs.formats import joined, parse_suite, pickled_text, with_checker
from klear.eval.records import AssertCase, CallCase, StdinCase, TestSuite
from tests.eval.evaluations_by_hand import packed

STDIN = (StdinCase(input="1\n", output="2\n"), StdinCase(input="3\n", output="4\n"))
META = {"func_name": "f"}
CALLS = (CallCase(args=(1, [2]), output=3), CallCase(args=(4, [5]), output=[6, 7]))
FUNCTION_CALLS = [
    {"type": "function_call", "fn_name": "f", "input": [1, [2]], "output": [3]},
    {"type": "function_call", "fn_name": "f", "input": [4, [5]], "output": [[6, 7]]},
]
AS_LIST = [{"input": "1\n", "output": "2\n"}, {"input": "3\n", "output": "4\n"}]
AS_PAIRS = {"inputs": ["1\n", "3\n"], "outputs": ["2\n", "4\n"]}


STDIN_FORMS = [
    AS_LIST,
    AS_PAIRS,
    {"input": ["1\n", "3\n"], "output": ["2\n", "4\n"]},
    json.dumps(AS_LIST),
    json.dumps(AS_PAIRS),
    [{**case, "testtype": "stdin"} for case in AS_LIST],
    [{**case, "type": "stdin_stdout", "fn_name": None} for case in AS_LIST],
    packed([{**case, "testtype": "stdin"} for case in AS_LIST]),
    TestSuite(kind="stdin", cases=STDIN).model_dump(),
    [{"stdin": "1\n", "expected_output": "2\n"}, {"stdin": "3\n", "expected_output": "4\n"}],
    [{"in": "1\n", "out": "2\n"}, {"in": "3\n", "out": "4\n"}],
    [["1\n", "2\n"], ["3\n", "4\n"]],
    {"public_tests": {"input": ["1\n"], "output": ["2\n"]},
     "private_tests": {"input": ["3\n"], "output": ["4\n"]},
     "generated_tests": {"input": [], "output": []}},
]  # fmt: skip
CALL_FORMS = [
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
]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((form, ("stdin", None, STDIN)) for form in STDIN_FORMS),
        *((form, ("call", "f", CALLS)) for form in CALL_FORMS),
        (AS_LIST[0], ("stdin", None, STDIN[:1])),
        ({"inputs": [3, [4, 5]], "outputs": ["7", "8"]},
         ("stdin", None, (StdinCase(input="3", output="7"), StdinCase(input="4\n5", output="8")))),
        ([{"input": "n = 5", "output": "6"}, {"input": "6", "output": "7"}],
         ("stdin", None, (StdinCase(input="n = 5", output="6"), StdinCase(input="6", output="7")))),
        ({"inputs": [["1", "2"]], "outputs": [["3", "4"]]},
         ("stdin", None, (StdinCase(input="1\n2", output="3\n4"),))),
        ([("1 2", "3")], ("stdin", None, (StdinCase(input="1 2", output="3"),))),
        ("[(('1', '2'), '3')]", ("stdin", None, (StdinCase(input="1\n2", output="3"),))),
    ],
)  # fmt: skip
def test_tests_in_every_form_are_the_same_suite(value, expected):
    suite = parse_suite(value)
    assert (suite.kind, suite.fn_name, suite.cases) == expected


def test_the_source_names_the_function_and_the_limits_where_its_tests_do_not():
    suite = parse_suite([{"args": [1, [2]], "output": 3}], fn_name="f")
    assert (suite.fn_name, suite.cases) == ("f", CALLS[:1])
    assert parse_suite([((1, [2]), 3)], fn_name="f").cases == CALLS[:1]
    own = {"kind": "stdin", "cases": AS_LIST, "time_limit_s": 1.5}
    suite = parse_suite(own, time_limit_s=9, memory_mb=64)
    assert (suite.time_limit_s, suite.memory_mb) == (1.5, 64)
    with pytest.raises(ValueError, match="without testtype are ambiguous"):
        parse_suite([{"input": "a = 1", "output": "2"}], fn_name="Solution().f")


def test_each_assert_of_a_check_function_is_one_case_and_all_are_one_beside_other_code():
    asserts = (
        "    assert candidate(n = 1) == 2\n    assert candidate(\n        n = 2) == 3, 'two'\n"
    )
    suite = parse_suite(f"import math\n\ndef check(candidate):\n{asserts}", fn_name="Solution().f")
    assert (suite.kind, suite.fn_name) == ("assert", "Solution().f")
    assert suite.cases == (
        AssertCase(code="assert candidate(n = 1) == 2"),
        AssertCase(code="assert candidate(\n    n = 2) == 3, 'two'"),
    )
    loop = "for i in range(3):\n    assert candidate(i) == i"
    indented = loop.replace("\n", "\n    ")
    assert parse_suite(f"def check(candidate):\n    {indented}\n").cases == (AssertCase(code=loop),)


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


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "there are no tests"),
        ("", "there are no tests"),
        (None, "cannot be a NoneType"),
        ('"text"', "JSON text"),
        ("not python !", "neither JSON nor Python"),
        ("def check(candidate):\n    pass", "no assert"),
        ("def check(candidate):\n    assert candidate(node_tree([1])) == 1", "they use node_tree"),
        ([{"input": "1"}], "every test needs input and output"),
        ([{"input": "1", "output": "2"}, 3], "every test needs input and output"),
        ("def check(f):\n    nonlocal x\n    assert f(x) == 1", "neither JSON nor Python"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs but 0 outputs"),
        ({"inputs": "12", "outputs": "34"}, "must be lists"),
        ({"weird": 1}, "no known form"),
        ([("1", "2", "3")], "cannot be a list"),
        ([{"input": "1", "output": "2", "type": kind} for kind in ("stdin", "functional")],
         "some tests call a function and some do not"),
        ({"kind": "stdin", "cases": [{"input": "1"}]}, "cases"),
        ([{"args": [1], "output": 1}], "fn_name"),
        ([{"input": [1, 2], "output": 3}], "arguments of a function that nothing names"),
        ({"inputs": [[1, 2]], "outputs": [[3]]}, "arguments of a function that nothing names"),
        ([{"input": {"a": 1}, "output": "3"}], "arguments of a function that nothing names"),
        ([{"input": "nums = [2, 7], k = 9", "output": "[0, 1]"}], "are arguments of a function"),
        ([{"input": "1\nx", "output": "2", "testtype": "functional"}], "'x' is no JSON value"),
        (base64.b64encode(b"whatever").decode(), "packed tests cannot be read"),
        (base64.b64encode(zlib.compress(b"x" * 100)[:10]).decode(), "packed tests cannot be read"),
        ('{"inputs": [' + "7" * 5000 + '], "outputs": [1]}', "tests cannot be read: Exceeds"),
    ],
)  # fmt: skip
def test_unusable_tests_are_refused_with_a_reason(value, reason):
    with pytest.raises(ValueError, match=reason):
        parse_suite(value)


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


def test_texts_of_every_length_and_protocol_are_read_and_a_memo_index_claims_no_memory():
    protocols = range(1, pickle.HIGHEST_PROTOCOL + 1)
    for length, protocol in itertools.product((0, 1, 255, 256, 70_000), protocols):
        data = pickle.dumps("é" * length, protocol)
        assert pickled_text(data) == pickled_text(pickletools.optimize(data)) == "é" * length
    assert pickled_text(b"\x80\x04X\x01\x00\x00\x00ar\xff\xff\xff\x7f.") == "a"


def test_only_a_line_break_of_json_separates_the_arguments_of_a_call():
    text = "a\u2028b\x85c"
    case = {"input": f'"{text}"\r\n[2]\n', "output": "3", "testtype": "functional"}
    suite = parse_suite([case], fn_name="f")
    assert suite.cases == (CallCase(args=(text, [2]), output=3),)


def test_a_checker_judges_programs_and_nothing_else():
    checked = with_checker(parse_suite(AS_LIST), "print(1)")
    assert checked.kind == "checker"
    kept = [StdinCase(**c.model_dump(exclude={"checker"})) for c in checked.cases]
    assert kept == list(STDIN)
    with pytest.raises(ValueError, match="the checker is no Python program"):
        with_checker(parse_suite(AS_LIST), "int main() {}")
    with pytest.raises(ValueError, match="a checker cannot judge call tests"):
        with_checker(parse_suite(FUNCTION_CALLS), "print(1)")


@pytest.mark.parametrize(
    ("name", "field", "fn_field", "kind", "step", "count"),
    [
        ("leetcode/v0.2.0_train", "test", "entry_point", "assert", 10, None),
        ("leetcode/v0.3.1_test", "test", "entry_point", "assert", 10,
         lambda tests: tests.count("assert candidate(")),
        ("mbpp/mbpp", "test_list", "", "assert", 1, len),
        ("rllm_code/codeforces_test", "tests", "", "stdin", 1, len),
        ("kodsport/problems", "tests", "", "stdin", 1, len),
    ],
)  # fmt: skip
def test_every_row_of_a_published_dataset_is_a_suite(name, field, fn_field, kind, step, count):
    for row in shared_rows(name)[::step]:
        suite = parse_suite(row[field], fn_name=row.get(fn_field, ""))
        assert (suite.kind, suite.fn_name or "") == (kind, row.get(fn_field, ""))
        assert len(suite.cases) == count(row[field]) if count else suite.cases


def test_tests_that_need_functions_of_their_prompt_are_refused_and_more_tests_join():
    refused: dict[str, str] = {}
    for row in shared_rows("humaneval/test"):
        try:
            assert parse_suite(row["test"], fn_name=row["entry_point"]).cases
        except ValueError as error:
            refused[row["task_id"]] = str(error).split()[2]
    names = {"32": "poly,", "38": "encode_cyclic,", "50": "encode_shift,"}
    assert refused == {f"HumanEval/{number}": name for number, name in names.items()}
    more = next(r for r in shared_rows("mbpp/mbpp") if r["challenge_test_list"])
    suites = [parse_suite(more[name]) for name in ("test_list", "challenge_test_list")]
    assert len(joined(suites).cases) == len(more["test_list"]) + len(more["challenge_test_list"])


@pytest.mark.parametrize(
    ("output", "printed"),
    [(True, "True"), (1.5, "1.5"), ([1, "a", False], "1\na\nFalse"), ("null", "null"),
     (None, ""), ({"a": 1}, ""), ([[1, 2]], ""), ([None], "")],
)  # fmt: skip
def test_an_expected_output_that_is_no_text_is_what_python_prints_or_refused(output, printed):
    value = {"inputs": ["1"], "outputs": [output]}
    if printed:
        assert parse_suite(value).cases[0].output == printed
    else:
        with pytest.raises(ValueError, match="must be text, numbers or lines"):
            parse_suite(value)


def test_results_in_lists_of_one_are_unwrapped_unless_the_statement_returns_lists():
    value = {"fn_name": "f", "inputs": [[3], [4]], "outputs": [[9], [16]]}
    suite = parse_suite(value)
    assert suite.wrapped
    assert [c.output for c in suite.cases] == [9, 16]
    assert TestSuite.model_validate(suite.model_dump()) == suite
    assert parse_suite(value, helpers="def f(x: int) -> int: return a list").wrapped
    for statement in ("class Solution:\n  def f(self, x) -> List[int]:", "Return a list of sums."):
        plain = parse_suite(value, helpers=statement)
        assert ([c.output for c in plain.cases], plain.wrapped) == ([[9], [16]], False)
    assert "wrapped" not in plain.model_dump()
    assert not parse_suite({**value, "outputs": [[9], [16, 25]]}).wrapped
