r"""Math judging in a worker: shapes first, then sympy on the pieces, math-verify on the rest.

math-verify's own time limits are off: they are alarms that the main loop of C code never sees. The
worker has a memory limit and is killed from outside.
"""

import re
import time
from collections.abc import Callable

import math_verify
import sympy

from eval.math_forms import Form, enclosing, equation_sides, form_of, is_name, split_top
from eval.math_values import TooCostly, Unreadable, parse, same_equation, same_value
from eval.verify_math import MathVerdict, Spelled, quick_verdict, rounding_error, spell

_MOST_PIECES = 60
_RELATION = re.compile(r"<|>|\\(?:l[et]|g[et]|ne|in)(?![a-z])|\\cup|\\cap|\\setminus|\\mathbb")
_BASE = re.compile(r"([0-9A-Fa-f]+)\s*_\s*\{?\s*(\d+|\\text\{[a-z]+\})\s*\}?")
_CONDITION = re.compile(  # 2k\pi, k \in \mathbb{Z}
    r"[,;(]?\s*(?:\\text\s*\{\s*(?:where|for)\s*\}|where|for)?\s*"
    r"(?<![A-Za-z\\])[A-Za-z]\s*\\in\s*\\mathbb\s*\{?[ZNQ]\}?\)?$"
)
_RATIO = re.compile(r"[^:]+(?::[^:]+)+")


def run(gold: str, answer: str) -> MathVerdict:
    """The verdict on one answer; IE when the gold cannot be read."""
    started = time.perf_counter()
    try:
        same = _same_spelled(spell(gold), spell(answer))
        verdict = MathVerdict("AC" if same else "WA", "" if same else "not equal to the gold")
    except TooCostly as error:
        verdict = MathVerdict("IE" if _is_costly(gold) else "WA", f"not evaluated: {error}")
    except Unreadable:
        verdict = _second_opinion(gold, answer)
    return MathVerdict(verdict.verdict, verdict.reason, time.perf_counter() - started)


def _is_costly(gold: str) -> bool:
    """Whether it is the gold that cannot be evaluated: a data error, nobody's wrong answer."""
    try:
        for piece in form_of(spell(gold).body).pieces:
            parse((equation_sides(piece) or [piece])[-1])
    except TooCostly:
        return True
    except Unreadable:
        return False
    return False


def _second_opinion(gold: str, answer: str) -> MathVerdict:
    """math-verify on a gold that we cannot read; unscored when it cannot either."""
    try:
        same = _math_verify(spell(gold).body, spell(answer).body)
    except Unreadable:
        return MathVerdict("IE", f"the gold answer cannot be read: {gold[:80]}")
    return MathVerdict("AC" if same else "WA", "by math-verify")


def _same_spelled(gold: Spelled, answer: Spelled) -> bool:
    if _same(gold.body, answer.body):
        return True
    if gold.percent != answer.percent:
        scaled = [rf"\frac{{{s.body}}}{{100}}" if s.percent else s.body for s in (gold, answer)]
        return _same(*scaled)
    if gold.degrees != answer.degrees:
        turned = [rf"\frac{{{s.body}\pi}}{{180}}" if s.degrees else s.body for s in (gold, answer)]
        return _same(*turned)
    return False


def _same(gold: str, answer: str) -> bool:
    """Compare two answers of any shape."""
    gold, answer = (_CONDITION.sub("", side) or side for side in (gold, answer))
    if r"\ldots" in gold + answer:
        return gold.replace(" ", "") == answer.replace(" ", "")
    bases = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if any(bases):
        return _same_numeral(gold, answer)
    if _RELATION.search(gold) or _RELATION.search(answer):
        return _same_region(gold, answer)
    expected, given = form_of(gold), form_of(answer)
    if expected.kind == given.kind == "scalar":
        return _same_scalar(expected.pieces[0], given.pieces[0])
    return _same_collection(expected, given)


def _same_numeral(gold: str, answer: str) -> bool:
    """1011_2 has these digits in this base; an answer may leave the base out."""
    digits, _, base = gold.partition("_")
    other, _, other_base = answer.partition("_")
    strip = str.maketrans("", "", "{} ")
    same_base = base.translate(strip) == other_base.translate(strip) or not other_base
    return bool(base) and digits.strip().upper() == other.strip().upper() and same_base


def _same_collection(gold: Form, answer: Form) -> bool:
    if max(len(gold.pieces), len(answer.pieces)) > _MOST_PIECES:
        return gold.pieces == answer.pieces
    kinds = {gold.kind, answer.kind}
    if "matrix" in kinds:
        vector = gold.brackets[0] == "1" or gold.brackets[0] == gold.brackets[1]
        if kinds != {"matrix"} and not (kinds == {"matrix", "tuple"} and vector):
            return False
        if kinds == {"matrix"} and gold.brackets != answer.brackets:
            return False
        return _all_same(gold, answer)
    if kinds <= {"list", "set", "scalar"}:
        if kinds == {"list"} and _assigns(gold) and _assigns(answer):
            return _same_assignments(gold, answer)
        return _same_elements(gold, answer)
    if "list" in kinds or gold.brackets == answer.brackets:
        return _all_same(gold, answer)
    return False


def _all_same(gold: Form, answer: Form) -> bool:
    return len(gold.pieces) == len(answer.pieces) and all(
        map(_same, map(_value, gold.pieces), map(_value, answer.pieces))
    )


def _value(piece: str) -> str:
    """5 of `x = 5`."""
    sides = equation_sides(piece)
    return sides[-1] if len(sides) > 1 and is_name(sides[0]) else piece


def _assigns(form: Form) -> bool:
    sides = [equation_sides(piece) for piece in form.pieces]
    return all(len(s) == 2 and is_name(s[0]) for s in sides) and len({s[0] for s in sides}) > 1


def _same_assignments(gold: Form, answer: Form) -> bool:
    ours = dict(equation_sides(piece) for piece in answer.pieces)
    theirs = dict(equation_sides(piece) for piece in gold.pieces)
    return ours.keys() == theirs.keys() and all(_same(v, ours[k]) for k, v in theirs.items())


def _same_elements(gold: Form, answer: Form) -> bool:
    """As sets: every element of one side is on the other."""
    theirs, ours = [*map(_value, gold.pieces)], [*map(_value, answer.pieces)]
    unmatched = list(ours)
    for element in theirs:
        found = [other for other in ours if _same(element, other)]
        if not found:
            return False
        unmatched = [other for other in unmatched if other not in found]
    return not unmatched


def _same_scalar(gold: str, answer: str) -> bool:
    quick = quick_verdict(gold, answer) if gold and answer else None
    if quick is not None and quick.verdict != "IE":
        return quick.verdict == "AC"
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
        return is_name(theirs[0]) and same_value(theirs[-1], ours[0])
    if theirs[0] == ours[0] and is_name(ours[0]):
        return _consistent(ours) and same_value(theirs[-1], ours[-1])
    return same_equation((theirs[0], theirs[-1]), (ours[0], ours[-1]))


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
    """Intervals, unions and inequalities as sets of reals; math-verify for what is neither."""
    try:
        expected, given = _region(gold), _region(answer)
    except (Unreadable, ValueError, TypeError, NotImplementedError):
        return _math_verify(gold, answer)
    return bool(expected == given or sympy.SymmetricDifference(expected, given).is_empty)


def _region(text: str) -> sympy.Set:
    text = re.sub(r"^\s*[a-zA-Z]\s*\\in\s*", "", text.strip())
    for separators, combine in (
        ((r"\cup",), sympy.Union),
        ((r"\cap",), sympy.Intersection),
    ):
        pieces = split_top(text, separators)
        if len(pieces) > 1:
            return combine(*map(_region, pieces))
    pieces = re.split(r"\\text\s*\{\s*or\s*\}|\bor\b|\\lor\b", text)
    pieces = pieces if len(pieces) > 1 else split_top(text)
    if len(pieces) > 1:
        return sympy.Union(*map(_region, pieces))
    pieces = re.split(r"\\text\s*\{\s*and\s*\}|\band\b|\\land\b", text)
    if len(pieces) > 1:
        return sympy.Intersection(*map(_region, pieces))
    return _simple_region(text)


def _simple_region(text: str) -> sympy.Set:
    if re.fullmatch(r"\\mathbb\s*\{?R\}?", text):
        return sympy.Reals
    if match := re.fullmatch(r"(.*)\\setminus(.*)", text):
        return _region(match[1]) - _region(match[2])
    around = enclosing(text)
    if around:
        opener, inside, closer = around
        ends = split_top(inside)
        if opener == r"\{":
            return sympy.FiniteSet(*(parse(end).doit() for end in ends))
        if len(ends) == 2 and opener in "([" and closer in ")]":
            low, high = (parse(end).doit() for end in ends)
            return sympy.Interval(low, high, opener == "(", closer == ")")
    parts = re.split(r"(<|>|\\l[et](?![a-z])|\\g[et](?![a-z])|\\ne(?![a-z]))", text)
    return _inequality([part.strip() for part in parts])


def _inequality(parts: list[str]) -> sympy.Set:
    """`a < x \\le b` as an interval; every second part is a relation."""
    sides, relations = parts[::2], parts[1::2]
    names = [i for i, side in enumerate(sides) if is_name(side)]
    if len(names) != 1 or not relations:
        raise Unreadable("not an interval")
    region: sympy.Set = sympy.Reals
    for i, relation in enumerate(relations):
        if names[0] not in (i, i + 1):
            raise Unreadable("not an interval")
        bound = parse(sides[i + 1] if names[0] == i else sides[i]).doit()
        below = (relation in ("<", r"\le", r"\lt")) == (names[0] == i)
        strict = relation in ("<", ">", r"\lt", r"\gt")
        if relation == r"\ne":
            region -= sympy.FiniteSet(bound)
        elif below:
            region &= sympy.Interval(-sympy.oo, bound, True, strict)
        else:
            region &= sympy.Interval(bound, sympy.oo, strict, True)
    return region


def _math_verify(gold: str, answer: str) -> bool:
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    read: Callable[[str], list] = lambda text: math_verify.parse(  # noqa: E731
        f"${text}$", config, parsing_timeout=0, raise_on_error=False
    )
    expected = [value for value in read(gold) if not isinstance(value, str)]
    if not expected:
        raise Unreadable(gold[:80])
    return math_verify.verify(
        expected, read(answer), numeric_precision=200, timeout_seconds=0, raise_on_error=False
    )
