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
_RELATIONS = {"<": sympy.Lt, r"\lt": sympy.Lt, r"\le": sympy.Le, r"\ne": sympy.Ne}
_RELATIONS |= {">": sympy.Gt, r"\gt": sympy.Gt, r"\ge": sympy.Ge}


def same_region(gold: str, answer: str) -> bool:
    """Whether two regions are equal. Raises Unreadable when either is none, and TooCostly."""
    for side in (gold, answer):
        if len(RELATION.findall(side)) > _MOST_PIECES:
            raise TooCostly("too many intervals")
    try:
        expected, given = region(gold), region(answer)
        return bool(expected == given or sympy.SymmetricDifference(expected, given).is_empty)
    except (TooCostly, Unreadable, MemoryError, OSError, ImportError):
        raise
    except Exception as error:  # sympy's own, of every kind
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
    """Where `left < right`, both linear in one variable or the absolute value of such a formula."""
    sides = [side.args[0] if isinstance(side, sympy.Abs) else side for side in (left, right)]
    variables = left.free_symbols | right.free_symbols
    if left.free_symbols and right.free_symbols:  # the question again, and no answer to it
        raise Unreadable("not solved")
    if len(variables) != 1 or max(sympy.degree(side.doit(), *variables) for side in sides) > 1:
        raise Unreadable("not linear in one variable")
    return _RELATIONS[relation](left.doit(), right.doit()).as_set() & sympy.Reals
