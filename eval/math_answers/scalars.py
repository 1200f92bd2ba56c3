r"""Rules for single answers: words and numbers, ratios, arrows, formulas, equations."""

import re
from contextlib import suppress

from . import verify
from .notation import forms
from .notation.forms import equation_sides, form_of, is_name, split_top
from .notation.formulas import (
    TooCostly,
    Unreadable,
    parse,
    same_antiderivative,
    same_equation,
    same_value,
)
from .notation.words import TEXT
from .rules import Context, Rule

_BASE = re.compile(r"(\(?[0-9A-Fa-f]+\)?)\s*_\s*\{?\s*\d+\s*\}?")
_RATIO = re.compile(r"[^:]+(?::[^:]+)+")
_ARROW, _BACKWARDS = r"\to", r"\gets"
_OF_ONE_LETTER = re.compile(r"[a-zA-Z]\s*\(\s*([a-xz])\s*\)")
_WRITTEN_ARROW = re.compile(r"-+>|=+>")


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", re.sub(TEXT, r"\1", text))


def _unfinished(gold: str, answer: str, _: Context) -> bool | None:
    same_text = gold.replace(" ", "") == answer.replace(" ", "")
    return same_text if r"\ldots" in gold + answer else None


def _numeral(gold: str, answer: str, _: Context) -> bool | None:
    """1011_2 has these digits in this base; an answer may leave the base out."""
    if not (_BASE.fullmatch(gold) or _BASE.fullmatch(answer)):
        return None
    packed = (re.sub(r"[{}() ]", "", side) for side in (gold, answer))
    (number, base), (other, other_base) = (side.partition("_")[::2] for side in packed)
    return bool(base) and number.upper() == other.upper() and other_base in (base, "")


def _steps(text: str) -> list[str]:
    """A, B, C of `A \\to B \\to C` and of `C \\gets B \\gets A`; else nothing."""
    text = _WRITTEN_ARROW.sub(r"\\to ", text)
    if len(pieces := split_top(text, (_ARROW,))) > 1:
        return pieces
    backwards = split_top(text, (_BACKWARDS,))
    return backwards[::-1] if len(backwards) > 1 else []


def _arrows(gold: str, answer: str, context: Context) -> bool | None:
    theirs, ours = _steps(gold), _steps(answer)
    if not theirs and not ours:
        return None
    theirs, ours = theirs or list(form_of(gold).pieces), ours or list(form_of(answer).pieces)
    return len(theirs) == len(ours) and all(
        _plain(one) == _plain(other) or (not is_name(one) and context.same(one, other))
        for one, other in zip(theirs, ours, strict=True)
    )


ORDERED_TEXTS = (
    Rule("Unfinished formulas, by their text", _unfinished),
    # Digits of a base are no decimal number, and an arrow is no comparison.
    Rule("Numerals with a base", _numeral),
    Rule("Arrows", _arrows),
)


def _quick(gold: str, answer: str, context: Context) -> bool | None:
    quick = verify.quick_verdict(gold, answer, context.ordering) if gold and answer else None
    return None if quick is None or quick.verdict == "IE" else quick.verdict == "AC"


def _ratio(gold: str, answer: str, _: Context) -> bool | None:
    if not (_RATIO.fullmatch(gold) and _RATIO.fullmatch(answer)):
        return None
    (first, *theirs), (other, *ours) = gold.split(":"), answer.split(":")
    if len(theirs) != len(ours):
        return False
    pairs = zip(theirs, ours, strict=True)
    return all(same_value(rf"({g})\cdot({other})", rf"({a})\cdot({first})") for g, a in pairs)


def _nothing(gold: str, answer: str, _: Context) -> bool | None:
    return None if equation_sides(gold) and equation_sides(answer) else False


def _value(gold: str, answer: str, _: Context) -> bool | None:
    """A value may be named and derived: `x = 2 + 3 = 5` is 5."""
    theirs, ours = equation_sides(gold), equation_sides(answer)
    if len(theirs) > 1:
        return None
    digits = verify.rounding_error(theirs[0])
    return _consistent(ours) and (
        same_value(theirs[0], ours[-1], digits) or same_antiderivative(theirs[0], ours[-1])
    )


def _named_value(gold: str, answer: str, context: Context) -> bool | None:
    theirs, ours = equation_sides(gold), equation_sides(answer)
    return None if len(ours) > 1 else is_name(theirs[0]) and context.same(theirs[-1], ours[0])


def _same_name(gold: str, answer: str, context: Context) -> bool | None:
    """`y` and `y(x)` are one name, and y = 2x is f(x) = 2x; equal values of one name are equal."""
    theirs, ours = equation_sides(gold), equation_sides(answer)
    short, long = sorted((theirs[0].strip(), ours[0].strip()), key=len)
    if not (is_name(short) and is_name(long)):
        return None
    point = _OF_ONE_LETTER.fullmatch(long)
    is_curve = point and short == "y" and point[1] in theirs[-1] and point[1] in ours[-1]
    if not is_curve and not f"{long}(".startswith(f"{short}("):
        return None
    if _consistent(ours) and context.same(theirs[-1], ours[-1]):
        return True
    return None if short == long else False


def _equation(gold: str, answer: str, _: Context) -> bool:
    theirs, ours = equation_sides(gold), equation_sides(answer)
    return same_equation((theirs[0], theirs[-1]), (ours[0], ours[-1]))


def _consistent(sides: list[str]) -> bool:
    """In `x = 3 = 4` the numbers contradict each other."""
    for side in sides[:-1]:
        with suppress(Unreadable, TooCostly):
            is_number = not is_name(side) and not parse(side).free_symbols
            if is_number and not same_value(side, sides[-1]):
                return False
    return True


RULES = (
    # What needs no sympy comes first: most answers end here.
    Rule("Integers, fractions, decimals, words", _quick),
    # A ratio is scaled as a whole and would be read as a quotient below.
    Rule("Ratios", _ratio),
    Rule("An empty side", _nothing),
    # From the plain value to the equation: each rule takes what has one more sign of equality.
    Rule("Values and formulas", _value),
    Rule("A value with a name", _named_value),
    Rule("Values of one name", _same_name),
    Rule("Equations", _equation),
)


def same_scalar(gold: str, answer: str, context: Context) -> bool:
    for rule in RULES:
        if (decision := rule.decide(gold, answer, context)) is not None:
            return decision
        if rule.decide is _quick:  # letters in both cases matter to formulas, and not to words
            gold, answer = forms.distinct_capitals(gold, answer)
    return False
