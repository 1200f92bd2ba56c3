"""Is this output the expected one? Trusted code, outside the sandbox, on bytes it does not trust.

Text is compared line by line and token by token, as contest checkers do:
- blank space at either end of the output and of every line does not matter, line breaks do;
- numbers that are equal are equal (`7.0` and `7`, `1e3` and `1000`), compared as exact decimals;
  a string of digits is no number: what no program prints for one (`0101`, `+7`, `-0`, `1e5`) is
  compared as text;
- where the *expected* number is written as a real (`0.3`), 1e-6 absolute or relative is allowed;
  an expected integer never has a tolerance.
Returned values are compared as JSON: tuples count as lists, and the same rule holds for reals.

Where all tests of a problem expect nothing but yes and no, letters may be of either case, as
contests allow: `YES` answers `Yes`.

Two other rules can be chosen: `same_tokens`, where line breaks are spaces like any other, and
LiveCodeBench's own in `eval.programs.lcb_runner`. `equal_json` is the `==` of tests.
"""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from typing import Any

from ..records import StdinCase, TestSuite

TOLERANCE = 1e-6
_YES_NO = ({"yes"}, {"no"}, {"yes", "no"})
_MAX_REAL_TOKEN = 400  # characters; longer tokens are compared as text
_WHOLE, _POWER = r"(?:0|[1-9]\d*+)", r"[eE][+-]?\d{1,6}"
_INTEGER = re.compile(r"0|-?[1-9]\d*+", re.ASCII)
# A power of ten behind an integer has its sign, as in `1e-05`: `1e5` may be hexadecimal.
_REAL = re.compile(rf"-?(?:{_WHOLE}?\.\d++(?:{_POWER})?|[1-9][eE][+-]\d{{1,6}})", re.ASCII)
_NUMBER = re.compile(rf"-?(?:{_WHOLE}(?:\.\d*+)?|\.\d++)(?:{_POWER})?", re.ASCII)
_MOST_DIGITS = 50_000  # of a returned integer, as many as a program may write out


def same_text(actual: str, expected: str) -> bool:
    return same_lines(actual, expected, _same_line)


def same_lines(actual: str, expected: str, same_line: Callable[[str, str], bool]) -> bool:
    """Whether two texts have the same lines, without the space around the whole."""
    actual, expected = actual.strip(), expected.strip()
    if actual == expected:
        return True
    ours, theirs = actual.split("\n"), expected.split("\n")
    return len(ours) == len(theirs) and all(map(same_line, ours, theirs))


def same_tokens(actual: str, expected: str) -> bool:
    """Like `same_text`, wherever the lines break."""
    return _same_line(" ".join(actual.split()), " ".join(expected.split()))


def answers_yes_or_no(suite: TestSuite) -> bool:
    outputs = (c.output for c in suite.cases if isinstance(c, StdinCase))
    return suite.kind == "stdin" and all({*o.lower().split()} in _YES_NO for o in outputs)


def same_in_either_case(same: Callable[[str, str], bool], actual: str, expected: str) -> bool:
    return same(actual.lower(), expected.lower())


def _same_line(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    ours, theirs = actual.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_token, ours, theirs))


def _same_token(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    is_real = _REAL.fullmatch(expected)
    if not (is_real or _INTEGER.fullmatch(expected)) or not _NUMBER.fullmatch(actual):
        return False
    ours, theirs = Decimal(actual), Decimal(expected)
    if ours == theirs:
        return True
    if not is_real or len(expected) > _MAX_REAL_TOKEN:
        return False
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 50, MAX_EMAX, MIN_EMIN  # 99e999999 has a place
        return abs(ours - theirs) <= Decimal(TOLERANCE) * max(1, abs(theirs))


def same_value(actual: Any, expected: Any) -> bool:
    """Whether a returned JSON value is the expected one. `True == 1`, as in Python."""
    match actual, expected:
        case list(), list():
            return len(actual) == len(expected) and all(map(same_value, actual, expected))
        case dict(), dict():
            same_keys = actual.keys() == expected.keys()
            return same_keys and all(same_value(actual[key], expected[key]) for key in expected)
        case int(), float() if abs(actual) > 2**1000:
            return False
        case int() | float(), float():
            close = math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            return close or (math.isnan(actual) and math.isnan(expected))
    return bool(actual == expected)


def same_json(actual: bytes, expected: Any) -> bool:
    """`same_value` of untrusted JSON text; text that is no JSON is not the expected value."""
    for parse_int in (None, _integer):  # for an integer beyond the interpreter's own limit
        with suppress(ValueError, RecursionError):
            return same_value(json.loads(actual, parse_int=parse_int), expected)
    return False


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("too many digits")
    return int(Decimal(digits))


def equal_json(actual: bytes, expected: Any) -> bool:
    """Whether untrusted JSON text is a value equal to the expected one, without a tolerance."""
    with suppress(ValueError, RecursionError):
        return bool(json.loads(actual) == expected)
    return False


def equal_packed(actual: bytes, expected: Any) -> bool | None:
    """Whether untrusted JSON text is what `values.pack` makes of an equal value; None where two
    texts may stand for equal values, as those of sets do."""
    if equal_json(actual, expected):
        return True
    return None if b"{" in actual or "{" in json.dumps(expected) else False
