r"""A math answer's verdict without sympy: one spelling for both sides, then words and numbers.

Most answers of competition problems are integers, fractions and words; `quick_verdict` decides
them in microseconds, in the caller's process. Everything else goes to `eval.math_task`, in a
worker that can be killed.

Policies, where graders differ:
- a unit, a percent sign or a degree sign that only one side has does not matter; known units that
  differ do (5 m is not 5 cm), and 25\% is 0.25 but 0.25 is not 25;
- words are compared without case; a choice may repeat its value: `(B) 12` answers B;
- a rounded decimal does not answer an exact gold, an exact answer does answer a rounded gold;
- a numeral with a base (1011_2) is not the decimal number with the same digits.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from eval.records import Verdict

MAX_CHARACTERS = 2000  # longer answers are compared as text only


@dataclass(frozen=True)
class MathVerdict:
    """AC, WA, or IE when the gold answer itself cannot be read."""

    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0


_GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_FONTS = r"text|textrm|textbf|textit|textnormal|mathrm|mathbf|mathsf|mbox|hbox|operatorname"
_TEXT = rf"\\(?:{_FONTS})\*?\s*{_GROUP}"
_UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DOT OPERATOR}": r"\cdot ",
        "\N{DIVISION SIGN}": r"\div ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{GREEK SMALL LETTER ALPHA}": r"\alpha ",
        "\N{GREEK SMALL LETTER BETA}": r"\beta ",
        "\N{GREEK SMALL LETTER THETA}": r"\theta ",
        "\N{INFINITY}": r"\infty ",
        "\N{SQUARE ROOT}": r"\sqrt ",
        "\N{DEGREE SIGN}": r"^\circ ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{NOT EQUAL TO}": r"\ne ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{UNION}": r"\cup ",
        "\N{INTERSECTION}": r"\cap ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
        "\N{HORIZONTAL ELLIPSIS}": r"\ldots ",
        "\N{SUPERSCRIPT TWO}": "^{2}",
        "\N{SUPERSCRIPT THREE}": "^{3}",
        "\N{VULGAR FRACTION ONE HALF}": r"\frac{1}{2}",
        "\N{VULGAR FRACTION ONE QUARTER}": r"\frac{1}{4}",
        "\N{VULGAR FRACTION THREE QUARTERS}": r"\frac{3}{4}",
        "\N{NO-BREAK SPACE}": " ",
        "\N{PRIME}": "'",
    }
)
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|bigl?|bigr|Bigl?|Bigr)(?![a-zA-Z])",
            "",
        ),
        (r"(?<=\d)\s*(?:\\[,;:! ]|~|\{,\}|\\thinspace)\s*(?=\d{3}(?!\d))", ""),  # 1\,000\,000
        (r"(?<=\d)(?<!\d\d\d\d)\s(?=\d{3}(?!\d))(?=[\d\s]*$)", ""),  # 1 000 000
        (r"\\(?:[,;:! >]|quad|qquad|thinspace|enspace)(?![a-zA-Z])|~", " "),
        (r"\\\$|\\[()\[\]]|\$", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"\\(?:leq|leqslant|le)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![a-zA-Z])", r"\\ge "),
        (r"\\neq(?![a-zA-Z])", r"\\ne "),
        (r"\\(?:dots|cdots|dotsc|dotsb)(?![a-zA-Z])", r"\\ldots "),
        (r"\\(?:lbrace|rbrace)(?![a-zA-Z])", lambda m: r"\{" if "lb" in m[0] else r"\}"),
        (r"\\(?:varnothing)(?![a-zA-Z])", r"\\emptyset "),
        (r"\\text\s*\{\s*degrees?\s*\}", r"^\\circ "),
        (r"\^\s*\{?\s*(?:\\circ|\\degree)\s*\}?|\\degree|\bdegrees?\b", r"^\\circ "),
        (r"\\(?:boldsymbol|mathbf|mathit|underline|pmb|bm)\s*(?=\{)", ""),
        (r"^\*\*|\*\*$", ""),
        (r"\s+", " "),
    )
]
_UNIT_NAMES = {
    "m": "m meter meters metre metres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mile miles",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "s": "s sec second seconds",
    "min": "min minute minutes",
    "h": "h hr hour hours hrs",
    "d": "day days",
    "L": "l liter liters litre litres",
    "$": "dollar dollars usd",
    "c": "cent cents",
}
_UNITS = {name: unit for unit, names in _UNIT_NAMES.items() for name in names.split()}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_TRAILING_UNIT = re.compile(
    rf"^(.*[\d)}}])\s*(?:{_TEXT}|([a-zA-Z]+\.?(?:\s[a-zA-Z]+\.?){{0,3}}))(?:\s*\^\s*\{{?([23])\}}?)?\s*$"
)
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\s?\d{3})+(?:\.\d+)?$")
_SIMPLE = re.compile(rf"^({_NUMBER}(?:[eE][-+]?\d{{1,3}})?)(?:\s*/\s*({_NUMBER}))?$", re.ASCII)
_FRACTION = re.compile(rf"^([-+]?)\\frac\s*\{{\s*({_NUMBER})\s*\}}\s*\{{\s*({_NUMBER})\s*\}}$")
_CHOICE = re.compile(r"^[(\[]?\s*([A-J])\s*(?:[)\].:]+(?:\s.*)?)?$")
_WORDS = re.compile(r"^(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z' .-]*$")  # not a product like xy


@dataclass(frozen=True)
class Spelled:
    """One side of the comparison in one spelling: `body`, with what stood around it apart."""

    body: str
    unit: str = ""
    percent: bool = False
    degrees: bool = False


def spell(text: str) -> Spelled:
    """Undo typesetting: spaces, dollars, fraction variants, digit groups, units, percent."""
    text = unicodedata.normalize("NFC", text).translate(_UNICODE)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".;,").strip()
    text = _unwrap(text)
    unit = ""
    match = _TRAILING_UNIT.match(text)
    if match and (words := (match[2] or match[3] or "").strip().strip(".").lower()):
        known = _UNITS.get(words, "")
        if known or (match[2] is not None and _is_unit(words)):
            text, unit = match[1].strip(), known + (match[4] or "")
    percent = bool(re.search(r"\\?%$|\\?percent$|\bpercent$", text))
    text = re.sub(r"\s*(?:\\?%|\\text\s*\{\s*percent\s*\}|percent)$", "", text).strip()
    degrees = text.endswith(r"^\circ") and text.count(r"\circ") == 1
    degrees = degrees and bool(re.match(rf"^{_NUMBER}\s*\^\\circ$", text))
    if degrees:
        text = text[: -len(r"^\circ")].strip()
    if _THOUSANDS.match(text):
        text = re.sub(r",\s?", "", text)
    return Spelled(_unwrap(text), unit, percent, degrees)


def _is_unit(words: str) -> bool:
    connects = {"and", "or", "if", "when", "where", "for", "mod", "base"}
    return bool(re.match(r"^[a-z .²³/^-]+$", words)) and not connects & set(words.split())


def _unwrap(text: str) -> str:
    r"""Without braces or \text{…} around all of it, or words in front of a formula."""
    before = None
    while before != text:
        before = text
        if match := re.fullmatch(_GROUP, text) or re.fullmatch(_TEXT, text):
            text = match[1].strip()
        elif (match := re.match(_TEXT, text)) and len(match[1].split()) > 1:
            rest = text[match.end() :].strip()
            text = rest if re.search(r"\d|\\", rest) else text
    return text.rstrip(".").strip()


def _rational(text: str) -> Fraction | None:
    text = _packed(text)
    if len(text) > 400:
        return None
    try:
        if match := _SIMPLE.match(text):
            return Fraction(match[1]) / Fraction(match[2] or "1")
        if match := _FRACTION.match(text):
            return Fraction(match[1] + "1") * Fraction(match[2]) / Fraction(match[3])
    except ZeroDivisionError:
        pass
    return None


def quick_verdict(gold: str, answer: str) -> MathVerdict | None:
    """The verdict on integers, fractions, decimals, choices and words; None for all else."""
    if not gold.strip():
        return MathVerdict("IE", "the gold answer is empty")
    if gold.strip() == answer.strip():
        return MathVerdict("AC", "equal text")
    if len(answer) > MAX_CHARACTERS:
        return _quick_long(gold, answer)
    ours, theirs = spell(answer), spell(gold)
    if ours.unit and theirs.unit and ours.unit != theirs.unit:
        return MathVerdict("WA", f"{ours.unit} is not {theirs.unit}")
    same_text = _packed(ours.body) == _packed(theirs.body)
    if same_text and not (ours.percent and not theirs.percent and "." in theirs.body):
        return MathVerdict("AC", "equal after normalisation")
    return _quick_choice(ours.body, theirs.body) or _quick_number(ours, theirs)


def _packed(text: str) -> str:
    """Without the spaces that mean nothing: `1 2` is two numbers, `x + 1` is `x+1`."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _quick_long(gold: str, answer: str) -> MathVerdict:
    """An answer too long for a formula: equal as text or as a plain integer, or wrong."""
    same = "".join(gold.split()) == "".join(answer.split())
    return MathVerdict("AC" if same else "WA", "" if same else "the answer is too long to be read")


def _quick_choice(ours: str, theirs: str) -> MathVerdict | None:
    choice = re.fullmatch(r"\(?([A-J])\)?", theirs)
    if choice and (match := _CHOICE.match(re.sub(_TEXT, r"\1", ours))):
        same = match[1] == choice[1]
        return MathVerdict("AC" if same else "WA", "choice")
    if _WORDS.match(theirs) and _WORDS.match(ours):
        same = ours.casefold().split() == theirs.casefold().split()
        return MathVerdict("AC" if same else "WA", "words")
    return None


def _quick_number(ours: Spelled, theirs: Spelled) -> MathVerdict | None:
    if ours.degrees != theirs.degrees and "pi" in ours.body + theirs.body:
        return None
    a, b = _rational(ours.body), _rational(theirs.body)
    if a is None or b is None:
        return None
    same = a == b
    if not same and ours.percent != theirs.percent:
        a, b = (a / 100, b) if ours.percent else (a, b / 100)
        same = a == b
    if not same:
        same = _rounds_to(a, theirs.body)
    return MathVerdict("AC" if same else "WA", "" if same else f"{a} is not {b}"[:200])


def rounding_error(gold: str) -> Fraction | None:
    """Half a unit of the last digit of a decimal gold; None when it is not a rounded decimal."""
    match = re.fullmatch(r"[-+]?\d*\.(\d{2,15})", gold)
    return Fraction(1, 2 * 10 ** len(match[1])) if match else None


def _rounds_to(exact: Fraction, gold: str) -> bool:
    """Whether a fraction without a finite decimal is what a decimal gold was rounded from."""
    rest, error = exact.denominator, rounding_error(gold)
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return error is not None and rest > 1 and abs(exact - Fraction(gold)) <= error
