"""Answers of every kind, each with the verdict that a careful mathematician gives.

The rows of math_cases.jsonl: `text` is what the model wrote, `right` whether it answers `gold`.
"""

import json
from pathlib import Path

import pytest

from eval.answers import extract_boxed
from eval.math_answers.reading import parse
from eval.math_answers.task import run
from eval.math_answers.verify import quick_verdict

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("math_cases.jsonl").read_text().splitlines()
]
REPEATED = (
    r"(10!)!",
    "(" * 500 + "1" + ")" * 500,
    r"\frac{" * 200,
    r"\sqrt{" * 50 + "2" + "}" * 50,
    "x" * 1500,
    "1+" * 700 + "1",
    r"\pm" * 200 + "1",
    "," * 1500,
    "_{" * 300 + "}" * 300,
    r"\begin{pmatrix}" + "1&" * 400 + r"1\end{pmatrix}",
    r"\cup".join(["(0,1)"] * 80),
    "x<" * 200 + "1",
    "2^" * 300 + "2",
    "0." + "9" * 1500,
    "1" + "/1" * 500 + "/2",
    r"\overline{" * 40 + "2" + "}" * 40,
    r"\sin(10^{1000000})",
    "0.(" + "3" * 1900 + ")",
    r"\frac" * 300,
    r"\text{" * 200 + "2",
    "\ud800",
    "\0" * 50 + "2",
)


def verdict_of(gold: str, text: str) -> str:
    """What the judge does, in this process."""
    answer = extract_boxed(text).answer
    return "WA" if answer is None else (quick_verdict(gold, answer) or run(gold, answer)).verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gold']} ? {case['text']}")
def test_an_answer_is_right_when_a_mathematician_says_so(case):
    assert verdict_of(case["gold"], case["text"]) == ("AC" if case["right"] else "WA")


@pytest.mark.parametrize("answer", REPEATED, ids=lambda answer: answer[:20])
def test_hostile_answers_are_wrong_within_a_second(answer, quickest):
    run("1", "2")  # the parser's own start-up

    def judge():
        parse.cache_clear()
        assert verdict_of("1", rf"\boxed{{{answer}}}") == "WA"

    assert quickest(judge, below=1.0) < 1.0
