"""One raw row becomes one problem: answers, tests, limits and days, wherever they stand."""

import json

import pytest

from configs.settings.sources import Source
from tasks.data.row_to_problem import BadField, to_problem

TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["1\n", "4\n"]}


@pytest.mark.parametrize(
    ("row", "options", "answer"),
    [
        ({"problem": "p", "answer": 3.5}, {}, "3.5"),
        ({"problem": "p", "answer": ["7"]}, {}, "7"),
        ({"problem": "p", "answer": '["\\\\frac{1}{2}"]'}, {}, "\\frac{1}{2}"),
        ({"problem": "p", "answer": "[1]"}, {}, "[1]"),
        (
            {"problem": "p", "solution": "\\boxed{1} so \\boxed{\\frac{1}{2}}"},
            {"answer_field": "solution", "answer_in_box": True},
            "\\frac{1}{2}",
        ),
        ({"problem": "p", "r": {"gt": "5"}}, {"answer_field": "r.gt"}, "5"),
        ({"problem": "p", "r": '{"gt": "5"}'}, {"answer_field": "r.gt"}, "5"),
        ({"problem": "p", "a.b": "6"}, {"answer_field": "a.b"}, "6"),
    ],
)
def test_answers_are_found_where_datasets_put_them(row, options, answer):
    assert to_problem(row, Source(name="s", files=("x",), **options)).answer == answer


def test_code_rows_carry_tests_limits_function_name_and_day():
    source = Source(
        name="s",
        domain="code",
        files=("x",),
        prompt_field="text",
        fn_name_field="metadata.func_name",
        date_field="day",
        time_limit_s=2,
        memory_mb=128,
    )
    calls = json.dumps([{"input": "1\n[2]", "output": "3", "testtype": "functional"}])
    row = {
        "text": "add",
        "tests": calls,
        "metadata": '{"func_name": "add"}',
        "day": "2024-08-11T00:00:00",
    }
    problem = to_problem(row, source)
    assert problem.tests
    assert (problem.tests.kind, problem.tests.fn_name) == ("call", "add")
    assert (problem.tests.time_limit_s, problem.tests.memory_mb) == (2, 128)
    assert problem.date == "2024-08-11"


@pytest.mark.parametrize("domain", ["math", "code"])
def test_a_source_without_answers_or_tests_gives_prompts_that_are_never_judged(domain):
    source = Source(name="s", domain=domain, files=("x",), tests_field="", answer_field="")
    problem = to_problem({"problem": "sort it", "answer": "1", "tests": TESTS}, source)
    assert (problem.judgeable, problem.answer, problem.tests) == (False, None, None)


@pytest.mark.parametrize("row", [{}, {"answer": None}, {"answer": " "}, {"answer": []}])
def test_gold_is_required_unless_the_source_says_otherwise(row):
    row = {"problem": "p", **row}
    with pytest.raises(BadField, match=r"field answer: (missing|empty)"):
        to_problem(row, Source(name="s", files=("x",)))
    assert not to_problem(row, Source(name="s", files=("x",), gold_optional=True)).judgeable


def test_gold_that_is_there_but_cannot_be_used_is_a_reject_all_the_same():
    source = Source(name="s", domain="code", files=("x",), gold_optional=True)
    with pytest.raises(BadField, match="field tests: an object with"):
        to_problem({"problem": "p", "tests": {"weird": 1}}, source)
    assert not to_problem({"problem": "p", "tests": []}, source).judgeable


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2024-08-11T00:00:00", "2024-08-11"),
        ("2024-08-11", "2024-08-11"),
        (1_704_067_200, "2024-01-01"),
        (1_704_067_200_000, "2024-01-01"),
        (None, None),
        ("", None),
    ],
)
def test_days_are_read_in_every_notation_of_the_sources(value, day):
    source = Source(name="s", files=("x",), date_field="day")
    assert to_problem({"problem": "p", "answer": "1", "day": value}, source).date == day


@pytest.mark.parametrize("value", ["yesterday", "2024-8-1", True, 1e300])
def test_what_is_no_day_is_named(value):
    source = Source(name="s", files=("x",), date_field="day")
    with pytest.raises(BadField, match=r"field day: .* is no date"):
        to_problem({"problem": "p", "answer": "1", "day": value}, source)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [(2.5, 2.5), ("2.5 seconds", 2.5), (None, 9), ("", 9), ("soon", 9), (0, 9), (True, 9)],
)
def test_the_rows_own_limit_counts_where_it_has_one(limit, seconds):
    source = Source(name="s", domain="code", files=("x",), time_limit_field="limit", time_limit_s=9)
    tests = to_problem({"problem": "p", "tests": TESTS, "limit": limit}, source).tests
    assert tests
    assert tests.time_limit_s == seconds
