r"""Where two formulas with letters are compared: at points of their common domain.

A letter under a root or in a logarithm is positive, unless both formulas are real where that letter
alone is negative: \sqrt{1/n} is 1/\sqrt n, \sqrt{x^2} is not x. Who writes |x| means negative x
too, and |z| complex numbers. Letters such as n are whole beside floors, factorials and (-1)^n.
"""

import random
from collections.abc import Iterator
from typing import Any

import sympy
from sympy import Pow, Rational, Symbol

Point = dict[Any, Any]

_OF_WHOLE_NUMBERS = (sympy.floor, sympy.ceiling, sympy.factorial, sympy.factorial2, sympy.binomial)
_PIECEWISE = (sympy.Abs, sympy.Max, sympy.Min, sympy.floor, sympy.ceiling, sympy.sign)
_WHOLE, _COMPLEX = frozenset("jklmnN"), frozenset("zwZ")
_RANGES = ((300, 2900), (3_000, 40_000), (30, 900), (100_000, 900_000), (1, 30))  # in 997ths
_SMALLEST_WHOLES = 16
_LARGE_WHOLES = (23, 24, 29, 36, 49, 60, 96)


class Domain:
    """Where two formulas are compared, and which of the two is real at a point."""

    def __init__(self, *formulas: Any) -> None:
        self.symbols = sorted(set().union(*(f.free_symbols for f in formulas)), key=str)
        self._random = random.Random(0)
        self._conditions = [list(_conditions(formula)) for formula in formulas]
        self.restricted = any(self._conditions)
        self._written_absolute = set[Symbol]().union(
            *(a.free_symbols for f in formulas for a in f.atoms(sympy.Abs))
        )
        floors = any(f.has(sympy.floor, sympy.ceiling) for f in formulas)
        self._wholes = set(self.symbols) if floors else set[Symbol]()
        wholes = {s for s in self.symbols if s.name[0] in _WHOLE}
        self._only_wholes = wholes if wholes and any(map(_counts, formulas)) else set[Symbol]()
        self._powers = any(  # 40^{40} takes too many digits
            part.args[-1].free_symbols for f in formulas for part in f.atoms(Pow, sympy.exp)
        )
        pieces = self.restricted or any(f.has(*_PIECEWISE) for f in formulas)
        self._points = 8 if pieces and len(self.symbols) > 1 else 4 if pieces else 3

    def points(self) -> Iterator[Point]:
        """The same rational points every time; those that tell most come first."""
        for _ in range(self._points):
            yield self._at(_RANGES[0])
        for symbol in self.symbols[:6]:
            if symbol not in self._only_wholes:
                yield self._at(_RANGES[0], symbol)
        if not self.restricted:
            signs = self._at(_RANGES[0])
            yield {s: value * (-1) ** n for n, (s, value) in enumerate(signs.items(), 1)}
        spans = (_RANGES[2:3] if self._powers else _RANGES[1:]) if self.restricted else ()
        for span in spans:
            for symbol in (None, *self.symbols[:3]):
                yield self._at(span, symbol)
        if self._only_wholes or self._wholes:
            yield from self._whole_points()
        for symbol in self._written_absolute & {s for s in self.symbols if s.name[0] in _COMPLEX}:
            yield self._at(_RANGES[0]) | {symbol: Rational(3, 7) + sympy.I * Rational(8, 5)}

    def _at(self, span: tuple[int, int], negative: Symbol | None = None) -> Point:
        return {
            s: Rational(self._random.randint(1, 15))
            if s in self._only_wholes
            else Rational(self._random.randint(*span) * (-1 if s == negative else 1), 997)
            for s in self.symbols
        }

    def _whole_points(self) -> Iterator[Point]:
        letters = sorted(self._only_wholes or self._wholes, key=str)  # a set has no fixed order
        values = (*range(1, _SMALLEST_WHOLES + 1), *_LARGE_WHOLES)
        for n in values:
            others = {s: Rational(self._random.randint(1, 12)) for s in letters}
            one = {letters[n % len(letters)]: Rational(n)}
            yield self._at(_RANGES[0]) | others | one

    def compared(self, point: Point) -> bool | None:
        """Whether both formulas are real at the point; None where only one is and that counts."""
        inside = [all(_is_positive(c, point) for c in some) for some in self._conditions]
        if all(inside):
            return True
        negative = {s for s, value in point.items() if value.is_negative}
        return None if any(inside) and negative & self._written_absolute else False


def _counts(formula: Any) -> bool:
    """Whether whole numbers are meant: floors, factorials, (-1)^n, \\cos n\\pi."""
    for part in sympy.preorder_traversal(formula):
        if not part.free_symbols:
            continue
        if isinstance(part, _OF_WHOLE_NUMBERS):
            return True
        if isinstance(part, Pow) and not part.base.free_symbols:
            base = part.base.doit()
            if base.is_negative or base == sympy.I or (base.has(sympy.I) and base.is_number):
                return True
        if isinstance(part, sympy.cos | sympy.sin | sympy.tan) and part.has(sympy.pi):
            return True
    return False


def _conditions(formula: Any) -> Iterator[Any]:
    """What is positive where the formula is real; nothing for a formula of complex numbers."""
    if formula.has(sympy.I):
        return
    part: Any
    for part in sympy.preorder_traversal(formula):
        if not part.free_symbols:
            continue
        arguments: list[Any] = list(part.args)
        if isinstance(part, Pow) and part.base.free_symbols:
            exponent = part.exp.doit() if not part.exp.free_symbols else part.exp
            if not exponent.is_Integer:
                yield part.base
        elif isinstance(part, sympy.log):
            yield from (arg for arg in arguments if arg.free_symbols)
        elif isinstance(part, sympy.asin | sympy.acos | sympy.atanh):
            yield from (1 - arg**2 for arg in arguments)
        elif isinstance(part, sympy.acosh):
            yield from (arg - 1 for arg in arguments)


def _is_positive(condition: Any, point: Point) -> bool:
    value = condition.evalf(15, subs=point)
    return bool(value.is_real and value > 0)
