"""Make-the-target problems: an expression that uses exactly the given numbers and has the value.

"Make 24 from 3, 7, 9": the boxed expression may use + − × ÷ and parentheses, each number once.
The value is exact (fractions), and nothing is evaluated by Python or sympy.
"""

import ast
import operator
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
_ALLOWED = re.compile(r"[-+*/()\d\s]*", re.ASCII)
_LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")  # Python reads no 07
_MAX_CHARACTERS = 2000
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def verify_countdown(answer: str, target: str, numbers: Sequence[int]) -> MathVerdict:
    """Whether `answer`, an expression or `expression = target`, uses every number once and equals
    `target` (IE: no number).
    """
    try:
        goal = Fraction(target.strip())
    except (ValueError, ZeroDivisionError):
        return MathVerdict("IE", f"the target {target!r} is not a number")
    used: list[int] = []
    try:
        expression, equals, stated = _plain(answer).partition("=")
        value = _value(_parsed(expression), used)
        if equals and (_value(_parsed(stated), []) != goal or value != goal):
            raise ValueError("the stated equation does not hold")
    except (ValueError, ZeroDivisionError, RecursionError, MemoryError) as error:
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
    return answer.translate(str.maketrans("{[]}", "(())"))


def _parsed(text: str) -> ast.expr:
    if not _ALLOWED.fullmatch(text):
        raise ValueError(f"unexpected text in {text[:40]!r}")
    try:
        return ast.parse(_LEADING_ZEROS.sub("", " ".join(text.split())), mode="eval").body
    except SyntaxError as error:
        raise ValueError(error.msg) from error


def _value(node: ast.expr, used: list[int]) -> Fraction:
    """The exact value; the numbers in it are added to `used`."""
    match node:
        case ast.Constant(int(number)):
            used.append(number)
            return Fraction(number)
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left, used), _value(right, used))
        case ast.UnaryOp(operation, operand) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(operand, used))
    raise ValueError("unexpected operation")
