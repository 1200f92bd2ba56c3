r"""Math judging in a worker: `run` is what the judge asks for. Both sides in one spelling, then by
shape to the rules of `regions`, `shapes` and `scalars`, at last to math-verify, whose own time
limits are off: C code never sees their alarms. The worker is killed from outside."""

import gc
import logging
import math
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from types import FrameType
from typing import Any

import math_verify
import sympy

from ..records import Judgement
from . import regions, scalars, shapes, verify
from .notation import forms
from .notation.forms import Form, form_of
from .notation.formulas import TooCostly, Unreadable, parse
from .notation.spelling import Spelled
from .notation.words import contradicts
from .rules import Context, Ordering, first_decision
from .shapes import named, value_of

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off

_MOST_RESIDUES = 10_000
_PARAMETER = re.compile(  # k \in \mathbb{Z}, `where k is an integer`, `for any integer k`
    r"[\s,;(]*(?:\b(?:where|for|all|any|every|each|some)\s+)*(?:(?<![A-Za-z\\_])([A-Za-z])"
    r"(?:\s*\\in\s*(?:\\mathbb\s*)?\{?([ZNQR])\}?(\s*[\^_]\s*\{?[*+]\}?)?(?![A-Za-z^_])|\s+(?:(?:is|an?|any|arbitrary|real|the)\s+)*"
    r"(?:integer|(constant)(?: of integration)?))"
    r"|\bintegers?\s+([A-Za-z])|(?:\\forall|\bfor\s+(?:all|any|every|each)\b)\s*([A-Za-z]))[\s).]*$"
)
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
    """Raise OutOfTime when the block has used this many CPU seconds; in the main thread only. The
    alarm comes again for code that takes every exception; an endless step is ended from outside.
    Garbage waits: one look at all that is imported takes most of a second."""
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


def run(gold: str, answer: str, ordering: Ordering = "") -> Judgement:
    """The verdict on one answer; IE when the gold cannot be read. `ordering` is of the prompt."""
    started = time.perf_counter()
    _start_up()
    try:
        with cpu_seconds(_CPU_S):
            verdict = _verdict(gold, answer, ordering)
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


def _verdict(gold: str, answer: str, ordering: Ordering = "") -> Judgement:
    gold = verify.stated(gold)
    expected, actual = verify.spell_both(gold, answer)
    right, wrong = "", "not equal to the gold"
    try:
        try:
            equal = _same_bodies(expected, actual, ordering)
        except Unreadable:
            right = wrong = "by math-verify"
            equal = _by_math_verify(expected.body, actual.body)
    except Unreadable:
        return Judgement("IE", f"the gold answer cannot be read: {gold[:80]}")
    # Words come last: a gold that cannot be read must show, whatever the answer says.
    equal = equal and verify.same_kinds(gold, answer, expected.body)
    if equal and not contradicts(actual.body, expected.body):
        return Judgement("AC", right)
    return Judgement("WA", wrong)


def _blamed(gold: str, why: str) -> Judgement:
    """The answer is to blame, unless its gold cannot be compared with itself either."""
    with suppress(Exception, OutOfTime), cpu_seconds(_CPU_OF_GOLD_S):
        if _verdict(gold, f"({gold})+0").verdict != "IE":
            return Judgement("WA", f"not evaluated: {why}")
    return Judgement("IE", f"the gold answer cannot be evaluated: {gold[:80]}")


def _same_bodies(gold: Spelled, answer: Spelled, ordering: Ordering) -> bool:
    if answer.listed and form_of(gold.body).kind != "scalar":
        return _same(gold.body, answer.listed, ordering)
    moduli = {side.unit for side in (gold, answer) if side.unit.startswith("mod ")}
    alike = len(moduli) < 2 and not verify.other_angle(gold, answer)
    if alike and _same(gold.body, answer.body, ordering):
        return True
    if (moduli or _without_parameter(gold.body)[2] == "Z") and _same_classes(gold, answer):
        return True
    if moduli or gold.mark == answer.mark:
        return False
    theirs, ours = (_MARKED[side.mark] % value_of(side.body) for side in (gold, answer))
    return _same(theirs, ours)


def _same_classes(gold: Spelled, answer: Spelled) -> bool:
    r"""Whether `x = 1, 3` modulo 4 are the numbers `4k+1 \text{ or } 4k-1`, and so for k\pi."""
    with suppress(Unreadable, sympy.PolynomialError):
        names = [{name for name, _ in map(named, form_of(s.body).pieces)} for s in (gold, answer)]
        if all(names) and "" not in names[0] | names[1] and names[0] != names[1]:
            return False
        lines = _lines(gold), _lines(answer)
        one = lines[0][0][1]
        parts = [[(start / one, step / one) for start, step in side] for side in lines]
        values = [value for side in parts for line in side for value in line]
        if not all(value.is_Rational for value in values):
            return False
        scale = math.lcm(*(int(value.q) for value in values))
        sides = [[(int(r * scale), abs(int(m * scale))) for r, m in side] for side in parts]
        sides = [[(r % m, m) for r, m in side] for side in sides]
        if (period := math.lcm(*(m for side in sides for _, m in side))) > _MOST_RESIDUES:
            return set(sides[0]) == set(sides[1])
        held = ([any(n % m == r for r, m in side) for side in sides] for n in range(period))
        return all(theirs == ours for theirs, ours in held)
    return False


def _lines(side: Spelled) -> list[tuple[Any, Any]]:
    """(start, step) of each class of numbers. Raises Unreadable or PolynomialError."""
    body, _, numbers = _without_parameter(side.body)
    form, lines = form_of(body), list[tuple[Any, Any]]()
    one_name = len({name for name, _ in map(named, form.pieces)} - {""}) < 2
    for formula in (parse(value_of(piece)) for piece in form.pieces):
        line = sympy.Poly(formula, *formula.free_symbols or [sympy.Dummy()]).all_coeffs()
        *_, step, start = (sympy.Integer(side.unit[4:] or 0), *line)
        is_line = len(line) < 3 and step != 0
        if not (is_line and one_name and form.kind in ("scalar", "list") and numbers in ("", "Z")):
            raise Unreadable(f"no classes: {body[:80]}")
        lines.append((start, step))
    return lines


def _same(gold: str, answer: str, ordering: Ordering = "") -> bool:
    """Compare two answers of any shape. A part of an answer has no order that a prompt asks for."""
    (gold, parameter, numbers), (answer, name, other) = map(_without_parameter, (gold, answer))
    if numbers and other and numbers != other:
        return False
    if name and name != parameter:
        answer = forms.renamed(answer, name, gold, parameter)
    gold, answer = regions.without_measured(gold, answer), regions.without_measured(answer, gold)
    context = Context(_same, ordering)
    if (decision := first_decision(scalars.ORDERED_TEXTS, gold, answer, context)) is not None:
        return decision
    point = ordering == "tuple" and form_of(gold).kind == "tuple"  # (1,2), and no interval
    if not point and any(map(regions.OF_REGIONS.search, (gold, answer))):
        decision = first_decision(regions.RULES, gold, answer, context)
        return _by_math_verify(gold, answer) if decision is None else decision
    expected, actual = form_of(gold), form_of(answer)
    if expected.kind != actual.kind:
        expected, actual = _beside(expected, actual), _beside(actual, expected)
    if expected.kind == actual.kind == "scalar":
        return scalars.same_scalar(expected.pieces[0], actual.pieces[0], context)
    return bool(first_decision(shapes.RULES, expected, actual, context))


def _beside(form: Form, other: Form) -> Form:
    r"""What P = (1,2) stands for, and beside several values x = y = 1 and \{(1,2)\}."""
    if len(form.pieces) != 1 or form.kind not in ("scalar", "set"):
        return form
    piece = form.pieces[0]
    if form.kind == "set":
        return form_of(piece) if other.kind == form_of(piece).kind == "tuple" else form
    several = forms.each_named(piece) if other.kind in ("tuple", "list") else piece
    value = form_of(value_of(piece) if several == piece else several)
    return form if value.kind == "scalar" else value  # x = 1 keeps its name beside x = 1, y = 1


def _without_parameter(text: str) -> tuple[str, str, str]:
    r"""`2k\pi`, `k`, `Z` of `2k\pi, k \in \mathbb{Z}`; empty texts where nothing is declared."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text)
    match = _PARAMETER.search(plain)
    if not match or not match.start():
        return text, "", ""
    name, numbers, positive, real, integer, any_value = match.groups("")
    numbers = "positive" if positive else numbers
    name, formula = name or integer or any_value, plain[: match.start()]
    if name not in formula:  # x = 2, y \in \mathbb{R} is more than x = 2
        return text, "", ""
    return formula, name, numbers or ("R" if real else "Z" * (not any_value))


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
    actual = math_verify.parse(f"${answer}$", config, **quiet)
    quiet = {"timeout_seconds": 0, "raise_on_error": False}
    return math_verify.verify(expected, actual, numeric_precision=200, **quiet)
