"""Whatever a model writes: an answer or a reason, in linear time, and the thought never counts."""

import json
from pathlib import Path

import pytest
from fuzz.strategies import DRESSES, THINKING, boxes, few, json_values, numbers, programs, texts
from hypothesis import given
from hypothesis import strategies as st

from eval.answers import extract_boxed, extract_program, has_closed_think
from eval.judge.files import run_stream
from eval.math_answers.verify import MAX_CHARACTERS, quick_verdict
from eval.programs.compare import same_text

LONG = 1_000_000


@few
@given(boxes(), texts, st.sampled_from(THINKING))
def test_what_is_put_in_a_box_comes_out_of_it(content: str, thought: str, form: str) -> None:
    thought = thought.replace("think>", "")
    found = extract_boxed(form.format(t=thought, a=rf"So it is \boxed{{{content}}}."))
    inner = content.rpartition(r"\boxed{")[2] if r"\boxed" in content else content
    assert found.answer is not None
    assert found.answer == content.replace(r"\boxed{", "{").strip() or inner in found.answer


@few
@given(programs, texts, st.sampled_from(THINKING), st.sampled_from(["python", "py", "Python3", ""]))
def test_a_fenced_program_comes_out_as_it_was(program, thought, form, tag) -> None:
    thought = thought.replace("think>", "")
    found = extract_program(form.format(t=thought, a=f"Here:\n```{tag}\n{program}\n```\nDone."))
    assert found.answer is not None
    assert found.answer.rstrip("\n") == program.rstrip("\n")


@few
@given(st.text(), st.text())
def test_the_think_block_changes_no_answer(thought: str, text: str) -> None:
    thought, text = thought.replace("think>", ""), text.replace("think>", "")
    for find in (extract_boxed, extract_program):
        boxed = thought + r"\boxed{1} ```python" + "\nprint()\n```\n"
        assert find(f"<think>{boxed}</think>{text}") == find(text)


@few
@given(numbers, st.sampled_from(DRESSES))
def test_typesetting_around_a_number_changes_no_verdict(number: str, dress: str) -> None:
    dressed = dress.format(number) if dress != r"\left{}\right" else number
    right, wrong = quick_verdict(number, dressed), quick_verdict(number, f"{dressed}7")
    assert right is not None
    assert right.verdict == "AC"
    assert wrong is None or wrong.verdict == "WA"


@few
@given(st.lists(st.text("0123456789. -e", max_size=12), max_size=6))
def test_layout_changes_no_comparison(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert same_text(text, text)
    assert same_text(f"\n{text}  \n\n", text)
    assert same_text("\n".join(f" {line}\t" for line in lines), text)


@pytest.mark.parametrize(
    "unit",
    ["9", "0.", r"\boxed{", r"\frac", "<think>", "</think>", "```python\n", "\u2028", "é", "\\",
     "\ud800", "{}", "a ", "\N{ZERO WIDTH JOINER}"],
)  # fmt: skip
def test_a_line_of_a_megabyte_costs_linear_time(unit: str, quickest) -> None:
    """Twice the text takes no more than about twice the time; a bound catches the quadratic."""
    text = "<think>a</think>" + unit * (LONG // len(unit))

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


def test_a_repeating_decimal_is_still_the_fraction_it_stands_for() -> None:
    for text in (r"0.1666\ldots", r"0.1\overline{6}", "0.1(6)", r"0.16666..."):
        verdict = quick_verdict(r"\frac{1}{6}", text)
        assert verdict is not None, text
        assert verdict.verdict == "AC", text


@few
@given(st.lists(json_values | texts, min_size=1, max_size=5))
def test_every_line_of_a_stream_gets_one_score(tmp_path_factory, values: list) -> None:
    lines = [json.dumps(v) if not isinstance(v, str) else v.replace("\n", " ") for v in values]
    path: Path = tmp_path_factory.mktemp("stream") / "out"
    with path.open("w", encoding="utf-8") as out:
        assert run_stream([line + "\n" for line in lines], out) == 0
    scores = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [s["verdict"] for s in scores] == ["IE"] * sum(bool(line.strip()) for line in lines)
