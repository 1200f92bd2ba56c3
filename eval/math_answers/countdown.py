"""Make-the-target problems: an expression that uses exactly the given numbers and has the value.

"Make 24 from 3, 7, 9": the boxed expression may use + − × ÷ and parentheses, each number once.
The value is exact (fractions), and nothing is evaluated by Python or sympy.
"""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from eval.math_answers.verify import MathVerdict

_LATEX = (
    (re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|\$|~"), ""),
    (re.compile(r"\\times|\\cdot|\\ast|[×·\N{ASTERISK OPERATOR}]"), "*"),
    (re.compile(r"\\div|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_TOKEN = re.compile(r"\s*(?:(\d+)|([-+*/()=]))", re.ASCII)
_MAX_CHARACTERS = 2000


def verify_countdown(answer: str, target: str, numbers: Sequence[int]) -> MathVerdict:
    """Whether `answer` uses every number once and equals `target` (IE: no number)."""
    try:
        goal = Fraction(target.strip())
    except (ValueError, ZeroDivisionError):
        return MathVerdict("IE", f"the target {target!r} is not a number")
    try:
        value, used = _evaluate(_plain(answer), goal)
    except (ValueError, ZeroDivisionError, RecursionError) as error:
        return MathVerdict("WA", f"not an expression: {error}")
    if Counter(used) != Counter(numbers):
        return MathVerdict("WA", "the numbers are not used exactly once each")
    if value != goal:
        return MathVerdict("WA", f"the value is {value}, not {goal}")
    return MathVerdict("AC", "")


def _plain(answer: str) -> str:
    if len(answer) > _MAX_CHARACTERS:
        raise ValueError("too long")
    for pattern, replacement in _LATEX:
        answer = pattern.sub(replacement, answer)
    before = None
    while before != answer:
        before, answer = answer, _FRACTION.sub(r"((\1)/(\2))", answer)
    return answer.replace("{", "(").replace("}", ")").replace("[", "(").replace("]", ")")


def _evaluate(text: str, goal: Fraction) -> tuple[Fraction, list[int]]:
    """Value and numbers of `expression` or `expression = target`."""
    parser = _Parser(text)
    value = parser.sum()
    used = list(parser.used)
    if parser.peek() == "=":
        parser.next()
        if parser.sum() != goal or value != goal:
            raise ValueError("the stated equation does not hold")
    if parser.peek() is not None:
        raise ValueError(f"unexpected {parser.peek()!r}")
    return value, used


class _Parser:
    """sum := product (± product)*; product := factor (×÷ factor)*; factor := ± factor | ( ) | n."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.used: list[int] = []
        position, text = 0, text.strip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"unexpected {text[position : position + 10]!r}")
            self.tokens.append(match[1] or match[2])
            position = match.end()
        self.tokens.reverse()

    def peek(self) -> str | None:
        return self.tokens[-1] if self.tokens else None

    def next(self) -> str:
        if not self.tokens:
            raise ValueError("it ends too early")
        return self.tokens.pop()

    def sum(self) -> Fraction:
        value = self.product()
        while self.peek() in ("+", "-"):
            value += self.product() if self.next() == "+" else -self.product()
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self.peek() in ("*", "/"):
            value = value * self.factor() if self.next() == "*" else value / self.factor()
        return value

    def factor(self) -> Fraction:
        token = self.next()
        if token in "+-":
            return self.factor() if token == "+" else -self.factor()
        if token == "(":
            value = self.sum()
            if self.next() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if not token.isdigit():
            raise ValueError(f"unexpected {token!r}")
        self.used.append(int(token))
        return Fraction(int(token))
