r"""Math verdicts: equal values in any spelling are right, all else is wrong, nothing is slow.

The rows of math_cases.jsonl are answers of every kind, each with the verdict that a careful
mathematician gives: `text` is what the model wrote, `right` whether it answers `gold`.
"""

import gc
import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

from klear.eval.answers import extract_boxed
from klear.eval.math_answers import worker as worker
from klear.eval.math_answers.notation.formulas import parse
from klear.eval.math_answers.verify import quick_verdict
from klear.eval.math_answers.worker import OutOfTime, cpu_seconds, run

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("math_cases.jsonl").read_text().splitlines()
]


def verdict_of(gold: str, answer: str) -> str:
    return (quick_verdict(gold, answer) or run(gold, answer)).verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gold']} ? {case['text']}")
def test_an_answer_is_right_when_a_mathematician_says_so(case):
    answer = extract_boxed(case["text"]).answer
    verdict = "WA" if answer is None else verdict_of(case["gold"], answer)
    assert verdict == ("AC" if case["right"] else "WA")


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


def test_the_end_of_the_time_that_some_code_caught_comes_again():
    with pytest.raises(OutOfTime), cpu_seconds(0.05):
        swallowed_once(10)


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
        busy(10)
    with cpu_seconds(0.2):
        time.sleep(0.5)
    busy(0.3)
