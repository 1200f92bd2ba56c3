r"""Are two answers of any shape equal: shapes first, then sympy on the pieces.

math-verify decides the sets that `regions` cannot represent.
"""

import re
import string
from dataclasses import replace

import sympy

from eval.math_answers.forms import (
    SAID_BETWEEN,
    Form,
    distinct_capitals,
    equation_sides,
    form_of,
    is_name,
)
from eval.math_answers.peer import by_math_verify
from eval.math_answers.reading import TooCostly, Unreadable, parse
from eval.math_answers.regions import RELATION, same_region
from eval.math_answers.values import same_equation, same_value
from eval.math_answers.verify import quick_verdict, rounding_error

_MOST_PIECES = 60
_BASE = re.compile(r"(\(?[0-9A-Fa-f]+\)?)\s*_\s*\{?\s*(\d+|\\text\{[a-z]+\})\s*\}?")
_BASE_NAME = re.compile(r"\\text\s*\{\s*([a-z]+)\s*\}")
_BASES = "two three four five six seven eight nine ten eleven twelve"  # from 2 on
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
    name = match[1].replace("sixteen", "16")
    names = _BASES.split()
    return str(names.index(name) + 2) if name in names else name


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
        if kinds == {"list"} and _assigns(gold) and _assigns(answer):
            return _same_assignments(gold, answer)
        return _same_elements(gold, answer)
    if "list" in kinds or gold.brackets == answer.brackets:
        return _all_same(gold, answer)
    return False


def _all_same(gold: Form, answer: Form) -> bool:
    named = _assigns(gold) and _assigns(answer) and _names(gold) == _names(answer)
    gold, answer = (_in_order(form, named) for form in (gold, answer))
    return len(gold.pieces) == len(answer.pieces) and all(
        map(same, map(value_of, gold.pieces), map(value_of, answer.pieces))
    )


def _in_order(form: Form, named: bool) -> Form:
    """Values of x, y, z in the order of their names, whichever was written first.

    Other letters (m and b of a line) have no order, unless both sides have `named` the same ones.
    """
    if not _assigns(form) or not (named or "".join(_names(form)) in string.ascii_lowercase):
        return form
    return replace(form, pieces=tuple(sorted(form.pieces)))


def _names(form: Form) -> list[str]:
    return sorted(equation_sides(piece)[0] for piece in form.pieces)


def value_of(piece: str) -> str:
    """5 of `x = 5`."""
    sides = equation_sides(piece)
    return sides[-1] if len(sides) > 1 and is_name(sides[0]) else piece


def _assigns(form: Form) -> bool:
    sides = [equation_sides(piece) for piece in form.pieces]
    return all(len(s) == 2 and is_name(s[0]) for s in sides) and len({s[0] for s in sides}) > 1


def _named(form: Form) -> set[str]:
    """The names that equations of a list give values to."""
    sides = (equation_sides(piece) for piece in form.pieces)
    return {side[0].strip() for side in sides if len(side) > 1 and is_name(side[0])}


def _same_assignments(gold: Form, answer: Form) -> bool:
    ours = dict(equation_sides(piece) for piece in answer.pieces)
    theirs = dict(equation_sides(piece) for piece in gold.pieces)
    return ours.keys() == theirs.keys() and all(same(v, ours[k]) for k, v in theirs.items())


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
    values = [side for side in sides[:-1] if not is_name(side)]
    for side in values:
        try:
            formula = parse(side)
        except (Unreadable, TooCostly):
            continue
        if (
            not formula.free_symbols
            and not parse_fails(sides[-1])
            and not same_value(side, sides[-1])
        ):
            return False
    return True


def parse_fails(text: str) -> bool:
    try:
        parse(text)
    except (Unreadable, TooCostly):
        return True
    return False


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
