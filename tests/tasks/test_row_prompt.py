"""The prompt of a row, wherever its dataset keeps it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.sources import PromptPart, Source
from tasks.data import row_to_problem as row_prompt
from tasks.data.row_to_problem import MISSING, BadField, field_of, prompt_of


def source(**fields) -> Source:
    return Source.model_validate({"name": "s", "files": ["x"], "prompt_field": "p", **fields})


@pytest.mark.parametrize(
    "chat",
    [
        [{"role": "system", "content": "be nice"}, {"role": "user", "content": " q "}],
        [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
        [{"from": "system", "value": "s"}, {"from": "user", "value": "q"}, {"from": "user"}],
        [{"role": "user", "content": [{"type": "text", "text": "q"}]}],
        {"role": ["system", "user"], "content": ["be nice", "q"]},
        {"from": ["human", "gpt"], "value": ["q", "a"]},
    ],
)
def test_the_users_first_turn_of_a_chat_is_the_prompt(chat):
    assert prompt_of({"p": chat}, source()) == "q"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing"),
        ("", "empty"),
        (" \n", "empty"),
        (7, "must be text, this is a int"),
        (float("nan"), "must be text, this is a float"),
        ({"a": 1}, "must be text, this is a dict"),
        ([], "missing"),
        ([{"role": "assistant", "content": "a"}], "missing"),
        ([{"role": "user", "content": None}], "missing"),
        ([{"role": "user", "content": [{"type": "image"}]}], "must be text, this is a list"),
    ],
)
def test_what_is_no_prompt_is_named(value, reason):
    with pytest.raises(BadField, match=f"^field p: {reason}$"):
        prompt_of({"p": value}, source())


def test_a_prompt_that_no_model_could_read_is_refused(monkeypatch):
    monkeypatch.setattr(row_prompt, "LONGEST_PROMPT", 10)
    assert prompt_of({"p": " 0123456789 "}, source()) == "0123456789"
    with pytest.raises(BadField, match="11 characters; a prompt has 10 at most"):
        prompt_of({"p": "01234567890"}, source())


@pytest.mark.parametrize(
    "text",
    ["q", " q ", "Solve this: q", "q\nIn a box.", "Solve this:\n\nq\n\nIn a box.\n", "q In a box."],
)
def test_boilerplate_around_the_problem_is_removed(text):
    stripped = source(strip_prefixes=["Solve this: "], strip_suffixes=["In a box."])
    assert prompt_of({"p": text}, stripped) == "q"


def test_boilerplate_inside_the_problem_stays_and_alone_it_is_no_problem():
    stripped = source(strip_suffixes=["In a box."])
    assert prompt_of({"p": "In a box. q"}, stripped) == "In a box. q"
    with pytest.raises(BadField, match="empty"):
        prompt_of({"p": "In a box."}, stripped)


PARTS = [PromptPart(field="p"), PromptPart(field="n", heading="Note"), PromptPart(field="e")]


def test_parts_stand_under_their_headings_and_missing_ones_are_left_out():
    parts = source(prompt_parts=PARTS)
    assert prompt_of({"p": "q", "n": "odd"}, parts) == "q\n\nNote\n\nodd"
    assert prompt_of({"p": "q", "n": "", "e": None}, parts) == "q"
    examples = [{"input": "1", "output": "2"}, {"input": "3", "output": "4"}]
    assert prompt_of({"p": "q", "e": examples}, parts).endswith(
        "Input:\n1\nOutput:\n2\n\nInput:\n3\nOutput:\n4"
    )


@pytest.mark.parametrize("row", [{"n": "odd"}, {"p": "", "n": "odd"}, {"p": None, "n": "odd"}])
def test_the_first_part_must_be_there(row):
    with pytest.raises(BadField, match=r"field p: (missing|empty)"):
        prompt_of(row, source(prompt_parts=PARTS))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "from", "content", "value", "x"]), inner)
        ),
        max_leaves=8,
    )
)
def test_no_value_whatsoever_raises_anything_but_bad_field(value):
    for chosen in (source(), source(prompt_parts=[*PARTS, PromptPart(field="p")])):
        with contextlib.suppress(BadField):
            assert prompt_of({"p": value, "e": value}, chosen)


def test_a_dot_reaches_into_objects_lists_and_json_texts():
    row = {"a": {"b": [{"c": 1}]}, "t": '{"b": {"c": 2}}', "x.y": 3, "n": None}
    assert field_of(row, "a.b.0.c") == 1
    assert field_of(row, "t.b.c") == 2
    assert field_of(row, "x.y") == 3
    for name in ("n", "n.a", "a.b.1", "a.b.c", "t.b.d", "z"):
        assert field_of(row, name) is MISSING
