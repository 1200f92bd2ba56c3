"""The answer is what follows the think block: last box, last Python fence."""

import pytest

from klear.eval.answers import extract_boxed, extract_program, has_closed_think


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>a</think>\boxed{7}", "7"),
        (r"\boxed{3}, no: \boxed{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{7}}", "{7}"),
        (r"a stray { and \boxed{7}", "7"),
        (r"<think>\boxed{1}</think> so \boxed{2}", "2"),
        (r"<think>a</think>\boxed{1}</think>\boxed{2}", "2"),
        (r"\boxed{7}, so \boxed{7}", "7"),
        (r"\boxed{7} \boxed{7}", "7"),
        (r"\boxed{} \boxed{7}", "7"),
        (r"\boxed{1}+\boxed{2}", "2"),
    ],
)
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
    found = extract_boxed(f"${box % 8}{between}{box % 7}$").answer
    assert (found or "").replace("{", "").replace("}", "") == r"8\text and 7"
    assert extract_boxed(f"{box % 8}{between} no, it is {box % 7}").answer in ("7", "{7}")


BOXLESS = [
    ("So 7.", "no boxed answer"),
    (r"\boxed{}. So 7.", "empty"),
    (r"\boxed{ }", "empty"),
    (r"\boxed{7} and then \boxed{8", "not closed"),
    (r"<think>\boxed{7}", "truncated"),
    (r"<think>a</think>\boxed{7}<think>again", "truncated"),
    (r"<think>\boxed{7}</think> I am done.", "no boxed answer"),
]
FENCELESS = [
    ("print(1)", "no fenced program"),
    ("```text\nprint(1)\n```", "no fenced program"),
    ("```python\n\n```", "empty"),
    ("```python\nprint(1)", "not closed"),
    ("<think>```python\nprint(1)\n```", "truncated"),
]


@pytest.mark.parametrize(
    ("extract", "text", "reason"),
    [
        *((extract_boxed, *case) for case in BOXLESS),
        *((extract_program, *case) for case in FENCELESS),
    ],
)
def test_without_a_box_or_a_fence_there_is_no_answer_and_a_reason(extract, text, reason):
    extracted = extract(text)
    assert extracted.answer is None
    assert reason in extracted.reason


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("<think>a</think>b", True),
        (" \n<think>a</think>b", True),
        ("a</think>b", False),
        ("<think>a", False),
        ("b", False),
        ("x<think>a</think>b", False),
        ("<think>a</think><think>b</think>c", False),
        ("<think>a</think></think>c", False),
        ("</think><think>", False),
    ],
)
def test_one_block_at_the_start_is_a_closed_think(text, closed):
    assert has_closed_think(text) is closed


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```py\nprint(1)\n```", "print(1)\n"),
        ("```Python3\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        ("````python\nprint(1)\n````", "print(1)\n"),
        ("```python\nprint(1)```", "print(1)"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)\r\n"),
        ("1. so\n   ```python\n   if 1:\n     print(1)\n   ```", "if 1:\n  print(1)\n"),
        ("```python\nprint(1)\n```\nor\n```python\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\nprints\n```\n1\n```", "print(1)\n"),
        ("```python\nprint(1)\n```\nor\n```\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\n```text\nprint(2)\n```", "print(1)\n"),
        ("<think>```python\nprint(1)\n```</think>\n```python\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n\n```python\nprint(2)\n```", "print(2)\n"),
    ],
)
def test_the_last_python_fence_is_the_program(text, program):
    assert extract_program(text).answer == program
