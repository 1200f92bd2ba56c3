"""Each rule of the math judge on its own cases, small changes of value, words of a prompt.

    python -m tests.eval.test_math_rules

writes the rules' cases into the table "What we accept" of docs/judge.md.
"""

import json
import re
from pathlib import Path

import pytest

from klear.eval.answers import extract_boxed
from klear.eval.math_answers import verify
from klear.eval.math_answers.rules import readings, regions, scalars, shapes
from klear.eval.math_answers.rules.rules import Asked, Rule
from klear.eval.math_answers.verify import asked_for, quick_verdict
from klear.eval.math_answers.worker import run

PAGE = Path(__file__).resolve().parents[2] / "docs/judge.md"
BEGIN, END = "<!-- from the rules of math -->\n", "<!-- end of the rules of math -->"
RULES = (
    *readings.READINGS,
    *verify.RULES,
    *scalars.ORDERED_TEXTS,
    *regions.RULES,
    *shapes.RULES,
    *scalars.RULES,
)


def verdict_of(gold: str, answer: str, asked: Asked = "") -> str:
    return (quick_verdict(gold, answer, asked) or run(gold, answer, asked)).verdict


def what_we_accept() -> str:
    """A row for every rule that has cases, in the order in which they are tried."""

    def cell(cases: tuple[tuple[str, str], ...]) -> str:
        pairs = (f"`{gold}` ← `{answer}`" for gold, answer in cases)
        return "<br>".join(pairs).replace("|", r"\|").replace("\n", " ")

    rows = [f"| {r.name} | {cell(r.accepts)} | {cell(r.refuses)} |" for r in RULES]
    head = "| kind | accepted: gold ← answer | refused |\n|---|---|---|\n"
    return head + "".join(f"{row}\n" for row in rows if "`" in row)


def test_the_page_shows_the_cases_of_the_rules() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)] == what_we_accept()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_accepts_and_refuses_its_own_cases(rule: Rule) -> None:
    for verdict, cases in (("AC", rule.accepts), ("WA", rule.refuses)):
        for gold, answer in cases:
            assert verdict_of(gold, answer, rule.asked) == verdict, f"{gold} ? {answer}"


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("Find the next three terms, in order.", "sequence"),
        ("What are the values of a and b, respectively?", "sequence"),
        ("List the roots in increasing order.", "sequence"),
        ("Rank the cities from smallest to largest.", "sequence"),
        (r"Find the ordered pair $(x,y)$.", "tuple"),
        ("求a, b的值, 按从小到大的顺序写出。", "sequence"),
        ("Find all ordered pairs $(x,y)$.", ""),
        ("In order to win, Bob needs 3 points. Find all possible scores.", ""),
        ("D and E lie on AB and AC, respectively. Find all possible areas.", ""),
        ("Find the roots, in any order.", ""),
        ("Find all $x$.", ""),
    ],
)
def test_a_prompt_says_whether_values_have_an_order(prompt: str, asked: str) -> None:
    assert asked_for(prompt) == asked


def test_an_order_that_the_prompt_asks_for_counts_and_no_other() -> None:
    assert verdict_of("1, 3, 2", "1, 2, 3") == "AC"
    assert verdict_of("1, 3, 2", "1, 2, 3", "sequence") == "WA"
    assert verdict_of("B, A, C", "A, B, C", "sequence") == "WA"
    assert verdict_of("1, 3, 2", "(1, 3, 2)", "sequence") == "AC"
    assert verdict_of("(1,2)", "1<x<2", "tuple") == "WA"
    assert verdict_of("(1,2),(3,4)", "(3,4),(1,2)", "sequence") == "AC"


CASES = Path(__file__).with_name("math_cases.jsonl")


def accepted_pairs() -> list[tuple[str, str]]:
    """200 pairs that are accepted by more than their text."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    pairs = [(row["gold"], extract_boxed(row["text"]).answer) for row in rows if row["right"]]
    # A choice is its letter whatever follows it, a rounded gold is near to many fractions, and 0/6
    # is 0/5.
    loose = re.compile(r"0|[A-J]|\d*\.\d+")
    pairs = [
        (g, a) for g, a in pairs if a and g != a and mutated(a) != a and not loose.fullmatch(g)
    ]
    return pairs[:: max(1, len(pairs) // 200)][:200]


def mutated(answer: str) -> str:
    """Another value: the last number is one more; those of ordinals and units stay."""
    numbers = [
        m for m in re.finditer(r"(?<![\d.])\d+(?![\d.]|\s*(?:st|nd|rd|th)\b)", answer)
        if not re.search(r"(?:th|nd|st|rd|text\s*\{[^{}]*\})\s*\^?\{?$", answer[: m.start()])
    ]  # fmt: skip
    if not numbers:
        return answer
    last = numbers[-1]
    return f"{answer[: last.start()]}{int(last[0]) + 1}{answer[last.end() :]}"


@pytest.mark.parametrize("pair", accepted_pairs(), ids=lambda pair: f"{pair[0]} ? {pair[1]}")
def test_a_small_change_of_an_accepted_answer_is_refused(pair: tuple[str, str]) -> None:
    gold, answer = pair
    assert verdict_of(gold, answer) == "AC"
    assert verdict_of(gold, mutated(answer)) == "WA", mutated(answer)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(BEGIN)], page[page.index(END) :]
    PAGE.write_text(before + BEGIN + what_we_accept() + after, encoding="utf-8")
