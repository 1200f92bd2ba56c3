r"""Rules for answers of several parts: lists, sets, tuples, intervals by brackets, matrices."""

import re
import string

from .notation.forms import Form, equation_sides, form_of, is_name
from .notation.formulas import Unreadable
from .notation.words import HAN, TEXT
from .rules import Context, Rule

_MOST_PIECES = 60
_LISTS = {"list", "set", "scalar"}


def named(piece: str) -> tuple[str, str]:
    """x and 5 of `x = 5`; no name and the piece itself where it names nothing."""
    sides = equation_sides(piece)
    return (sides[0].strip(), sides[-1]) if len(sides) > 1 and is_name(sides[0]) else ("", piece)


def value_of(piece: str) -> str:
    return named(piece)[1]


def is_assignment(pieces: list[tuple[str, str]]) -> bool:
    """Whether `x = 1, y = 2` gives values to different names."""
    names = {name for name, _ in pieces}
    return "" not in names and 1 < len(names) == len(pieces)


def same_elements(theirs: list[str], ours: list[str], context: Context) -> bool:
    """As sets: every element of one side is on the other."""
    return all(any(context.same(value, other) for other in ours) for value in theirs) and all(
        any(context.same(value, other) for value in theirs) for other in ours
    )


def same_in_order(theirs: list[str], ours: list[str], context: Context) -> bool:
    return len(theirs) == len(ours) and all(map(context.same, theirs, ours))


def _kinds(gold: Form, answer: Form) -> set[str]:
    return {gold.kind, answer.kind}


def _names_and_values(form: Form) -> list[tuple[str, str]]:
    return [named(piece) for piece in form.pieces]


def _long(gold: Form, answer: Form, _: Context) -> bool | None:
    too_long = max(len(gold.pieces), len(answer.pieces)) > _MOST_PIECES
    return gold.pieces == answer.pieces if too_long else None


def _matrix(gold: Form, answer: Form, context: Context) -> bool | None:
    """Entry by entry. A column or a row is also a vector in round or square brackets."""
    kinds = _kinds(gold, answer)
    if "matrix" not in kinds:
        return None
    if "scalar" in kinds and any(r"\begin" in piece for piece in (*gold.pieces, *answer.pieces)):
        raise Unreadable("a matrix in a formula")
    rows, cells = (gold if gold.kind == "matrix" else answer).brackets
    is_vector = kinds & {"tuple", "brackets"} and rows in ("1", cells)
    if gold.brackets != answer.brackets and not is_vector:
        return False
    theirs, ours = ([value_of(piece) for piece in form.pieces] for form in (gold, answer))
    return same_in_order(theirs, ours, context)


def _empty_set(gold: Form, answer: Form, _: Context) -> bool | None:
    holds = r"\emptyset" in (*gold.pieces, *answer.pieces)
    return False if holds and _kinds(gold, answer) == {"set", "scalar"} else None


def _set_of_sets(gold: Form, answer: Form, _: Context) -> bool | None:
    nested = [any(form_of(piece).kind == "set" for piece in side.pieces) for side in (gold, answer)]
    return False if "set" in _kinds(gold, answer) and nested[0] != nested[1] else None


def _ends_of_an_interval(gold: Form, answer: Form, _: Context) -> bool | None:
    kinds = _kinds(gold, answer)
    two_ends = len(gold.pieces) + len(answer.pieces) == 4
    interval = "half_open" in kinds or ("brackets" in kinds and two_ends)
    return False if interval and "list" in kinds else None


def _other_names(gold: Form, answer: Form, _: Context) -> bool | None:
    theirs, ours = ({name for name, _ in _names_and_values(f) if name} for f in (gold, answer))
    if 1 in (len(theirs), len(ours)):  # x_1 = 1 and x_2 = 2 are two values of x
        theirs, ours = ({re.sub(r"_\s*\{?\d+\}?$", "", n) for n in s} for s in (theirs, ours))
    lists = _kinds(gold, answer) <= _LISTS
    return False if lists and theirs and ours and theirs != ours else None


def _values_of_one_name(gold: Form, answer: Form, _: Context) -> bool | None:
    """x = 1 or x = 2 are no point (1,2)."""
    lists = (_names_and_values(form) for form in (gold, answer) if form.kind == "list")
    names = [name for side in lists for name, _ in side if "tuple" in _kinds(gold, answer)]
    return False if len({*names}) == 1 < len(names) and names[0] else None


def _sequence(gold: Form, answer: Form, context: Context) -> bool | None:
    """Where the prompt asks for an order, plain values are compared in theirs."""
    sides = [_names_and_values(form) for form in (gold, answer)]
    kinds, pieces = _kinds(gold, answer), (*gold.pieces, *answer.pieces)
    plain = all(form_of(piece).kind == "scalar" for piece in pieces)
    if not context.ordering or not plain or gold.kind != "list" or kinds & {"set", "matrix"}:
        return None
    if any(map(is_assignment, sides)):
        return None
    theirs, ours = ([value for _, value in side] for side in sides)
    return same_in_order(theirs, ours, context)


def _words_of(piece: str) -> str:
    words = " ".join(re.findall(TEXT, piece)) or re.sub(r"\\[a-zA-Z]+", "", piece)
    return " ".join(re.findall(rf"[a-z{HAN}]{{2,}}", words.casefold()))


def _counts(gold: Form, answer: Form, context: Context) -> bool | None:
    """12 dimes, 8 nickels: each value goes with its words, where both sides have the same."""
    sides = [{_words_of(piece): piece for piece in form.pieces} for form in (gold, answer)]
    every_word = 1 < len(sides[0]) == len(gold.pieces) == len(answer.pieces) and "" not in sides[0]
    if not (every_word and _kinds(gold, answer) <= _LISTS and sides[0].keys() == sides[1].keys()):
        return None
    return all(context.same(piece, sides[1][words]) for words, piece in sides[0].items())


def _cases(form: Form) -> list[str]:
    """`x=1, y=2` and `x=2, y=1` of all four; each piece, where no case has every name once."""
    names = [name for name, _ in _names_and_values(form)]
    size = len(set(names))
    cases = [", ".join(form.pieces[i : i + size]) for i in range(0, len(names), size)]
    complete = all({*names[i : i + size]} == {*names} for i in range(0, len(names), size))
    return cases if complete and "" not in names else list(form.pieces)


def _set(gold: Form, answer: Form, context: Context) -> bool | None:
    sides = theirs, ours = _names_and_values(gold), _names_and_values(answer)
    kinds = _kinds(gold, answer)
    both_assign = kinds == {"list"} and is_assignment(theirs) and is_assignment(ours)
    if not kinds <= _LISTS or both_assign:
        return None
    several = [len({name for name, _ in side} - {""}) > 1 for side in sides]
    points = [all(form_of(value).kind == "tuple" for _, value in side) for side in sides]
    if all(several) or (any(several) and points[0] != points[1]):
        return same_elements(_cases(gold), _cases(answer), context)
    if same_elements([value for _, value in theirs], [value for _, value in ours], context):
        return True
    pieces = [*gold.pieces, *answer.pieces]  # y = x, y = -x are x - y = 0, x + y = 0
    equations = all(len(equation_sides(piece)) > 1 for piece in pieces)
    return equations and same_elements([*gold.pieces], [*answer.pieces], context)


def _other_brackets(gold: Form, answer: Form, _: Context) -> bool | None:
    free = _kinds(gold, answer) & {"list", "matrix"}
    return False if gold.brackets != answer.brackets and not free else None


def _in_order(gold: Form, answer: Form, context: Context) -> bool:
    """x, y, z have an order; m and b of a line have none, unless both sides name them."""
    sides = [_names_and_values(form) for form in (gold, answer)]
    names = [{name for name, _ in side if name} for side in sides]
    alphabetical = ("".join(sorted(n for n, _ in s)) in string.ascii_lowercase for s in sides)
    free = [names[0] == names[1] or is_abc for is_abc in alphabetical]
    pairs = zip(sides, free, strict=True)
    theirs, ours = (sorted(s) if is_assignment(s) and is_free else s for s, is_free in pairs)
    return same_in_order([value for _, value in theirs], [value for _, value in ours], context)


RULES = (
    # First what costs too much to compare piece by piece.
    Rule("Lists of more than 60 values, by their text", _long),
    # A matrix has its own order and brackets; no later rule knows it.
    Rule("Matrices and vectors", _matrix),
    # Brackets that change what the values mean refuse before the values are compared.
    Rule("The set that holds the empty set", _empty_set),
    Rule("Sets of sets", _set_of_sets),
    Rule("An interval is not its two ends", _ends_of_an_interval),
    Rule("Values of x are none of y", _other_names),
    Rule("Values of one name are no point", _values_of_one_name),
    # The prompt's words on order come before the default, which has none.
    Rule("A list that the prompt wants in order", _sequence),
    Rule("Counts and their words", _counts),
    Rule("A list or set, in any order", _set),
    # What is left has an order: tuples, intervals by brackets, x = 1, y = 2.
    Rule("Round and square brackets", _other_brackets),
    Rule("Tuples, and values with names", _in_order),
)
