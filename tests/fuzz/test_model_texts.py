"""Whatever a model writes: an answer or a reason, in linear time, and the thought never counts."""

import pytest
from fuzz.strategies import DRESSES, answers, few, numbers
from hypothesis import given
from hypothesis import strategies as st

from klear.eval.answers import extract_boxed, extract_program, has_closed_think
from klear.eval.families.countdown import verify_countdown
from klear.eval.math_answers.forms import enclosing, equation_sides, form_of
from klear.eval.math_answers.spelling import spell
from klear.eval.math_answers.verify import MAX_CHARACTERS, quick_verdict

LONG = 1_000_000


def verdict_of(gold: str, answer: str) -> str | None:
    found = quick_verdict(gold, answer)
    return found.verdict if found else None


@few
@given(st.text() | answers, st.text() | answers)
def test_the_think_block_changes_no_answer(thought: str, text: str) -> None:
    thought, judged = thought.replace("think>", ""), text.replace("think>", "")
    has_closed_think(text)
    for find in (extract_boxed, extract_program):
        noise = thought + r"\boxed{1} ```python" + "\nprint()\n```\n"
        assert find(f"<think>{noise}</think>{judged}") == find(judged)
        found = find(text)
        assert (found.answer is None) == bool(found.reason)


@few
@given(numbers, st.sampled_from(DRESSES))
def test_typesetting_around_a_number_changes_no_verdict(number: str, dress: str) -> None:
    dressed = dress.format(number) if dress != r"\left{}\right" else number
    assert verdict_of(number, dressed) == "AC"
    assert verdict_of(number, f"{dressed}7") in (None, "WA")


@few
@given(answers, answers, st.lists(st.integers(0, 255), max_size=3))
def test_any_two_math_answers_have_a_verdict(gold: str, answer: str, used: list[int]) -> None:
    verdict = verdict_of(gold, answer)
    assert verdict in (None, "AC", "WA", "IE")
    assert verdict_of(gold, f" {answer} ") == verdict
    if gold.strip():
        assert verdict_of(gold, f"  {gold}\n") == "AC"
    body = spell(answer).body
    form = form_of(body)
    assert form.kind != "scalar" or len(form.pieces) == 1
    equation_sides(body)
    enclosing(body)
    assert verify_countdown(answer, "24", used).verdict in ("AC", "WA")


@pytest.mark.parametrize(
    "unit",
    ["9", "0.", r"\boxed{", r"\frac", "<think>", "</think>", "```python\n", "\u2028", "é", "\\",
     "\ud800", "{}", "a ", "\N{ZERO WIDTH JOINER}", "`", "~~~\n", " ", r"\boxed "],
)  # fmt: skip
def test_a_line_of_a_megabyte_costs_linear_time(unit: str, quickest) -> None:
    """Twice the text takes no more than about twice the time; a bound catches the quadratic."""
    text = "<think>a</think>" + unit * (LONG // len(unit)) + "x"

    def read() -> None:
        has_closed_think(text)
        extract_boxed(text)
        extract_program(text)
        quick_verdict("7", text)

    assert quickest(read, below=5.0) < 5.0


@pytest.mark.parametrize(
    "answer",
    ["0." + "9" * 1990, "9" * 1990, "9" * 900 + "." + "9" * 900 + "x",
     "0." + "98" * 900 + r"7\ldots", "0." + "9" * 1900 + r"8\ldots", "9" * 1900 + "(",
     r"\{" * 900, "1 " * 900, r"\text{" * 300],
)  # fmt: skip
def test_an_answer_of_2000_digits_is_decided_at_once(answer: str, quickest) -> None:
    """Found by fuzzing: a repetition loop inside of the box took half a minute of the judge."""
    assert len(answer) <= MAX_CHARACTERS
    assert quickest(lambda: quick_verdict("7", answer), below=2.0) < 2.0
