"""Math verdicts: equal values in any spelling are right, all else is wrong, nothing is slow."""

import pytest

from eval.math_answers.reading import parse
from eval.math_answers.task import run
from eval.math_answers.verify import MathVerdict, quick_verdict


def verdict_of(gold: str, answer: str) -> MathVerdict:
    """What the judge does, in this process."""
    return quick_verdict(gold, answer) or run(gold, answer)


SAME = [
    ("B", "(B) 12"),
    ("B", "B) 12"),
    ("B", r"\text{B}"),
    ("B", r"\textbf{(B)}\ 12"),
    ("(B)", "B"),
    ("C", r"\mathrm{C}"),
    (r"\frac{\sqrt{3}}{2}", r"\sin 60^\circ"),
    (r"\sin 30^\circ", r"\frac12"),
    ("1000000", "1,000,000"),
    ("1000000", r"1\,000\,000"),
    ("1000000", "1 000 000"),
    ("10000", "10{,}000"),
    ("1000000", "10^6"),
    ("0.333", r"\frac13"),
    ("3.14", r"\pi"),
    (r"\frac{1}{2^{99}}", "2^{-99}"),
    (r"5\text{ m}", r"5\text{ m}"),
    ("5", r"5\text{ cm}"),
    (r"5\text{ cm}", "5"),
    (r"12\text{ square units}", "12"),
    ("12", r"12\text{ cm}^2"),
    ("(1,2)", "(1, 2)"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("1,2", "2,1"),
    ("1, 2", r"\{1, 2\}"),
    ("[0,1)", r"0 \le x < 1"),
    ("(0,1)", "0<x<1"),
    (r"x\in[1,2]", "[1,2]"),
    (r"[2,\infty)", r"x \geq 2"),
    (r"(-\infty, 0] \cup [1, \infty)", r"x\le 0\text{ or }x\ge 1"),
    (r"(-\infty,\infty)", r"\mathbb{R}"),
    (r"x \neq 2", r"(-\infty,2)\cup(2,\infty)"),
    ("x=5", "x = 5"),
    ("x^2+2x+1", "(x+1)^2"),
    ("y=2x+1", "2x - y + 1 = 0"),
    ("y=2x+1", "y=1+2x"),
    ("x^2+y^2=1", "y^2 = 1-x^2"),
    ("7", "a+b=7"),
    ("7", "m + n = 3+4 = 7"),
    (r"\frac{3}{4}", "0.75"),
    (r"\frac{3}{4}", r"75\%"),
    ("75", r"75\%"),
    (r"50\%", "50"),
    (r"50\%", r"\frac{1}{2}"),
    (r"\sqrt{2}", "2^{1/2}"),
    (r"\sqrt{8}", r"2\sqrt2"),
    (r"3\sqrt{2}", r"\sqrt{18}"),
    (r"\frac{\pi}{4}", r"45^\circ"),
    ("90", r"90^\circ"),
    (r"90^\circ", r"90\text{ degrees}"),
    ("1+i", "i+1"),
    ("2i", "(1+i)^2"),
    ("e^2", "e^{2}"),
    (r"\ln 2", r"\frac{1}{2}\ln 4"),
    (r"\log_{10} 100", "2"),
    ("Yes", r"\text{Yes}"),
    ("2^{100}", "1267650600228229401496703205376"),
    ("100!", "100!"),
    ("5!", "120"),
    (r"\binom{5}{2}", "10"),
    ("16", "2^{2^2}"),
    ("55", r"\sum_{k=1}^{10} k"),
    ("7", r"\{7\}"),
    ("7", "(7)"),
    ("7", "+7"),
    ("7", "7.0"),
    ("7", "7."),
    ("7", "007"),
    ("007", "7"),
    ("7", "$7$"),
    ("7", r"\(7\)"),
    ("7", r"\text{7}"),
    ("7", "{7}"),
    ("7", r"7\text{ apples}"),
    ("3:4", "6:8"),
    ("3:4", r"\frac{3}{4}"),
    ("1:2:3", "2:4:6"),
    ("1011_2", "1011"),
    ("1011_2", "1011_{2}"),
    (r"\infty", r"\infty"),
    (r"\infty", r"+\infty"),
    (r"\frac{x}{2}", "0.5x"),
    (r"\frac{x+1}{2}", r"\frac{1}{2}x+\frac12"),
    ("n(n+1)/2", r"\frac{n(n+1)}{2}"),
    (r"\sin^2 x+\cos^2 x", "1"),
    ("$12.50", "12.5"),
    (r"\$12.50", "12.50"),
    (r"\$5", r"5\text{ dollars}"),
    ("2:30", "2:30"),
    (r"\text{Monday}", "Monday"),
    (r"3\frac{1}{2}", "3.5"),
    (r"-\frac{3}{4}", r"\frac{3}{-4}"),
    (r"\pm 3", r"\pm3"),
    ("3, -3", r"\pm 3"),
    (r"1 \pm \sqrt{2}", r"1+\sqrt{2}, 1-\sqrt{2}"),
    (r"x = 1 \pm \sqrt{2}", r"1 \pm \sqrt 2"),
    ("(3,4)", "x=3, y=4"),
    ("(3,4)", "(x,y)=(3,4)"),
    ("(x,y) = (3,4)", "(3,4)"),
    ("x=3", "3"),
    ("a=1,b=2", "b=2,a=1"),
    (r"6 \text{ and } 7", "7, 6"),
    ("1.5", r"\dfrac32"),
    (r"\dfrac{1}{2}", r"\tfrac12"),
    ("1/2", r"\frac12"),
    (r"\frac{1}{2}", "1/2"),
    ("-1/2", "-0.5"),
    (r"\emptyset", r"\varnothing"),
    ("10^{-3}", "0.001"),
    ("1e-3", "0.001"),
    (r"3.0\times10^8", "300000000"),
    ("0.1", r"1\times 10^{-1}"),
    (r"\sqrt[3]{8}", "2"),
    ("|-3|", "3"),
    (r"\lfloor 3.7 \rfloor", "3"),
    (r"k\pi", r"\pi k"),
    ("9", r"\boldsymbol{9}"),
    ("9", r"\mathbf{9}"),
    ("9", r"\underline{9}"),
    ("9", r"9\%"),
    ("9", r"9\,\text{cm}"),
    ("9", r"9\text{cm}^2"),
    ("9", "9 cm"),
    ("9", r"9 \mathrm{~cm}"),
    (r"9\mathrm{~cm}", "9"),
    (r"\frac{9}{2} \mathrm{~cm}", "4.5"),
    ("x^{2}-1", "(x-1)(x+1)"),
    ("f(x)=x+1", "f(x)=1+x"),
    ("2", r"\sqrt{4}"),
    (r"\sqrt{-1}", "i"),
    (r"120^{\circ}", "120"),
    (r"\arctan(2)", r"\tan^{-1}(2)"),
    (r"\frac{\pi}{6}", r"\arcsin\frac{1}{2}"),
    ("1{,}234", "1234"),
    ("1,234", "1234"),
    ("(1,234)", "(1,234)"),
    ("2x", "2*x"),
    (r"x\cdot y", "xy"),
    (r"2 \times 3", "6"),
    (r"$\frac{1}{3}$", r"\frac{1}{3}"),
    (r"\frac{\frac{1}{2}}{3}", r"\frac16"),
    (r"\frac{1}{\sqrt{3}-1}", r"\frac{\sqrt3+1}{2}"),
    ("10", "x=10"),
    ("10", r"\text{The answer is }10"),
    ("2", "1+1"),
    ("2.0", "2"),
]

DIFFERENT = [
    ("B", "(C) 12"),
    ("0", r"1\,000\,000"),
    (r"2\pi", "6.28"),
    (r"\frac13", "0.3333333"),
    ("0.5", "0.51"),
    ("0.5", r"\frac{51}{100}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    ("36", r"36\pi"),
    ("(1,2)", "(2,1)"),
    ("[1,2]", "(1,2)"),
    ("[0,1)", "[0,1]"),
    ("y=2x+1", "y=2x-1"),
    ("0.5", "50"),
    (r"\sqrt{2}", "1.4142135623730951"),
    ("3-4i", "3+4i"),
    ("yes", "No"),
    (r"\text{east}", "seat"),
    ("east", "seat"),
    ("2^{2005}", "2^{2006}"),
    ("10", r"\binom{10^9}{5\cdot10^8}"),
    ("1", "(10^8)!"),
    ("1", "2^{2^{2^{2^{2}}}}"),
    ("1", r"\prod_{k=1}^{10^8} k"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("7", "7 or 8"),
    ("7", "7, 8"),
    ("-7", "7"),
    ("12", "1 2"),
    ("12", r"1\ 2"),
    ("3:4", "4:3"),
    ("1011_2", "1011_3"),
    (r"-\infty", r"\infty"),
    ("x^2", "x^3"),
    ("Monday", "Tuesday"),
    (r"3\frac{1}{2}", r"\frac{3}{2}"),
    ("a=1,b=2", "a=2,b=1"),
    ("a_1", "a_2"),
    ("12,34", "1234"),
    (r"-\sqrt{2}", r"\sqrt{2}"),
    (r"2\sqrt{3}", r"2\sqrt{5}"),
    (r"\frac{10}{3}", "3.33"),
    ("10", r"10\text{ or }-10"),
    ("x=10", "y=10"),
    ("10", "10!"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_value_in_another_spelling_is_right(gold, answer):
    assert verdict_of(gold, answer).verdict == "AC"


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_value_is_wrong(gold, answer):
    assert verdict_of(gold, answer).verdict == "WA"


@pytest.mark.parametrize("gold", ["", r"\frac{", r"\sqrt{2", r"\int_0^1 x^x dx", "((10!)!)!"])
def test_a_gold_that_cannot_be_read_is_unscored(gold):
    assert verdict_of(gold, "7").verdict == "IE"


def test_a_gold_that_cannot_be_read_is_unscored_whatever_words_the_answer_has():
    gold = r"\begin{cases} 1 & x > 0 \\ 0 & x \le 0\end{cases}"
    answer = r"\begin{cases} 1 & \text{if }x > 0 \\ 0 & \text{if }x \le 0\end{cases}"
    assert verdict_of(gold, answer).verdict == "IE"


def test_a_gold_with_too_many_digits_to_tell_a_near_answer_from_it_is_unscored():
    assert verdict_of("e^{100000}", r"e^{100000}+\pi").verdict == "IE"
    assert verdict_of("e^{100000}", "5").verdict == "WA"


@pytest.mark.parametrize(
    "answer",
    [
        r"9^{9^{9^{9}}}",
        r"9^{9^{9}}",
        r"2^{-9^{9^{9}}}",
        "3^{-1000000}+7^{-1000000}",
        "3^{-5000000}+7^{-2000000}",
        r"\frac{1}{3^{400000}}+\frac{1}{7^{400000}}",
        r"\frac{1}{3^{100000}}+\frac{1}{7^{50000}}",
        "3^{1000000}+7^{500000}",
        "7+e^{-100000}",
        r"(10^{8})!",
        r"((10!)!)!",
        r"\binom{10^9}{5\cdot10^8}",
        r"\binom{1000000000}{500000000}",
        r"\lfloor 10^{10^{10}} \rfloor",
        r"\int_0^1 x^{x^{x^x}}\,dx",
        r"\sum_{k=1}^{10^9} \frac{1}{k^2}",
        r"\prod_{k=1}^{\infty} \frac{k}{k+1}",
        r"(x+y+z+1)^{200}-(x+y+z)^{200}",
        r"\lim_{x \to 0} \frac{\sin x}{x^x}",
        "1" * 50_000,
        "(" * 1000 + "1" + ")" * 1000,
        r"\sqrt{" * 300 + "2" + "}" * 300,
        r"\frac{1}{" * 150 + "2" + "}" * 150,
        "1+" * 900 + "1",
        "a" * 1900 + "!",
        "1" + "a" * 1900 + "!",
        "x_" * 900,
        ",".join("1" for _ in range(900)),
        "9" * 1900 + "!",
        r"\text{" * 300 + "}" * 300,
        "{" * 1900,
        " " * 1999,
        "^ " * 900,
        "$" * 1900,
    ],
)
def test_hostile_answers_are_wrong_and_quick(answer, quickest):
    run("1", "2")  # the parser's own start-up

    def judge():
        parse.cache_clear()
        assert verdict_of("7", answer).verdict == "WA"

    assert quickest(judge, below=2.5) < 2.5


def test_an_integer_costs_less_than_a_millisecond(quickest):
    def judge_200():
        for i in range(200):
            verdict_of(str(i), str(i + 1))

    assert quickest(judge_200, below=0.2) < 0.2
