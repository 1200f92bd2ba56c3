r"""Whole kinds of math answers: every spelling of a value answers it, and no other value.

A kind is a table of values, each with its spellings. Every spelling is compared with the first and
another one of its value, and with values of the kind in other spellings, so that a rule which is
too wide shows as two values that are one.
"""

import itertools
from pathlib import Path

import pytest
import yaml

from tests.eval.conftest import verdict_of

SUFFIXES = {1: "st", 2: "nd", 3: "rd"}


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
WRITTEN = yaml.safe_load(Path(__file__).with_name("math_kinds.yaml").read_text("utf-8"))
CHANGED = WRITTEN.pop("changed")
WRITTEN["chinese"] |= {text: [text] for text in CHANGED}
KINDS = WRITTEN | {
    "ordinals": {str(n): ordinals(n) for n in (1, 2, 3, 12, 22, 111)} | {"power": ["12^{h}"]},
    "degrees": {v: degrees(v) for v in ("45", r"\frac{270}{7}", r"\sqrt2", "22.5", r"\frac{271}7")},
    "minutes": {str(m): minutes(*m) for m in ((22, 30), (22, 31), (30, 22), (22, 30, 36))},
    "intervals": INTERVALS, "families": FAMILIES, "named": NAMED, "fractions": FRACTIONS,
    "cis": CIS, "speeds": SPEEDS, "counted": COUNTED, "systems": SYSTEMS, "residues": RESIDUES,
}  # fmt: skip
ONLY_ANSWERS = {"half a line", "no parabola", "nor this", "no line", "hedged", "denied", *CHANGED}
"""Values that no gold has: what words of a gold mean, its question says."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_of_a_value_answers_it_and_no_other_value(kind):
    wrong, values = list[str](), KINDS[kind]
    for value, spellings in values.items():
        golds = () if value in ONLY_ANSWERS else spellings[: 1 if kind == "counted" else None]
        for i, gold in enumerate(golds):
            others = [
                texts[i % len(texts)] for j, texts in enumerate(values.values())
                if texts is not spellings and (len(spellings) < 3 or (i + j) % 2)  # all, by turns
            ]  # fmt: skip
            for answer in {spellings[0], spellings[i - 1], *others}:
                verdict = verdict_of(gold, answer)
                if verdict != ("AC" if answer in spellings else "WA"):
                    wrong.append(f"{gold} ? {answer}: {verdict}")
    assert not wrong, "\n".join(wrong[:40])
