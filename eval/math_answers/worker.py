r"""Math judging in a worker: `run` is what the judge asks for.

Shapes first, then sympy on the pieces. A region of one variable is a set of reals:
`x < 1 \text{ or } x > 2`, `(-\infty,1) \cup (2,\infty)` and `|x - \frac32| > \frac12` are one.
Linear sides and absolute values of them are solved; math-verify decides the other sets. Its own
time limits are off: they are alarms that the main loop of C code never sees. The worker has a
memory limit and is killed from outside.
"""

import gc
import logging
import math
import re
import signal
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from types import FrameType
from typing import Any

import math_verify
import sympy

from klear.eval.math_answers import forms, verify
from klear.eval.math_answers.forms import Form, equation_sides, form_of, is_name
from klear.eval.math_answers.formulas import TooCostly, Unreadable, parse, same_equation, same_value
from klear.eval.math_answers.spelling import Spelled
from klear.eval.math_answers.words import contradicts
from klear.eval.records import Judgement

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off

_MOST_PIECES, _MOST_INTERVALS, _MOST_RESIDUES = 60, 20, 10_000
_BASE = re.compile(r"(\(?[0-9A-Fa-f]+\)?)\s*_\s*\{?\s*\d+\s*\}?")
_PARAMETER = re.compile(  # k \in \mathbb{Z}, `where k is an integer`, `for any integer k`
    r"[\s,;(]*(?:\b(?:where|for|all|any|every|each|some)\s+)*(?:(?<![A-Za-z\\])([A-Za-z])"
    r"(?:\s*\\in\s*\\mathbb\s*\{?([ZNQR])\}?|\s+(?:(?:is|an?|any|arbitrary|real|the)\s+)*"
    r"(?:integer|(constant)(?: of integration)?))"
    r"|\bintegers?\s+([A-Za-z])|(?:\\forall|\bfor\s+(?:all|any|every|each)\b)\s*([A-Za-z]))[\s).]*$"
)
_RATIO = re.compile(r"[^:]+(?::[^:]+)+")
_OF_REGIONS = re.compile(r"<|>|\\(?:le|ge|ne|in)(?![a-z])|\\cup|\\cap|\\setminus|\\mathbb")
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\bor\b|\\lor\b")
_AND = re.compile(r"\\text\s*\{\s*and\s*\}|\band\b|\\land\b")
_COMPARISON = re.compile(r"(<|>|\\(?:le|ge|ne)(?![a-z]))")
_COMPARISONS = {"<": sympy.Lt, r"\le": sympy.Le, r"\ne": sympy.Ne, ">": sympy.Gt, r"\ge": sympy.Ge}
_MARKED = {"": "%s", "%": r"\frac{%s}{100}", "°": r"\frac{%s\pi}{180}"}
_CPU_S, _CPU_OF_GOLD_S = 0.9, 0.3  # no text takes a second
_AGAIN_S = 0.1
_EVERY_FORM = (
    r"f(x)=\frac{\sqrt[3]{2x^2}-|y_1|}{\sin^2 x+\log_2 3}\cdot e^{i\pi}+\binom{5}{2}!",
    r"\begin{pmatrix}1&2\\3&x\end{pmatrix}, (-\infty,1]\cup\{2\}, x<1",
)


class OutOfTime(BaseException):
    """The CPU time is used up. No Exception, which the code that is interrupted might catch."""


@contextmanager
def cpu_seconds(most: float) -> Iterator[None]:
    """Raise OutOfTime when the block has used this many CPU seconds; in the main thread only.

    The alarm is seen between two steps of Python, and comes again for code that takes every
    exception; a single endless step is ended from outside. The garbage collector waits for the end
    of the block: beside much that is imported, one look at all objects takes most of a second.
    """
    inside, collecting = True, gc.isenabled()

    def end(_: int, __: FrameType | None) -> None:
        if inside:
            raise OutOfTime

    before = signal.signal(signal.SIGPROF, end)
    gc.disable()
    signal.setitimer(signal.ITIMER_PROF, most, _AGAIN_S)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if collecting:
            gc.enable()


def run(gold: str, answer: str) -> Judgement:
    """The verdict on one answer; IE when the gold cannot be read."""
    started = time.perf_counter()
    _start_up()
    try:
        with cpu_seconds(_CPU_S):
            verdict = _verdict(gold, answer)
    except OutOfTime:
        verdict = _blamed(gold, f"it takes over {_CPU_S:g} s of CPU time")
    except (MemoryError, OSError, ImportError):
        raise  # the machine's, and nobody's wrong answer
    except TooCostly as error:
        verdict = _blamed(gold, str(error))
    except Exception as error:  # sympy's own, of every kind
        verdict = _blamed(gold, f"{type(error).__name__} in sympy")
    return replace(verdict, seconds=time.perf_counter() - started)


@lru_cache
def _start_up() -> None:
    """What the parser learns from its first formulas is no answer's time."""
    for form in _EVERY_FORM:
        with suppress(Exception):
            _by_math_verify(form, form + "+0")


def _verdict(gold: str, answer: str) -> Judgement:
    expected, given = verify.spell_both(gold, answer)
    right, wrong = "", "not equal to the gold"
    try:
        try:
            equal = _same_bodies(expected, given)
        except Unreadable:
            right = wrong = "by math-verify"
            equal = _by_math_verify(expected.body, given.body)
    except Unreadable:
        return Judgement("IE", f"the gold answer cannot be read: {gold[:80]}")
    # Words come last: a gold that cannot be read must show, whatever the answer says.
    equal = equal and verify.same_kinds(gold, answer, expected.body)
    if equal and not contradicts(given.body, expected.body):
        return Judgement("AC", right)
    return Judgement("WA", wrong)


def _blamed(gold: str, why: str) -> Judgement:
    """The answer is to blame, unless its gold cannot be compared with itself either."""
    with suppress(Exception, OutOfTime), cpu_seconds(_CPU_OF_GOLD_S):
        if _verdict(gold, f"({gold})+0").verdict != "IE":
            return Judgement("WA", f"not evaluated: {why}")
    return Judgement("IE", f"the gold answer cannot be evaluated: {gold[:80]}")


def _same_bodies(gold: Spelled, answer: Spelled) -> bool:
    if answer.listed and form_of(gold.body).kind != "scalar":
        return _same(gold.body, answer.listed)
    moduli = {side.unit for side in (gold, answer) if side.unit.startswith("mod ")}
    if len(moduli) < 2 and not verify.other_angle(gold, answer) and _same(gold.body, answer.body):
        return True
    if (moduli or r"\mathbb" in gold.body) and _same_classes(gold, answer):
        return True
    if moduli or gold.mark == answer.mark:
        return False
    return _same(*(_MARKED[side.mark] % _value_of(side.body) for side in (gold, answer)))


def _same_classes(gold: Spelled, answer: Spelled) -> bool:
    r"""Whether `x = 1, 3` modulo 4 are the numbers `4k+1 \text{ or } 4k-1`."""
    with suppress(Unreadable, sympy.PolynomialError):
        sides = _classes(gold), _classes(answer)
        if (whole := math.lcm(*(m for side in sides for _, m in side))) > _MOST_RESIDUES:
            return set(sides[0]) == set(sides[1])
        held = ([any(n % m == r for r, m in side) for side in sides] for n in range(whole))
        return all(theirs == ours for theirs, ours in held)
    return False


def _classes(side: Spelled) -> list[tuple[int, int]]:
    """(residue, modulus) of each class of whole numbers. Raises Unreadable or PolynomialError."""
    body, _, numbers = _without_parameter(side.body)
    form, found = form_of(body), list[tuple[int, int]]()
    one_name = len({name for name, _ in map(_named, form.pieces)} - {""}) < 2
    for formula in (parse(_value_of(piece)) for piece in form.pieces):
        line = sympy.Poly(formula, *formula.free_symbols or [sympy.Dummy()]).all_coeffs()
        *_, step, start = (sympy.Integer(side.unit[4:] or 0), *line)
        whole = len(line) < 3 and step and step.is_Integer and start.is_Integer
        if not (whole and one_name and form.kind in ("scalar", "list") and numbers in ("", "Z")):
            raise Unreadable(f"no classes: {body[:80]}")
        found.append((int(start % abs(step)), abs(int(step))))
    return found


def _same(gold: str, answer: str) -> bool:
    """Compare two answers of any shape."""
    (gold, known, numbers), (answer, name, of) = map(_without_parameter, (gold, answer))
    if numbers and of and numbers != of:
        return False
    if name and name != known:
        answer = forms.renamed(answer, name, gold, known)
    if r"\ldots" in gold + answer:
        return gold.replace(" ", "") == answer.replace(" ", "")
    if _BASE.fullmatch(gold) or _BASE.fullmatch(answer):
        return _same_numeral(gold, answer)
    if _OF_REGIONS.search(gold) or _OF_REGIONS.search(answer):
        return _same_region(gold, answer)
    expected, given = form_of(gold), form_of(answer)
    if expected.kind != given.kind:  # P = (1,2) is (1,2)
        expected, given = (
            form_of(_value_of(form.pieces[0])) if form.kind == "scalar" else form
            for form in (expected, given)
        )
    if expected.kind == given.kind == "scalar":
        return _same_scalar(expected.pieces[0], given.pieces[0])
    return _same_collection(expected, given)


def _without_parameter(text: str) -> tuple[str, str, str]:
    r"""`2k\pi`, `k`, `Z` of `2k\pi, k \in \mathbb{Z}`; empty texts where nothing is declared."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    match = _PARAMETER.search(plain)
    if not match or not match.start():
        return text, "", ""
    name, numbers, real, integer, any_value = match.groups("")
    name, formula = name or integer or any_value, plain[: match.start()]
    if name not in formula:  # x = 2, y \in \mathbb{R} is more than x = 2
        return text, "", ""
    return formula, name, numbers or ("R" if real else "Z" * (not any_value))


def _same_numeral(gold: str, answer: str) -> bool:
    """1011_2 has these digits in this base; an answer may leave the base out."""
    packed = (re.sub(r"[{}() ]", "", side) for side in (gold, answer))
    (number, _, base), (other, _, other_base) = (side.partition("_") for side in packed)
    return bool(base) and number.upper() == other.upper() and other_base in (base, "")


def _same_collection(gold: Form, answer: Form) -> bool:
    if max(len(gold.pieces), len(answer.pieces)) > _MOST_PIECES:
        return gold.pieces == answer.pieces
    kinds, pieces = {gold.kind, answer.kind}, (*gold.pieces, *answer.pieces)
    same_brackets = gold.brackets == answer.brackets
    inner = [{form_of(piece).kind for piece in side.pieces} for side in (gold, answer)]
    if "matrix" in kinds:
        if "scalar" in kinds and any(r"\begin" in piece for piece in pieces):
            raise Unreadable("a matrix in a formula")
        rows, cells = (gold if gold.kind == "matrix" else answer).brackets
        vector_as_tuple = kinds == {"matrix", "tuple"} and rows in ("1", cells)
        if not same_brackets and not vector_as_tuple:
            return False
    elif kinds == {"set", "scalar"} and r"\emptyset" in pieces:
        return False  # the set that holds the empty set is not empty
    elif "set" in kinds and ("set" in inner[0]) != ("set" in inner[1]):
        return False  # {{1}, 2} is not {1, 2}
    elif "list" in kinds and ("half_open" in kinds or ("brackets" in kinds and len(pieces) == 4)):
        return False  # an interval is not its two ends
    theirs, ours = (list(map(_named, form.pieces)) for form in (gold, answer))
    names, others = ({name for name, _ in side if name} for side in (theirs, ours))
    if kinds <= {"list", "set", "scalar"}:
        if names and others and names != others:  # values of x are none of y
            return False
        if not (kinds == {"list"} and _is_assignment(theirs) and _is_assignment(ours)):
            return _same_elements([value for _, value in theirs], [value for _, value in ours])
    elif not kinds & {"list", "matrix"} and not same_brackets:
        return False
    ordered = [
        # x, y, z have an order; m and b of a line have none, unless both sides name them.
        sorted(side)
        if _is_assignment(side)
        and (names == others or "".join(sorted(n for n, _ in side)) in string.ascii_lowercase)
        else side
        for side in (theirs, ours)
    ]
    return len(theirs) == len(ours) and all(
        _same(value, other) for (_, value), (_, other) in zip(*ordered, strict=True)
    )


def _named(piece: str) -> tuple[str, str]:
    """x and 5 of `x = 5`; no name and the piece itself where it names nothing."""
    sides = equation_sides(piece)
    return (sides[0].strip(), sides[-1]) if len(sides) > 1 and is_name(sides[0]) else ("", piece)


def _value_of(piece: str) -> str:
    """5 of `x = 5`."""
    return _named(piece)[1]


def _is_assignment(pieces: list[tuple[str, str]]) -> bool:
    """Whether `x = 1, y = 2` gives values to different names."""
    names = {name for name, _ in pieces}
    return "" not in names and 1 < len(names) == len(pieces)


def _same_elements(theirs: list[str], ours: list[str]) -> bool:
    """As sets: every element of one side is on the other."""
    return all(any(_same(value, other) for other in ours) for value in theirs) and all(
        any(_same(value, other) for value in theirs) for other in ours
    )


def _same_scalar(gold: str, answer: str) -> bool:
    quick = verify.quick_verdict(gold, answer) if gold and answer else None
    if quick is not None and quick.verdict != "IE":
        return quick.verdict == "AC"
    gold, answer = forms.distinct_capitals(gold, answer)
    if _RATIO.fullmatch(gold) and _RATIO.fullmatch(answer):
        (first, *theirs), (other, *ours) = gold.split(":"), answer.split(":")
        return len(theirs) == len(ours) and all(
            same_value(rf"({g})\cdot({other})", rf"({a})\cdot({first})")
            for g, a in zip(theirs, ours, strict=True)
        )
    theirs, ours = equation_sides(gold), equation_sides(answer)
    if not ours or not theirs:
        return False
    if len(theirs) == 1:
        digits = verify.rounding_error(theirs[0])
        return _consistent(ours) and same_value(theirs[0], ours[-1], digits)
    if len(ours) == 1:
        return is_name(theirs[0]) and _same(theirs[-1], ours[0])
    short, long = sorted((theirs[0], ours[0]), key=len)
    if is_name(short) and is_name(long) and f"{long}(".startswith(f"{short}("):  # y and y(x)
        return _consistent(ours) and _same(theirs[-1], ours[-1])
    return same_equation((theirs[0], theirs[-1]), (ours[0], ours[-1]))


def _consistent(sides: list[str]) -> bool:
    """In `x = 3 = 4` the numbers contradict each other."""
    for side in sides[:-1]:
        with suppress(Unreadable, TooCostly):
            is_number = not is_name(side) and not parse(side).free_symbols
            if is_number and not same_value(side, sides[-1]):
                return False
    return True


def _same_region(gold: str, answer: str) -> bool:
    if max(len(_OF_REGIONS.findall(side)) for side in (gold, answer)) > _MOST_INTERVALS:
        raise TooCostly("too many intervals")
    try:
        expected, given = _region(gold), _region(answer)
        return bool(expected == given or sympy.SymmetricDifference(expected, given).is_empty)
    except (TooCostly, MemoryError, OSError, ImportError):
        raise
    except Exception:  # no region that we read, or one of sympy's own, of every kind
        return _by_math_verify(gold, answer)


def _region(text: str) -> sympy.Set:
    """The set of reals that the text describes. Raises Unreadable."""
    text = re.sub(r"^\s*[a-zA-Z]\s*\\in\s*", "", text.strip())
    text = re.sub(r"(?<=[)\]}])\s*(?:-|\\backslash)\s*(?=\\\{)", r"\\setminus ", text)
    cases = forms.split_top(text)
    # `x < 1, x > 2` are cases, `x < 1, x \ne 0` is a restriction
    restricted = any(r"\ne" in piece for piece in cases)
    for pieces, combine in (
        (forms.split_top(text, (r"\cup",)), sympy.Union),
        (forms.split_top(text, (r"\cap",)), sympy.Intersection),
        (_OR.split(text), sympy.Union),
        (cases, sympy.Intersection if restricted else sympy.Union),
        (_AND.split(text), sympy.Intersection),
    ):
        if len(pieces) > 1:
            return combine(*map(_region, pieces))
    if re.fullmatch(r"\\mathbb\s*\{?R\}?", text):
        return sympy.Reals
    if match := re.fullmatch(r"(.*)\\setminus(.*)", text):
        return _region(match[1]) - _region(match[2])
    if around := forms.enclosing(text):
        opener, inside, closer = around
        ends = forms.split_top(inside)
        if opener == r"\{":
            elements = (_value_of(piece) for piece in form_of(text).pieces)
            return sympy.FiniteSet(*(parse(element).doit() for element in elements))
        if len(ends) == 2 and opener in "([" and closer in ")]":
            low, high = (parse(end).doit() for end in ends)
            return sympy.Interval(low, high, opener == "(", closer == ")")
    if r"\pm" in text and r"\ne" in text:
        return _region(text.replace(r"\pm", "")) & _region(text.replace(r"\pm", "-"))
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


def _by_math_verify(gold: str, answer: str) -> bool:
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
