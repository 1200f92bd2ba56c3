r"""Math verdicts: equal values in any spelling are right, all else is wrong, nothing is slow.

The rows of math_cases.jsonl are answers of every kind, each with the verdict that a careful
mathematician gives: `text` is what the model wrote, `right` whether it answers `gold`. Each rule of
the judge has cases of its own, and small changes of a value make another one.
"""

import gc
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from docs.hooks import MATH_RULES
from klear.eval.answers import extract_boxed
from klear.eval.math_answers import worker
from klear.eval.math_answers.notation.formulas import parse
from klear.eval.math_answers.notation.words import TEXT
from klear.eval.math_answers.rules import Rule, _cases
from klear.eval.math_answers.verify import ordering_of
from klear.eval.math_answers.worker import OutOfTime, cpu_seconds, run
from tests.eval.conftest import verdict_of

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("math_cases.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("first", range(0, len(CASES), 40))
def test_an_answer_is_right_when_a_mathematician_says_so(first):
    wrong = []
    for case in CASES[first : first + 40]:
        answer = extract_boxed(case["text"]).answer
        verdict = "WA" if answer is None else verdict_of(case["gold"], answer)
        wrong += [(case, verdict)] if verdict != ("AC" if case["right"] else "WA") else []
    assert not wrong


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


Change = Callable[[str], str]


def changed_pairs(change: Change) -> list[tuple[str, str]]:
    """Up to 200 pairs that are accepted by more than their text, with the answer changed."""
    pairs = [(case["gold"], extract_boxed(case["text"]).answer) for case in CASES if case["right"]]
    # A choice is its letter whatever follows it, a rounded gold is near to many fractions, and 0/6
    # is 0/5.
    loose = re.compile(r"0|[A-J]|\d*\.\d+")
    alike = [(g, a) for g, a in pairs if a and g != a and not loose.fullmatch(g)]
    changed = [(g, other) for g, a in alike if (other := change(a)) != a]
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
    assert not [pair for pair in changed_pairs(change) if verdict_of(*pair) != "WA"]


CASES_OF = r"\begin{cases} 1 & %sx > 0 \\ 0 & %sx \le 0\end{cases}"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *((gold, "7") for gold in ("", r"\frac{", r"\sqrt{2", r"\int_0^1 x^x dx", "((10!)!)!")),
        (CASES_OF % ("", ""), CASES_OF % (r"\text{if }", r"\text{if }")),  # whatever its words
        ("e^{100000}", r"e^{100000}+\pi"),  # too many digits to tell a near answer from it
    ],
)
def test_a_gold_that_cannot_be_read_is_unscored(gold, answer):
    assert verdict_of(gold, answer) == "IE"
    assert verdict_of("e^{100000}", "5") == "WA"


def test_an_answer_on_which_sympy_fails_is_wrong():
    product = r"\left[\begin{array}{rr}12&-7\\-5&3\end{array}\right]"
    product += r"\left[\begin{array}{r}0\\-1\end{array}\right]"
    vector = r"\left[\begin{array}{r}7\\-3\end{array}\right]"
    assert run(f"{product}={vector} So $x=7$", f"{product}={vector} So $x=8$").verdict == "WA"


REPEATED = [("(", "1", ")"), (r"\sqrt{", "2", "}"), (r"\frac{1}{", "2", "}"), ("{", "", "}")]
REPEATED += [(r"\overline{", "2", "}"), (r"\text{", "", "}"), ("1+", "1", ""), ("x_", "", "")]
REPEATED += [(r"\pm", "1", ""), ("1,", "1", ""), (",", "", ""), ("2^", "2", ""), ("_{", "", "}")]
REPEATED += [(r"\frac", "", ""), (r"(0,1)\cup", "(0,1)", ""), ("x<", "1", ""), ("1/", "2", "")]
REPEATED += [("0.9", "9", ""), ("a", "!", ""), (" ", "", ""), ("$", "", ""), ("\0", "2", "")]
HOSTILE = Path(__file__).with_name("hostile_answers.txt").read_text().splitlines()
HOSTILE += [
    "k " * 900 + r"\in\mathbb{Z}",
    "5 " + "m " * 900,
    "12" + "个是" * 900,
    r"\max(" + "1," * 900 + "1)",
    r"\begin{pmatrix}" + "1&" * 400 + r"1\end{pmatrix}",
    "9" * 1900 + "!",
    "0.(" + "3" * 1900 + ")",
    "1" * 50_000,
    "\ud800",
]
for start, inner, end in REPEATED:
    times = 1900 // len(start + end)
    HOSTILE.append(start * times + inner + end * times)


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: answer[:20])
def test_hostile_answers_are_wrong_and_quick(answer, quickest):
    run("1", "2")  # the parser's own start-up

    def judge():
        parse.cache_clear()
        assert verdict_of("77", answer) == "WA"

    assert quickest(judge, below=1.2) < 1.2  # the limit and what is around it


def test_an_integer_costs_less_than_a_millisecond(quickest):
    def judge_200():
        for i in range(200):
            verdict_of(str(i), str(i + 1))

    assert quickest(judge_200, below=0.2) < 0.2


def test_what_takes_too_long_is_a_wrong_answer_or_an_unscored_gold(monkeypatch):
    run("1", "2")
    monkeypatch.setattr(worker, "_CPU_S", 0.5)
    monkeypatch.setattr(worker, "_CPU_OF_GOLD_S", 0.5)
    endless = r"\sum_{k=1}^{9999}k!"
    verdict = run("7", endless)
    assert (verdict.verdict, "0.5 s of CPU time" in verdict.reason) == ("WA", True)
    assert run(endless, "7").verdict == "IE"


def busy(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def swallowed_once(seconds: float) -> None:
    """As where the alarm interrupts a callback of the garbage collector."""
    with suppress(BaseException):
        busy(seconds)
    busy(seconds)


def test_looking_for_garbage_is_no_time_of_an_answer():
    looked = list[str]()

    def watch(phase: str, _: object) -> None:
        looked.append(phase)

    gc.callbacks.append(watch)
    try:
        with cpu_seconds(5):
            with cpu_seconds(5):  # its gold's
                pass
            looked.clear()
            kept = [[] for _ in range(2 * gc.get_threshold()[0])]
            assert not looked
        kept.append([])
        assert looked
    finally:
        gc.callbacks.remove(watch)


def test_cpu_time_is_limited_in_the_block_alone_and_waiting_costs_none():
    with pytest.raises(OutOfTime), cpu_seconds(0.05):
        swallowed_once(10)
    with cpu_seconds(0.2):
        time.sleep(0.5)
    busy(0.3)
