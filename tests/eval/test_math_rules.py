"""Each rule of the math judge on its own cases, small changes of value, words of a prompt."""

import pytest

from klear.eval.math_answers.rules import regions, scalars, shapes
from klear.eval.math_answers.rules.rules import Rule
from klear.eval.math_answers.verify import asked_for, quick_verdict
from klear.eval.math_answers.worker import run

RULES = (*scalars.ORDERED_TEXTS, *regions.RULES, *shapes.RULES, *scalars.RULES)


def verdict_of(gold: str, answer: str, asked="") -> str:
    return (quick_verdict(gold, answer, asked) or run(gold, answer, asked)).verdict


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
