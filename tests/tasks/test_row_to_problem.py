"""One raw row becomes one problem: prompt, answers, tests, limits and days, wherever they stand."""

import pytest

from configs.settings.sources import PromptPart, Source
from tasks.data.row_to_problem import BadField, field_of, prompt_of, to_problem

TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["1\n", "4\n"]}


def source(**fields) -> Source:
    return Source.model_validate({"name": "s", "files": ["x"], "prompt_field": "p", **fields})


@pytest.mark.parametrize(
    "chat",
    [
        [{"role": "system", "content": "be nice"}, {"role": "user", "content": " q "}],
        [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        [{"from": "system", "value": "s"}, {"from": "user", "value": "q"}, {"from": "user"}],
    ],
)
def test_the_users_first_turn_of_a_chat_is_the_prompt(chat):
    assert prompt_of({"p": chat}, source()) == "q"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        (" \n", "empty"),
        (7, "must be text, this is a int"),
        ([], "missing"),
        ([{"role": "assistant", "content": "a"}], "missing"),
        ([{"role": "user", "content": [{"type": "image"}]}], "must be text, this is a list"),
    ],
)
def test_what_is_no_prompt_is_named(value, reason):
    with pytest.raises(BadField, match=f"^field p: {reason}$"):
        prompt_of({"p": value}, source())


@pytest.mark.parametrize(
    "text",
    ["q", "q\nIn a box.", "Solve this:\n\nq\n\nIn a box.\n"],
)
def test_boilerplate_around_the_problem_is_removed(text):
    stripped = source(strip_prefixes=["Solve this: "], strip_suffixes=["In a box."])
    assert prompt_of({"p": text}, stripped) == "q"


PARTS = [PromptPart(field="p"), PromptPart(field="n", heading="Note"), PromptPart(field="e")]


def test_parts_stand_under_their_headings_and_missing_ones_are_left_out():
    parts = source(prompt_parts=PARTS)
    assert prompt_of({"p": "q", "n": "odd"}, parts) == "q\n\nNote\n\nodd"
    assert prompt_of({"p": "q", "n": "", "e": None}, parts) == "q"
    examples = [{"input": "1", "output": "2"}, {"input": "3", "output": "4"}]
    assert prompt_of({"p": "q", "e": examples}, parts).endswith(
        "Input:\n1\nOutput:\n2\n\nInput:\n3\nOutput:\n4"
    )


def test_a_dot_reaches_into_objects_lists_and_json_texts():
    row = {"a": {"b": [{"c": 1}]}, "t": '{"b": {"c": 2}}', "x.y": 3, "n": None}
    assert field_of(row, "a.b.0.c") == 1
    assert field_of(row, "t.b.c") == 2
    assert field_of(row, "x.y") == 3
    for name in ("n", "n.a", "a.b.1", "a.b.c", "t.b.d", "z"):
        assert field_of(row, name) is None


@pytest.mark.parametrize(
    ("row", "options", "answer"),
    [
        ({"problem": "p", "answer": 3.5}, {}, "3.5"),
        ({"problem": "p", "answer": '["\\\\frac{1}{2}"]'}, {}, "\\frac{1}{2}"),
        (
            {"problem": "p", "solution": "\\boxed{1} so \\boxed{\\frac{1}{2}}"},
            {"answer_field": "solution", "answer_in_box": True},
            "\\frac{1}{2}",
        ),
        ({"problem": "p", "r": '{"gt": "5"}'}, {"answer_field": "r.gt"}, "5"),
    ],
)
def test_answers_are_found_where_datasets_put_them(row, options, answer):
    assert to_problem(row, Source(name="s", files=("x",), **options)).answer == answer


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
        (1_704_067_200, "2024-01-01"),
        (None, None),
    ],
)
def test_days_are_read_in_every_notation_of_the_sources(value, day):
    source = Source(name="s", files=("x",), date_field="day")
    assert to_problem({"problem": "p", "answer": "1", "day": value}, source).date == day


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [(2.5, 2.5), (None, 6), ("soon", 6), (0, 6)],
)
def test_the_rows_own_limit_counts_where_it_has_one(limit, seconds):
    source = Source(name="s", domain="code", files=("x",), time_limit_field="limit")
    tests = to_problem({"problem": "p", "tests": TESTS, "limit": limit}, source).tests
    assert tests
    assert tests.time_limit_s == seconds
