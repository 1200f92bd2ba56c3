r"""Are two answers of any shape equal: shapes first, then sympy on the pieces.

math-verify decides the sets that `regions` cannot represent.
"""

import logging
import re
import string
from contextlib import suppress
from dataclasses import replace

import math_verify
import sympy
from sympy import Expr

from eval.math_answers.forms import (
    SAID_BETWEEN,
    Form,
    distinct_capitals,
    equation_sides,
    form_of,
    is_name,
)
from eval.math_answers.reading import TooCostly, Unreadable, parse
from eval.math_answers.regions import RELATION, same_region
from eval.math_answers.values import same_equation, same_value
from eval.math_answers.verify import quick_verdict, rounding_error
from eval.math_answers.words import NUMBER_WORDS

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off

_MOST_PIECES = 60
_BASE = re.compile(r"(\(?[0-9A-Fa-f]+\)?)\s*_\s*\{?\s*(\d+|\\text\{[a-z]+\})\s*\}?")
_BASE_NAME = re.compile(r"\\text\s*\{\s*([a-z]+)\s*\}")
_CONDITION = re.compile(  # 2k\pi, k \in \mathbb{Z}
    r"[,;(]?\s*(?:\\text\s*\{\s*(?:where|for)\s*\}|where|for)?\s*"
    r"(?<![A-Za-z\\])[A-Za-z]\s*\\in\s*\\mathbb\s*\{?[ZNQ]\}?\)?$"
    r"|(?:\\text\s*\{\s*for (?:all|any|every|each)\s*\}|\\forall)\s*[A-Za-z]\s*$"
)
_RATIO = re.compile(r"[^:]+(?::[^:]+)+")


def same(gold: str, answer: str) -> bool:
    """Compare two answers of any shape."""
    gold, answer = (_CONDITION.sub("", side) or side for side in (gold, answer))
    if r"\ldots" in gold + answer:
        return gold.replace(" ", "") == answer.replace(" ", "")
    bases = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if any(bases):
        return _same_numeral(gold, answer)
    if RELATION.search(gold) or RELATION.search(answer):
        return _same_region(gold, answer)
    expected, given = form_of(gold), form_of(answer)
    if expected.kind != given.kind:  # P = (1,2) is (1,2)
        expected, given = _form_of_value(expected), _form_of_value(given)
    if expected.kind == given.kind == "scalar":
        return _same_scalar(expected.pieces[0], given.pieces[0])
    return _same_collection(expected, given)


def _form_of_value(form: Form) -> Form:
    return form_of(value_of(form.pieces[0])) if form.kind == "scalar" else form


def _same_numeral(gold: str, answer: str) -> bool:
    """1011_2 has these digits in this base; an answer may leave the base out."""
    gold, answer = (_BASE_NAME.sub(_base_digits, side) for side in (gold, answer))
    digits, _, base = gold.partition("_")
    other, _, other_base = answer.partition("_")
    strip = str.maketrans("", "", "{}() ")
    same_base = base.translate(strip) == other_base.translate(strip) or not other_base
    same_digits = digits.translate(strip).upper() == other.translate(strip).upper()
    return bool(base) and same_digits and same_base


def _base_digits(match: re.Match[str]) -> str:
    return str(NUMBER_WORDS.index(match[1])) if match[1] in NUMBER_WORDS else match[1]


def _same_collection(gold: Form, answer: Form) -> bool:
    if max(len(gold.pieces), len(answer.pieces)) > _MOST_PIECES:
        return gold.pieces == answer.pieces
    kinds = {gold.kind, answer.kind}
    if kinds == {"matrix", "scalar"} and any(
        r"\begin" in side.pieces[0] for side in (gold, answer) if side.kind == "scalar"
    ):
        raise Unreadable("a matrix in a formula")
    if "matrix" in kinds:
        rows, cells = (gold if gold.kind == "matrix" else answer).brackets
        vector = rows in ("1", cells)
        if kinds != {"matrix"} and not (kinds == {"matrix", "tuple"} and vector):
            return False
        if kinds == {"matrix"} and gold.brackets != answer.brackets:
            return False
        return _all_same(gold, answer)
    if kinds == {"set", "scalar"} and r"\emptyset" in (*gold.pieces, *answer.pieces):
        return False  # the set that holds the empty set is not empty
    if kinds <= {"list", "set", "scalar"}:
        theirs, ours = _assignments(gold), _assignments(answer)
        if kinds == {"list"} and theirs and ours:
            return theirs.keys() == ours.keys() and all(same(theirs[n], ours[n]) for n in theirs)
        return _same_elements(gold, answer)
    if "list" in kinds or gold.brackets == answer.brackets:
        return _all_same(gold, answer)
    return False


def _all_same(gold: Form, answer: Form) -> bool:
    same_names = _assignments(gold).keys() == _assignments(answer).keys()
    gold, answer = (_in_order(form, same_names) for form in (gold, answer))
    return len(gold.pieces) == len(answer.pieces) and all(
        map(same, map(value_of, gold.pieces), map(value_of, answer.pieces))
    )


def _in_order(form: Form, same_names: bool) -> Form:
    """Values of x, y, z in the order of their names, whichever was written first.

    Other letters (m and b of a line) have no order, unless both sides have the `same_names`.
    """
    names = "".join(sorted(_assignments(form)))
    ordered = names and (same_names or names in string.ascii_lowercase)
    return replace(form, pieces=tuple(sorted(form.pieces))) if ordered else form


def value_of(piece: str) -> str:
    """5 of `x = 5`."""
    sides = equation_sides(piece)
    return sides[-1] if len(sides) > 1 and is_name(sides[0]) else piece


def _assignments(form: Form) -> dict[str, str]:
    """The values of `x = 1, y = 2` by name; empty where they are not of different names."""
    sides = [equation_sides(piece) for piece in form.pieces]
    assigned = {side[0]: side[-1] for side in sides if len(side) == 2 and is_name(side[0])}
    return assigned if 1 < len(assigned) == len(sides) else {}


def _named(form: Form) -> set[str]:
    """The names that equations of a list give values to."""
    sides = (equation_sides(piece) for piece in form.pieces)
    return {side[0].strip() for side in sides if len(side) > 1 and is_name(side[0])}


def _same_elements(gold: Form, answer: Form) -> bool:
    """As sets: every element of one side is on the other. Values of x are none of y."""
    names, others = _named(gold), _named(answer)
    if names and others and names != others:
        return False
    theirs, ours = [*map(value_of, gold.pieces)], [*map(value_of, answer.pieces)]
    unmatched = list(ours)
    for element in theirs:
        found = [other for other in ours if same(element, other)]
        if not found:
            return False
        unmatched = [other for other in unmatched if other not in found]
    return not unmatched


def _same_scalar(gold: str, answer: str) -> bool:
    quick = quick_verdict(gold, answer) if gold and answer else None
    if quick is not None and quick.verdict != "IE":
        return quick.verdict == "AC"
    if SAID_BETWEEN.search(gold):
        return _same_said(gold, answer)
    gold, answer = distinct_capitals(gold, answer)
    if _RATIO.fullmatch(gold) and _RATIO.fullmatch(answer):
        return _same_ratio(gold.split(":"), answer.split(":"))
    theirs, ours = equation_sides(gold), equation_sides(answer)
    if not ours or not theirs:
        return False
    if len(theirs) == 1:
        error = rounding_error(theirs[0])
        rounded = sympy.Rational(error) if error is not None else None
        return _consistent(ours) and same_value(theirs[0], ours[-1], rounded)
    if len(ours) == 1:
        return is_name(theirs[0]) and same(theirs[-1], ours[0])
    if theirs[0] == ours[0] and is_name(ours[0]):
        return _consistent(ours) and same(theirs[-1], ours[-1])
    return same_equation((theirs[0], theirs[-1]), (ours[0], ours[-1]))


def _same_said(gold: str, answer: str) -> bool:
    r"""`7\text{ remainder }3`: the same words between the same values."""
    words, others = (
        [m[1].split() for m in SAID_BETWEEN.finditer(side.casefold())] for side in (gold, answer)
    )
    values = (SAID_BETWEEN.sub("\0", side).split("\0") for side in (gold, answer))
    return words == others and all(same(a, b) for a, b in zip(*values, strict=True))


def _consistent(sides: list[str]) -> bool:
    """In `x = 3 = 4` the numbers contradict each other."""
    *before, last = sides
    formulas = [(side, _formula(side)) for side in before if not is_name(side)]
    numbers = [
        side for side, formula in formulas if formula is not None and not formula.free_symbols
    ]
    return _formula(last) is None or all(same_value(number, last) for number in numbers)


def _formula(text: str) -> Expr | None:
    with suppress(Unreadable, TooCostly):
        return parse(text)
    return None


def _same_ratio(gold: list[str], answer: list[str]) -> bool:
    if len(gold) != len(answer):
        return False
    pairs = zip(gold[1:], answer[1:], strict=True)
    return all(same_value(rf"({g})\cdot({answer[0]})", rf"({a})\cdot({gold[0]})") for g, a in pairs)


def _same_region(gold: str, answer: str) -> bool:
    try:
        return same_region(gold, answer)
    except Unreadable:
        return by_math_verify(gold, answer)


def by_math_verify(gold: str, answer: str) -> bool:
    """math-verify's opinion. Raises Unreadable for the gold and TooCostly for the answer."""
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    quiet = {"parsing_timeout": 0, "raise_on_error": False}
    expected = math_verify.parse(f"${gold}$", config, **quiet)
    expected = [value for value in expected if not isinstance(value, str)]
    if not expected:
        raise Unreadable(gold[:80])
    with suppress(Unreadable):  # TooCostly for a formula that it would evaluate for ever
        parse(answer)
    given = math_verify.parse(f"${answer}$", config, **quiet)
    return math_verify.verify(
        expected, given, numeric_precision=200, timeout_seconds=0, raise_on_error=False
    )
