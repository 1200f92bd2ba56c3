"""Each rule of the math judge on its own cases, small changes of value, words of a prompt."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.hooks import MATH_RULES
from klear.eval.answers import extract_boxed
from klear.eval.math_answers.notation.words import TEXT
from klear.eval.math_answers.rules import Ordering, Rule, _cases
from klear.eval.math_answers.verify import ordering_of, quick_verdict
from klear.eval.math_answers.worker import run


def verdict_of(gold: str, answer: str, ordering: Ordering = "") -> str:
    return (quick_verdict(gold, answer, ordering) or run(gold, answer, ordering)).verdict


@pytest.mark.parametrize("rule", MATH_RULES, ids=lambda rule: rule.name)
def test_a_rule_accepts_and_refuses_its_own_cases(rule: Rule) -> None:
    for verdict, kind in (("AC", "accepts"), ("WA", "refuses")):
        for gold, answer in rule.cases[kind]:
            ordering = rule.cases["ordering"]
            assert verdict_of(gold, answer, ordering) == verdict, f"{gold} ? {answer}"


def test_every_case_is_of_a_rule() -> None:
    assert _cases().keys() <= {rule.name for rule in MATH_RULES}


@pytest.mark.parametrize(
    ("prompt", "ordering"),
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
def test_a_prompt_says_whether_values_have_an_order(prompt: str, ordering: str) -> None:
    assert ordering_of(prompt) == ordering


def test_an_order_that_the_prompt_asks_for_counts_and_no_other() -> None:
    assert verdict_of("1, 3, 2", "1, 2, 3") == "AC"
    assert verdict_of("1, 3, 2", "1, 2, 3", "sequence") == "WA"
    assert verdict_of("B, A, C", "A, B, C", "sequence") == "WA"
    assert verdict_of("1, 3, 2", "(1, 3, 2)", "sequence") == "AC"
    assert verdict_of("(1,2)", "1<x<2", "tuple") == "WA"
    assert verdict_of("(1,2),(3,4)", "(3,4),(1,2)", "sequence") == "AC"


CASES = Path(__file__).with_name("math_cases.jsonl")
Change = Callable[[str], str]


def accepted_pairs(change: Change) -> list[tuple[str, str, str]]:
    """Up to 200 pairs that are accepted by more than their text, with the answer changed."""
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    pairs = [(row["gold"], extract_boxed(row["text"]).answer) for row in rows if row["right"]]
    # A choice is its letter whatever follows it, a rounded gold is near to many fractions, and 0/6
    # is 0/5.
    loose = re.compile(r"0|[A-J]|\d*\.\d+")
    changed = [
        (g, a, change(a)) for g, a in pairs if a and g != a and not loose.fullmatch(g)
    ]  # fmt: skip
    changed = [(g, a, other) for g, a, other in changed if other != a]
    return changed[:: max(1, len(changed) // 200)][:200]


def another_digit(answer: str) -> str:
    """The last number is one more; those of ordinals and units stay."""
    numbers = [
        m for m in re.finditer(r"(?<![\d.])\d+(?![\d.]|\s*(?:st|nd|rd|th)\b)", answer)
        if not re.search(r"(?:th|nd|st|rd|text\s*\{[^{}]*\})\s*\^?\{?$", answer[: m.start()])
    ]  # fmt: skip
    if not numbers:
        return answer
    last = numbers[-1]
    return f"{answer[: last.start()]}{int(last[0]) + 1}{answer[last.end() :]}"


def another_sign(answer: str) -> str:
    """The last + is - and the other way round; a lone number is its negative."""
    name, equals, value = answer.rpartition("=")
    if re.fullmatch(r"\s*(?:[1-9]\d*|\\d?frac\{\d+\}\{\d+\}|\d+/\d+|\\sqrt\{\d+\})", value):
        return f"{name}{equals}-{value}"
    if r"\sin\pi" in answer:  # is zero
        return answer
    signs = [*re.finditer(r"(?<=[\w})\]])\s*([-+])\s*(?=[\w\\({])", re.sub(TEXT, _blank, answer))]
    if not signs:
        return answer
    at = signs[-1].start(1)
    return f"{answer[:at]}{'+' if answer[at] == '-' else '-'}{answer[at + 1 :]}"


def another_bound(answer: str) -> str:
    """The first end of an interval or inequality that is in is out, and the other way round."""
    match = re.search(r"<|>|\\(?:leq?|geq?)(?:slant)?(?![a-zA-Z])|[≤≥⩽⩾]", answer)
    if match:
        strict = {"<": r"\le ", ">": r"\ge "}.get(match[0])
        greater = "g" in match[0] or match[0] in "≥⩾"
        return answer[: match.start()] + (strict or "<>"[greater]) + answer[match.end() :]
    match = re.match(r"(\\left)?([(\[])(.*?(?:\\cup|\\infty|\\in).*)$", answer)
    if match and "infty" not in match[3].partition(",")[0]:
        return f"{match[1] or ''}{'[('[match[2] == '[']}{match[3]}"
    return answer


def another_letter(answer: str) -> str:
    """The last variable is another letter, where it is no name in front of an equals sign."""
    name, equals, value = answer.rpartition("=")
    letters = re.finditer(r"(?<![A-Za-z\\_{])[a-zA-Z](?![A-Za-z'(])", re.sub(TEXT, _blank, value))
    last = [m for m in letters if m[0] not in "eicCdkn"]
    if (
        not last
        or re.fullmatch(r"\w\(\w\)", value)
        or re.search(r"\\in(?![a-z])|[<>]|\\[lg]e|\\mathbb|\\not", answer)
    ):
        return answer
    return f"{name}{equals}{value[: last[-1].start()]}q{value[last[-1].end() :]}"


def _blank(match: re.Match[str]) -> str:
    return "." * len(match[0])


CHANGES = (another_digit, another_sign, another_bound, another_letter)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_small_change_of_an_accepted_answer_is_refused(change: Change) -> None:
    failing = [
        (gold, answer, changed)
        for gold, answer, changed in accepted_pairs(change)
        if verdict_of(gold, answer) != "AC" or verdict_of(gold, changed) != "WA"
    ]
    assert not failing
