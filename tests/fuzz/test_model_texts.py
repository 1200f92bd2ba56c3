"""Whatever a model writes: an answer or a reason, in linear time, and the thought never counts."""

from pathlib import Path

import pytest
import yaml
from fuzz.strategies import DRESSES, SCRATCH, answers, few, numbers, overrides, texts
from hypothesis import given
from hypothesis import strategies as st

from klear.configs.loading import load_profile, profiles
from klear.configs.settings.explain import ConfigError
from klear.configs.settings.pipeline import Pipeline
from klear.eval.answers import extract_boxed, extract_program, has_closed_think
from klear.eval.families.countdown import verify_countdown
from klear.eval.math_answers.notation.forms import enclosing, equation_sides, form_of
from klear.eval.math_answers.notation.spelling import spell
from klear.eval.math_answers.verify import MAX_CHARACTERS, quick_verdict

LONG = 1_000_000


def verdict_of(gold: str, answer: str) -> str | None:
    score = quick_verdict(gold, answer)
    return score.verdict if score else None


@few
@given(st.text() | answers, st.text() | answers)
def test_the_think_block_changes_no_answer(thought: str, text: str) -> None:
    thought, judged = thought.replace("think>", ""), text.replace("think>", "")
    has_closed_think(text)
    for find in (extract_boxed, extract_program):
        noise = thought + r"\boxed{1} ```python" + "\nprint()\n```\n"
        assert find(f"<think>{noise}</think>{judged}") == find(judged)
        answer = find(text)
        assert (answer.answer is None) == bool(answer.reason)


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
     "\ud800", "{}", "a ", "\N{ZERO WIDTH JOINER}", "`", "~~~\n", " ", r"\boxed ", "a ```python ",
     "a ```python\n", "```</a>\n", "x```<|a|> ", "x``` . "],
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


ODD = (
    "seed=2024-99-99", "seed=!!int x", "seed=!!timestamp a", "seed=!!set x", "seed=!!float x",
    f"seed={'9' * 5000}", f"seed={'[' * 3000}", "seed=&a [*a]", "sft=&a {x: *a}",
    "collect.sources.²=1", "seed=!!python/object/apply:os.system [x]", "data.root=[]",
)  # fmt: skip
"""What PyYAML raised ValueError, AttributeError and RecursionError on."""


@few
@given(st.lists(overrides, min_size=1, max_size=3))
def test_an_override_is_taken_or_explained(chosen: list[str]) -> None:
    problems = ["taken"]
    try:
        assert isinstance(load_profile("tiny", chosen), Pipeline)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.strip() for problem in problems)


def test_odd_values_that_once_were_tracebacks_are_explained() -> None:
    for override in ODD:
        with pytest.raises(ConfigError) as refused:
            load_profile("tiny", [override])
        assert 0 < len(str(refused.value)) < 6_000


@few
@given(texts)
def test_a_profile_of_any_text_is_explained(text: str) -> None:
    path = SCRATCH / "profile.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ConfigError):
        load_profile(str(path))


@pytest.mark.parametrize("name", profiles())
def test_a_profile_written_out_whole_is_the_same_profile(tmp_path: Path, name: str) -> None:
    loaded = load_profile(name)
    path = tmp_path / f"{loaded.profile}.yaml"
    path.write_text(yaml.safe_dump(loaded.model_dump(mode="json", exclude_unset=True)))
    assert load_profile(str(path)) == loaded
