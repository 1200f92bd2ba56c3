r"""Whole kinds of math answers: every spelling of a value answers it, and no other value.

A kind is a table of values, each with its spellings. Every spelling is compared with every other
one of the kind, so that a rule which is too wide shows as two values that are one.
"""

import itertools

import pytest

from klear.eval.math_answers.verify import quick_verdict
from klear.eval.math_answers.worker import run

SUFFIXES = {1: "st", 2: "nd", 3: "rd"}


def verdict_of(gold: str, answer: str) -> str:
    return (quick_verdict(gold, answer) or run(gold, answer)).verdict


def ordinals(number: int) -> list[str]:
    suffix = SUFFIXES.get(number % 10 if number not in (11, 12, 13) else 0, "th")
    marks = [suffix, "^{%s}", r"\text{%s}", r"^{\text{%s}}", r"^\text{%s}", r"^{\mathrm{%s}}"]
    marks += [r"^{\text{%s}}\text{ grade}"]
    return [str(number), *(f"{number}{mark.replace('%s', suffix)}" for mark in marks)]


def degrees(value: str) -> list[str]:
    marks = ["", r"^\circ", r"^{\circ}", "°", r"\text{ degrees}", "度"]
    return [value + mark for mark in marks]


def minutes(degree: int, minute: int, second: int = 0) -> list[str]:
    arc_seconds = (degree * 60 + minute) * 60 + second
    seconds = f"{second}''" if second else ""
    return [
        rf"\frac{{{arc_seconds}}}{{3600}}^\circ",
        rf"{degree}^\circ {minute}' {seconds}",
        f"{degree}°{minute}\N{PRIME}" + (f"{second}\N{DOUBLE PRIME}" if second else ""),
        rf"{degree}^{{\circ}}{minute}^{{\prime}}{seconds}",
    ]


def interval(low: str, high: str, closed: str) -> list[str]:
    left, right = closed[0] == "[", closed[1] == "]"
    french = ("[" if left else "]", "]" if right else "[")
    spellings = [f"{closed[0]}{low},{high}{closed[1]}", f"{french[0]}{low},{high}{french[1]}"]
    spellings.append(rf"\left{french[0]}{low}; {high}\right{french[1]}")
    if "infty" not in low:
        relations = [r"\le" if side else "<" for side in (left, right)]
        spellings.append(f"{low} {relations[0]} x {relations[1]} {high}")
    return spellings


INTERVALS = {
    f"{closed[0]}{low},{high}{closed[1]}": interval(low, high, closed)
    for low, high, closed in (
        *(("-2", "3", closed) for closed in ("()", "[]", "[)", "(]")),
        ("0", r"\frac12", "()"),
    )
} | {
    r"(-\infty,1)": interval(r"-\infty", "1", "()"),
    r"(-\infty,1]": interval(r"-\infty", "1", "(]"),
}
HALF_LINES = {
    "positive": [r"\mathbb{R}^+", r"\mathbb R_{>0}", r"\mathbb{R}_+", r"(0,\infty)", "x>0"],
    "no negative": [r"\mathbb{R}_{\ge 0}", r"\mathbb R_{\geq0}", r"[0,\infty)", r"x\ge0"],
    "negative": [r"\mathbb{R}^{-}", r"\mathbb{R}_{<0}", r"(-\infty,0)", "x<0"],
    "no positive": [r"\mathbb{R}_{\le0}", r"(-\infty,0]", r"x\le0"],
    "not zero": [r"\mathbb{R}^*", r"\mathbb{R}_{\ne0}", r"x\ne0", r"\mathbb{R}\setminus\{0\}",
                 r"\text{all real numbers except }0", "all reals but 0"],
    "all": [r"\mathbb{R}", r"\text{all real numbers}", r"(-\infty,\infty)"],
}  # fmt: skip
EXCEPT = {
    "1": [r"\text{all real numbers except }1", r"\text{All real numbers except 1.}", r"x\ne1",
          r"\text{all reals } x \text{ except } x=1", r"(-\infty,1)\cup(1,\infty)"],
    "2": [r"\text{all real numbers except }2", r"\mathbb{R}\setminus\{2\}"],
    "1, 2": [r"\text{all real numbers except 1 and 2}", r"\mathbb{R}\setminus\{1,2\}",
             r"\text{all real numbers other than }1\text{ and }2"],
    "1, -1": [r"\text{all real numbers except }\pm1", r"\mathbb{R}\setminus\{1,-1\}"],
    "none": [r"\mathbb{R}"],
    "one number": [r"\{1\}", "x=1"],
}  # fmt: skip
NOTHING = {
    "solution": [r"\text{no solution}", r"\text{no solutions exist}", r"\emptyset", "无解",
                 r"\text{There are no solutions.}", r"\text{No real solution exists}"],
    "integer": [r"\text{no such integers exist}", r"\text{There is no such integer}"],
    "one": [r"\text{one solution}"], "some": [r"\text{solutions exist}"],
    "limit": [r"\text{does not exist}", "不存在"],
}  # fmt: skip


def family(formula: str) -> list[str]:
    declared = [r", %s\in\mathbb{Z}", r" \quad (%s \in \mathbb Z)", r"\text{ for any integer }%s"]
    declared += [r"\text{ where }%s\text{ is an integer}"]
    return [(formula + tail).replace("%s", letter) for letter in "kn" for tail in declared]


FAMILIES = {f: family(f) for f in (r"%s\pi", r"2%s\pi", r"\frac{\pi}{4}+%s\pi", r"a%s", r"b%s")}
NAMED = {
    v: [f"x={v}", f"{v}=x", f"{v} = x"]
    for v in ("5", r"\frac12", r"\sqrt{2}+1", "(1,2)", "-3", "x^2+1")
} | {"no name": ["5=6"], "two": ["5,6"]}
FRACTIONS = {
    f"{a}/{b}": [rf"\{command}{{{a}}}{{{b}}}" for command in ("frac", "nicefrac", "sfrac", "tfrac")]
    for a, b in ((3, 4), (4, 3), (1, 7), (7, 3))
}
CIS = {
    f"{r}, {angle}": [
        rf"{r}\operatorname{{cis}}{angle}^\circ",
        rf"{r}\text{{cis}}({angle}^\circ)",
        rf"{r}\cis\left(\frac{{{angle}\pi}}{{180}}\right)",
        rf"{r}e^{{\frac{{{angle}}}{{180}}\pi i}}",
        rf"{r}(\cos{angle}^\circ+i\sin{angle}^\circ)",
    ]
    for r, angle in itertools.product((2, 3), (60, 120, 300))
}


def speed(value: int, above: str, below: str) -> list[str]:
    return [
        rf"{value}\text{{ {above}/{below}}}",
        rf"{value}\frac{{\text {above}}}{{\text {below}}}",
        rf"{value}\,\mathrm{{{above}\,{below}^{{-1}}}}",
        rf"{value}\ \mathrm{{{above}}}/\mathrm{{{below}}}",
        rf"{value}\text{{ {above}}}\cdot\text{{{below}}}^{{-1}}",
    ]


SPEEDS = {
    str(precision): speed(*precision)
    for precision in ((5, "m", "s"), (5, "s", "m"), (6, "m", "s"), (5, "m", "h"))
} | {
    "5 m/s^2": [r"5\text{ m/s}^2", r"5\,\mathrm{m\,s^{-2}}", r"5\frac{\text m}{\text s^2}"],
    "5 m s": [r"5\,\mathrm{m\,s}", r"5\text{ m s}"],
    "5 m/min": [r"5\text{ m/min}", r"5\mathrm{~m} / \mathrm{min}"],
    "litre": [r"1\text{ L}", r"1000\text{ cm}^3"],
}
COUNTED = {
    str(n * size): [str(n * size), *(f"{n}{form % word}" for form in (r"\text{ %s}", " %s"))]
    for n, (word, size) in itertools.product(
        (5, 7), {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6}.items()
    )
} | {"5": ["5"], "7": ["7"], "120000": ["120000", "12万", r"12\text{万}"], "12": ["12", "12个"]}
ENDS = {
    "closed": ["[0,1]", r"0\le x\le1"], "half": ["[0,1)", "[0,1["],
    "list": ["0,1", r"\{0,1\}", r"0\text{ and }1", "x=0,x=1"],
}  # fmt: skip
EQUATIONS = {
    "parabola": ["y=x^2", "x^2=y", "y-x^2=0", "2y=2x^2"],
    "no parabola": [r"\frac{y}{x}=x", "y/x=x"], "nor this": [r"\frac{y}{x^2}=1"],
    "line": ["y=2x", r"\frac{y}{2}=x"], "no line": ["y/x=2"],
    "hyperbola": ["xy=1", "y=1/x", r"x=\frac1y"], "shifted": ["y(x-1)=2", r"y=\frac{2}{x-1}"],
    "bell": ["y(x^2+1)=2", r"y=\frac{2}{x^2+1}"], "ellipse": [r"\frac{x^2}{4}+y^2=1", "x^2+4y^2=4"],
}  # fmt: skip


def wide(text: str) -> str:
    """In full-width characters."""
    return "".join(chr(ord(character) + 0xFEE0) for character in text)


CHANGED = ["至少12", "12以上", "不是12", "12的平方", "12的一半", "负12", "大于12", "12左右"]
CHANGED += ["12或14", "12到13", "不足12", "12万"]
CHINESE = {
    "12": ["12", "12个", r"12\text{个}", "答案是12", "答案:12", r"\text{答案为}12", "共12人",
           wide("12"), "12。", "12种不同的方法", "x=12", "所以x=12"],
    "13": ["13", "13个", "答案是13"],
    "12, 13": ["12,13", "12和13", r"12\text{或}13", "12、13", "x=12或x=13", "12个或13个"],
    "5 m": ["5米", r"5\text{ m}", "500厘米", r"5\text{米}"],
    "5 m2": ["5平方米", r"5\text{ m}^2"],
    "3 h": ["3小时", "180分钟"], "pair": ["(1,2)", wide("(1,2)")], "ratio": ["1:2", wide("1:2")],
    "first": ["甲"], "second": ["乙"],
} | {text: [text] for text in CHANGED}  # fmt: skip
CHOICES = {
    "A": ["A", "选A", r"\text{选A}", "选项A", "答案选A", "故选A。", "A."], "B": ["B", "选B"],
    "hedged": ["选A或B"], "denied": ["不选A"],
}  # fmt: skip
TIMES = {
    "15:45": ["15:45", r"3:45\text{ p.m.}", r"\text{3:45 P.M.}", r"03:45\,\mathrm{pm}", "3: 45 PM",
              "下午3:45"],
    "3:45": [r"3:45\text{ a.m.}", "3:45 AM"], "11:00": [r"11\textsc{am}", "11:00 AM"],
    "23:00": [r"11\text{ p.m.}", "晚上11点", "23:00"], "12:30": [r"12:30\text{ p.m.}"],
    "0:30": [r"12:30\text{ a.m.}", "0:30"],
}  # fmt: skip
SEVERAL = {
    "ACD": ["ACD", "A, C, D", r"\text{A, C and D}", "(A)(C)(D)", "A、C、D", r"\text{D, C, A}"],
    "AC": ["AC", "A,C"], "ABD": ["ABD"],
}  # fmt: skip
COMMAS = {
    "3.14": ["3.14", "3{,}14", r"\frac{157}{50}"], "3140": ["3140", "3{,}140"],
    "314": ["314"], "pair": ["3, 14"], "coordinates": ["(1{,}5; 2)", "(1.5, 2)"],
}  # fmt: skip
SYSTEMS = {
    f"{x}, {y}": [
        rf"\begin{{cases}} x = {x}, \\ y = {y} \end{{cases}}",
        rf"\begin{{cases}}x={x}\\y={y}\end{{cases}}",
        rf"\left\{{\begin{{array}}{{l}}x={x}\\y={y}\end{{array}}\right.",
        rf"\left\{{\begin{{aligned}}x&={x}\\y&={y}\end{{aligned}}\right.",
        f"x={x}, y={y}",
        f"({x},{y})",
    ]
    for x, y in ((1, 2), (2, 1), (1, 3))
}
RESIDUES = {
    f"{r} mod {m}": [
        rf"x\equiv{r}\pmod{m}",
        rf"x\equiv{r + m}\pmod{{{m}}}",
        rf"x\equiv{r - m}\ (\text{{mod }}{m})",
        rf"x={m}k+{r},\ k\in\mathbb{{Z}}",
        rf"x={r}+{m}n\text{{ for any integer }}n",
    ]
    for r, m in ((3, 7), (4, 7), (3, 8))
} | {"whole": [r"x=7k+3, k\in\mathbb{N}"]}
RESIDUES |= {
    f"{r} or {s} mod {m}": [
        rf"x\equiv {r},{s}\pmod{m}",
        rf"x\equiv {s - m}\text{{ or }}{r + m}\pmod{{{m}}}",
        rf"x\equiv {s}\pmod{{{m}}}\text{{ or }}x\equiv {r}\pmod{{{m}}}",
        rf"x={m}k+{r}\text{{ or }}x={m}k+{s}, k\in\mathbb{{Z}}",
        rf"{m}k+{s}, {m}k+{r}",
    ]
    for r, s, m in ((1, 3, 7), (3, 4, 7), (1, 3, 8), (1, 4, 9))
} | {"signs": [r"x\equiv\pm 1\pmod 5", r"x=5k+1\text{ or }x=5k-1", "5k-1, 5k+1"]}
CONSTANTS = {
    "growth": ["y=Ce^{2x}", "y=ce^{2x}", r"y=Ce^{2x},\ C\in\mathbb{R}", "y(x)=Ce^{2x}",
               r"y=Ce^{2x}\text{, where }C\text{ is an arbitrary constant}"],
    "decay": ["y=Ce^{-2x}"], "two": ["y=Ce^{cx}"], "one": ["y=e^{2x}"],
    "side": ["c-a"], "angle": ["C-a"],
    "points": [r"(t,2t), t\in\mathbb{R}", r"(s,2s)\text{ for any }s\in\mathbb{R}"],
    "whole points": [r"(t,2t), t\in\mathbb{Z}"], "others": [r"(t,t), t\in\mathbb{R}"],
    "half a line": [r"x=2, y\in\mathbb{R}"], "number": ["x=2"],
}  # fmt: skip
KINDS = {
    "ordinals": {str(n): ordinals(n) for n in (1, 2, 3, 12, 22, 111)} | {"power": ["12^{h}"]},
    "degrees": {v: degrees(v) for v in ("45", r"\frac{270}{7}", r"\sqrt2", "22.5", r"\frac{271}7")},
    "minutes": {str(m): minutes(*m) for m in ((22, 30), (22, 31), (30, 22), (22, 30, 36))},
    "intervals": INTERVALS, "half lines": HALF_LINES, "all but": EXCEPT, "nothing": NOTHING,
    "families": FAMILIES, "named": NAMED, "fractions": FRACTIONS, "cis": CIS, "speeds": SPEEDS,
    "counted": COUNTED, "ends": ENDS, "equations": EQUATIONS, "chinese": CHINESE,
    "choices": CHOICES, "times": TIMES, "several choices": SEVERAL, "commas": COMMAS,
    "systems": SYSTEMS, "residues": RESIDUES, "constants": CONSTANTS,
}  # fmt: skip
ONLY_ANSWERS = {"half a line", "no parabola", "nor this", "no line", "hedged", "denied", *CHANGED}
"""Values that no gold has: what words of a gold mean, its question says."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_of_a_value_answers_it_and_no_other_value(kind):
    wrong, values = list[str](), KINDS[kind]
    for value, spellings in values.items():
        others = [text for other in values if other != value for text in values[other][::3]]
        for gold in () if value in ONLY_ANSWERS else spellings[: 1 if kind == "counted" else None]:
            for answer in (*spellings, *others):
                verdict = verdict_of(gold, answer)
                if verdict != ("AC" if answer in spellings else "WA"):
                    wrong.append(f"{gold} ? {answer}: {verdict}")
    assert not wrong, "\n".join(wrong[:40])
