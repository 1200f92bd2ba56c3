r"""Intervals, unions and inequalities of one variable as sets of reals.

`x < 1 \text{ or } x > 2`, `(-\infty,1) \cup (2,\infty)` and `|x - \frac32| > \frac12` are the same
region. Linear sides and absolute values of them are solved; anything else is Unreadable.
"""

import re
from typing import Any

import sympy

from eval.math_answers.forms import enclosing, split_top
from eval.math_answers.reading import TooCostly, Unreadable, parse

RELATION = re.compile(r"<|>|\\(?:l[et]|g[et]|ne|in)(?![a-z])|\\cup|\\cap|\\setminus|\\mathbb")
_MOST_PIECES = 20
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\bor\b|\\lor\b")
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|\band\b|\\land\b")
_COMPARISON = re.compile(r"(<|>|\\l[et](?![a-z])|\\g[et](?![a-z])|\\ne(?![a-z]))")
_TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\lt": ">", r"\gt": "<"}


def same_region(gold: str, answer: str) -> bool:
    """Whether two regions are equal. Raises Unreadable when either is none, and TooCostly."""
    for side in (gold, answer):
        if len(RELATION.findall(side)) > _MOST_PIECES:
            raise TooCostly("too many intervals")
    try:
        expected, given = region(gold), region(answer)
        return bool(expected == given or sympy.SymmetricDifference(expected, given).is_empty)
    except (ValueError, TypeError, NotImplementedError, AttributeError) as error:
        raise Unreadable("not a region") from error


def region(text: str) -> sympy.Set:
    """The set of reals that the text describes. Raises Unreadable."""
    text = re.sub(r"^\s*[a-zA-Z]\s*\\in\s*", "", text.strip())
    text = re.sub(r"(?<=[)\]}])\s*(?:-|\\backslash)\s*(?=\\\{)", r"\\setminus ", text)
    for separators, combine in (((r"\cup",), sympy.Union), ((r"\cap",), sympy.Intersection)):
        pieces = split_top(text, separators)
        if len(pieces) > 1:
            return combine(*map(region, pieces))
    pieces = _OR.split(text)
    if len(pieces) > 1:
        return sympy.Union(*map(region, pieces))
    pieces = split_top(text)
    if len(pieces) > 1:  # `x < 1, x > 2` are cases, `x < 1, x \ne 0` is a restriction
        restricts = [r"\ne" in piece for piece in pieces]
        combine = sympy.Intersection if any(restricts) else sympy.Union
        return combine(*map(region, pieces))
    pieces = _AND.split(text)
    if len(pieces) > 1:
        return sympy.Intersection(*map(region, pieces))
    return _simple(text)


def _simple(text: str) -> sympy.Set:
    if re.fullmatch(r"\\mathbb\s*\{?R\}?", text):
        return sympy.Reals
    if match := re.fullmatch(r"(.*)\\setminus(.*)", text):
        return region(match[1]) - region(match[2])
    if around := enclosing(text):
        opener, inside, closer = around
        ends = split_top(inside)
        if opener == r"\{":
            return sympy.FiniteSet(*(parse(end).doit() for end in ends))
        if len(ends) == 2 and opener in "([" and closer in ")]":
            low, high = (parse(end).doit() for end in ends)
            return sympy.Interval(low, high, opener == "(", closer == ")")
    if r"\pm" in text and r"\ne" in text:
        return _simple(text.replace(r"\pm", "")) & _simple(text.replace(r"\pm", "-"))
    parts = [part.strip() for part in _COMPARISON.split(text)]
    sides, relations = [parse(side) for side in parts[::2]], parts[1::2]
    if not relations:
        raise Unreadable("not an interval")
    chain = zip(sides, relations, sides[1:], strict=False)
    return sympy.Intersection(*(_inequality(*link) for link in chain))


def _inequality(left: Any, relation: str, right: Any) -> sympy.Set:
    """`left < right`, where one side is a number and the other linear in one variable."""
    if not left.free_symbols:
        left, right, relation = right, left, _TURNED.get(relation, relation)
    if right.free_symbols or len(left.free_symbols) != 1:
        raise Unreadable("not an interval")
    if isinstance(left, sympy.Abs):
        return _absolute(left.args[0], relation, right)
    (variable,) = left.free_symbols
    line = sympy.Poly(left.doit(), variable)
    if line.degree() != 1:
        raise Unreadable("not linear")
    slope, offset = line.all_coeffs()
    bound = (right.doit() - offset) / slope
    if slope.is_negative:
        relation = _TURNED.get(relation, relation)
    if relation == r"\ne":
        return sympy.Reals - sympy.FiniteSet(bound)
    if relation in ("<", r"\lt", r"\le"):
        return sympy.Interval(-sympy.oo, bound, True, relation != r"\le")
    return sympy.Interval(bound, sympy.oo, relation != r"\ge", True)


def _absolute(inside: Any, relation: str, bound: Any) -> sympy.Set:
    if relation == r"\ne":
        parts = (_inequality(inside, relation, value) for value in (bound, -bound))
        return sympy.Intersection(*parts)
    outward = relation in (">", r"\gt", r"\ge")
    parts = (_inequality(inside, relation, bound), _inequality(inside, _TURNED[relation], -bound))
    return (sympy.Union if outward else sympy.Intersection)(*parts)
