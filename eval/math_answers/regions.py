r"""Rules for inequalities, intervals and sets of real numbers: `x < 1 \text{ or } x > 2` and `|x -
\frac32| > \frac12` are one. Linear sides and absolute values of them are solved; math-verify
decides the other sets."""

import re
from typing import Any

import sympy

from .notation import forms
from .notation.forms import form_of, is_name
from .notation.formulas import TooCostly, Unreadable, parse
from .notation.words import TEXT
from .rules import Context, Rule
from .shapes import same_elements, value_of

OF_REGIONS = re.compile(r"<|>|\\(?:le|ge|ne|in)(?![a-z])|\\cup|\\cap|\\setminus|\\mathbb")
_MOST_INTERVALS = 20
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\bor\b|\\lor\b")
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|\band\b|\\land\b")
_COMPARISON = re.compile(r"(<|>|\\(?:le|ge|ne)(?![a-z]))")
_COMPARISONS = {"<": sympy.Lt, r"\le": sympy.Le, r"\ne": sympy.Ne, ">": sympy.Gt, r"\ge": sympy.Ge}
_CHAIN = re.compile(r"\s*(<|>|=|\\(?:le|ge)(?![a-z]))\s*")
_UPWARDS = {">": "<", r"\ge": r"\le", "=": "="}
_LOGIC = re.compile(
    r"\\(?:in|ne|cup|cap|setminus|mathbb|lor|land)(?![a-z])|[,;|]|\b(?:or|and|if)\b"
)
_LINK = re.compile(
    r"<|>|\\(?:le|ge|ne|in|cup|cap|lor|land)(?![a-z])|=(?=\s*(?:[-\d]|\\(?:frac|sqrt)))"
    rf"|{TEXT}|\b(?:or|and|if)\b|[,;|]"
)
_FIELD = re.compile(r"\\mathbb\s*\{?\s*([A-Z]+)\s*\}?")
_RELATES = re.compile(
    r"[<>=,;]|\\\{|\\(?:in|ne|le|ge|c[au]p|setminus|backslash|ldots|text)(?![a-z])"
)
_MEASURED = re.compile(  # P(X > 2) =, |A \cap B| =
    r"\s*(?:(?:\\Pr|\\mathbb\s*\{?P\}?|P)\s*[(\[][^=]*[)\]]|\|?\s*[A-Z](?:\s*\\c[au]p\s*[A-Z])+\s*\|?)\s*="
)
_ALL_BUT = re.compile(r"[a-zA-Z]\s*\\ne\s*([^=]*,[^=]*)")
_ONE_VALUE = re.compile(r"[a-zA-Z]\s*=\s*([^=a-zA-Z,;]+|\\(?:frac|sqrt)[^=a-zA-Z,;]+)")


def _variables(text: str) -> set[str]:
    """The letters that are compared: x and y of `x < 1 or y > 2`, no region of reals."""
    sides = (side.strip() for side in _LINK.split(text) if side)
    return {side for side in sides if re.fullmatch("[a-zA-Z]", side)} - {"e"}


def _too_many(gold: str, answer: str, _: Context) -> None:
    if max(len(OF_REGIONS.findall(side)) for side in (gold, answer)) > _MOST_INTERVALS:
        raise TooCostly("too many intervals")


def _chain_of(text: str) -> tuple[list[list[str]], list[str]] | None:
    """Groups of equals, smallest first, and the relations between them; None for no chain."""
    parts = _CHAIN.split(re.sub(TEXT, r" \1 ", text))
    sides, relations = [side.strip() for side in parts[::2]], parts[1::2]
    if _LOGIC.search(text) or not relations or "" in sides:
        return None
    directions = {relation in _UPWARDS for relation in relations if relation != "="}
    if len(directions) != 1:
        return None
    if directions == {True}:
        sides, relations = sides[::-1], [_UPWARDS[relation] for relation in relations[::-1]]
    groups, between = [[sides[0]]], list[str]()
    for relation, side in zip(relations, sides[1:], strict=True):
        if relation == "=":
            groups[-1].append(side)
        else:
            groups.append([side])
            between.append(relation)
    return groups, between


def _chain(gold: str, answer: str, context: Context) -> bool | None:
    """Orders of names and numbers; one variable between numbers is an interval."""
    chains = _chain_of(gold), _chain_of(answer)
    if None in chains:
        return None
    (theirs, relations), (ours, others) = (chain for chain in chains if chain)
    sides = [side for groups in (theirs, ours) for group in groups for side in group]
    names = [side for side in sides if is_name(side)]
    numbers = [side for side in sides if not re.search(r"(?<![\\A-Za-z])[A-Za-z]", side)]
    if len(set(names)) == 1 or (not names and len(numbers) < len(sides)):
        return None
    named = Context(lambda a, b: _same_side(a, b, context))
    same = relations == others and len(theirs) == len(ours)
    pairs = zip(theirs, ours, strict=True) if same else ()
    same = same and all(same_elements(*pair, named) for pair in pairs)
    # Sides that are formulas may be moved across: x > y + 1 is x - y > 1.
    return same if same or len(names) + len(numbers) == len(sides) else None


def _same_side(one: str, other: str, context: Context) -> bool:
    if is_name(one) or is_name(other):
        return re.sub(r"[\s{}]", "", one) == re.sub(r"[\s{}]", "", other)
    return context.same(one, other)


def _set_of_reals(gold: str, answer: str, _: Context) -> bool | None:
    if max(len(_variables(side)) for side in (gold, answer)) > 1:
        return None
    try:
        expected, actual = region(gold), region(answer)
        return bool(expected == actual or sympy.SymmetricDifference(expected, actual).is_empty)
    except (TooCostly, MemoryError, OSError, ImportError):
        raise
    except Exception:  # no region that we read, or one of sympy's own, of every kind
        return None


def _factors(text: str) -> list[str]:
    r"""The factors of a product of structures, `\mathbb{Z}/6\mathbb{Z}` as `\mathbb{Z}_6`."""
    text = re.sub(r"\s|([_^])\{(\w+)\}", r"\1\2", _FIELD.sub(r"<\1>", text))
    return sorted(re.split(r"\\times|\\oplus", re.sub(r"<Z>/\(?(\w+)\)?<Z>", r"<Z>_\1", text)))


def _structure(gold: str, answer: str, _: Context) -> bool | None:
    r"""\mathbb{Z}_6, \mathbb{F}_{p^2}, \mathbb{Q}(\sqrt2) are what their letters say."""
    fields = [_FIELD.search(side) for side in (gold, answer)]
    if not any(fields) or any(map(_RELATES.search, (gold, answer))):
        return None
    theirs, ours = _factors(gold), _factors(answer)
    return theirs == ours if all(fields) or ["<R>"] not in (theirs, ours) else None


RULES = (
    Rule("Structures, by their letters", _structure),
    Rule("More than 20 intervals", _too_many),
    # Before the sets of reals, which know one variable only.
    Rule("Orders, also backwards", _chain),
    Rule("Inequalities, intervals, sets of reals", _set_of_reals),
)


def _combined(text: str) -> sympy.Set | None:
    r"""Unions, cuts, `or`, `and`: `x < 1, x > 2` are cases, `x < 1, x \ne 0` is a restriction."""
    cases = forms.split_top(text)
    restricted = any(r"\ne" in piece for piece in cases)
    cuts, joins = (forms.split_top(text, (separator,)) for separator in (r"\cap", r"\cup"))
    together = sympy.Intersection if restricted else sympy.Union
    ways = [(joins, sympy.Union), (cuts, sympy.Intersection), (_OR.split(text), sympy.Union)]
    both = _AND.split(text)  # of two intervals a list, of conditions what holds for both
    listed = sympy.Union if all(map(forms.enclosing, both)) else sympy.Intersection
    for pieces, combine in [*ways, (cases, together), (both, listed)]:
        if len(pieces) > 1:
            return combine(*map(region, pieces))
    return None


def _bracketed(text: str) -> sympy.Set | None:
    if not (around := forms.enclosing(text)):
        return None
    opener, inside, closer = around
    ends = forms.split_top(inside)
    if opener == r"\{":
        elements = (value_of(piece) for piece in form_of(text).pieces)
        return sympy.FiniteSet(*(parse(element).doit() for element in elements))
    if len(ends) == 2 and opener in "([" and closer in ")]":
        low, high = (parse(end).doit() for end in ends)
        return sympy.Interval(low, high, opener == "(", closer == ")")
    return None


def without_measured(text: str, other: str) -> str:
    r"""0.3 of `P(X > 2) = 0.3`, beside a value without name."""
    match = _MEASURED.match(text)
    return text[match.end() :].strip() if match and len(forms.equation_sides(other)) < 2 else text


def region(text: str) -> sympy.Set:
    """The set of reals that the text describes. Raises Unreadable."""
    text = re.sub(r"^\s*[a-zA-Z]\s*\\in\s*", "", text.strip())
    if (excluded := _ALL_BUT.fullmatch(text)) and not _COMPARISON.search(excluded[1]):
        return sympy.Reals - region(rf"\{{{excluded[1]}\}}")
    text = re.sub(r"(?<=[)\]}])\s*(?:-|\\backslash)\s*(?=\\\{)", r"\\setminus ", text)
    # From what holds the weakest together to a single comparison.
    if (combined := _combined(text)) is not None:
        return combined
    if re.fullmatch(r"\\mathbb\s*\{?R\}?", text):
        return sympy.Reals
    if match := re.fullmatch(r"(.*)\\setminus(.*)", text):
        return region(match[1]) - region(match[2])
    if (bracketed := _bracketed(text)) is not None:
        return bracketed
    if r"\pm" in text and r"\ne" in text:
        return region(text.replace(r"\pm", "")) & region(text.replace(r"\pm", "-"))
    if match := _ONE_VALUE.fullmatch(text.strip()):
        return sympy.FiniteSet(parse(match[1]).doit())
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
    return _COMPARISONS[relation](left.doit(), right.doit()).as_set() & sympy.Reals
