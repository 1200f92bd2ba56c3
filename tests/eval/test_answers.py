"""The answer is what follows the think block: last box, last Python fence."""

from pathlib import Path

import pytest
import yaml

from klear.eval.answers import extract_boxed, extract_program, has_closed_think

FOUND = yaml.safe_load(Path(__file__).with_name("answers.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("text", "answer"), FOUND["boxed"])
def test_the_last_box_is_the_answer(text, answer):
    assert extract_boxed(text).answer == answer


@pytest.mark.parametrize(
    "between",
    [
        *("", " ", "\n\n", ", ", ";", " or ", " and ", "$ or $", r"\text{ or }", r"\quad", "{}{}"),
        *("/", " (or ", "$ and $x = ", "$$\n$$", "或", " maybe ", " or perhaps ", r"\\", r"\]\["),
        " = ",
    ],
)
@pytest.mark.parametrize("box", [r"\boxed{%s}", r"\fbox{%s}", r"\boxed{{%s}}", r"\boxed %s "])
def test_boxes_between_which_nothing_is_said_are_one_answer(box, between):
    """So that hedging never pays: of two boxes beside each other, neither is the answer."""
    answer = extract_boxed(f"${box % 8}{between}{box % 7}$").answer
    assert (answer or "").replace("{", "").replace("}", "") == r"8\text and 7"
    assert extract_boxed(f"{box % 8}{between} no, it is {box % 7}").answer in ("7", "{7}")


@pytest.mark.parametrize(
    ("extract", "text", "reason"),
    [
        *((extract_boxed, *case) for case in FOUND["boxless"]),
        *((extract_program, *case) for case in FOUND["fenceless"]),
    ],
)
def test_without_a_box_or_a_fence_there_is_no_answer_and_a_reason(extract, text, reason):
    extracted = extract(text)
    assert extracted.answer is None
    assert reason in extracted.reason


@pytest.mark.parametrize(("text", "closed"), FOUND["think"])
def test_one_block_at_the_start_is_a_closed_think(text, closed):
    assert has_closed_think(text) is closed


@pytest.mark.parametrize(("text", "program"), FOUND["programs"])
def test_the_last_python_fence_is_the_program(text, program):
    assert extract_program(text).answer == program
