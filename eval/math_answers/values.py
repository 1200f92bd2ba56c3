r"""Are two formulas equal? sympy, asked only what it can answer in bounded time.

Nothing is simplified or expanded. Constants are compared by the number of digits that tell them
apart (up to 1200), formulas with letters at random points.
"""

import itertools
import random
from typing import Any

import sympy
from sympy import Add, Expr, Integer, Mul, Pow, Rational, factorial

from eval.math_answers.reading import TooCostly, Unreadable, log10, parse

_DIGITS, _DIGITS_AT_A_POINT = 1200, 120
_MOST_DIGITS, _MOST_EXACT_DIGITS, _MOST_INTEGER_DIGITS = 20_000, 100_000, 1_000_000
_POWERS = (Pow, factorial, sympy.exp)
_POINTS = 4
_MOST_OPERATIONS = 60  # of an equation whose denominators are cleared


def same_value(gold: str, answer: str, error: Any = None) -> bool:
    """Whether two formulas are equal, or an irrational answer is within `error` of the gold.

    Raises Unreadable when the gold cannot be read; an answer that cannot be read is wrong.
    """
    expected = parse(gold)
    try:
        given = parse(answer)
    except Unreadable:
        return False
    if error is not None and not given.free_symbols and not given.is_rational:
        value = given.evalf(30)
        return bool(value.is_real and abs(value - expected) <= error)
    return _same(expected, given)


def same_equation(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Whether two equations have the same solutions: the differences of sides are proportional."""
    expected = Add(parse(gold[0]), -parse(gold[1]), evaluate=False)
    try:
        given = Add(parse(answer[0]), -parse(answer[1]), evaluate=False)
    except Unreadable:
        return False
    symbols = expected.free_symbols | given.free_symbols
    if not symbols or expected.free_symbols != given.free_symbols:
        return False
    if _proportional(expected, given, symbols):
        return True
    if max(expected.count_ops(), given.count_ops()) > _MOST_OPERATIONS:
        return False
    one, other = (sympy.fraction(sympy.together(side))[0] for side in (expected, given))
    return _proportional(one, other, symbols)


def _proportional(expected: Any, given: Any, symbols: set[Any]) -> bool:
    ratios = []
    for point in _points(symbols):
        a, b = _number(expected, point), _number(given, point)
        if a is None or b is None or a == 0 or b == 0:
            continue
        ratios.append(a / b)
    return len(ratios) > 1 and all(abs(r / ratios[0] - 1) < 1e-25 for r in ratios)


def _same(expected: Expr, given: Expr) -> bool:
    infinite = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if expected.has(*infinite) or given.has(*infinite):
        return bool(expected.doit() == given.doit())
    if expected == given:
        return True
    symbols = expected.free_symbols | given.free_symbols
    difference = Add(expected, Mul(-1, given, evaluate=False), evaluate=False)
    if not symbols:
        return _is_zero(difference, {}) is True
    verdicts = [_is_zero(difference, point) for point in _points(symbols)]
    return False not in verdicts and verdicts.count(True) > 1


def _points(symbols: set[Any]) -> list[dict[Any, Any]]:
    """The same rational points every time: some positive, one with every sign."""
    chosen = random.Random(0)
    ordered = sorted(symbols, key=str)
    points = []
    for i in range(_POINTS):
        signs = itertools.cycle((-1, 1)) if i == _POINTS - 1 else itertools.repeat(1)
        values = [Rational(next(signs) * chosen.randint(300, 2900), 997) for _ in ordered]
        points.append(dict(zip(ordered, values, strict=True)))
    return points


def _is_zero(formula: Expr, point: dict[Any, Any]) -> bool | None:
    """Whether no digit tells the value from zero; None where it has none (a pole).

    Raises TooCostly where it would take too many digits.
    """
    larger = _digits_of_large_numbers(formula)
    if larger and not point and (exact := _rational(formula)) is not None:
        return exact == 0
    digits = (_DIGITS_AT_A_POINT if point else _DIGITS) + int(min(larger, _MOST_DIGITS))
    try:
        value = formula.evalf(15, subs=point, maxn=digits)
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, AttributeError):
        value = _doit(formula, point)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
        value = _doit(formula, point)
        if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
            return None
    least = sympy.Float(f"1e-{digits}")  # of two parts one may be left with a last, false digit
    zero = all(
        part == 0 or getattr(part, "_prec", 53) == 1 or abs(part) < least
        for part in value.as_real_imag()
    )
    if zero and larger > _MOST_DIGITS:
        raise TooCostly("too many digits to tell it from zero")
    return zero


def _digits_of_large_numbers(formula: Any) -> float:
    """How many digits more it takes to tell 10^{2000} from 10^{2000}+1, or 1 from 1+10^{-2000}."""
    inside = [_digits_of_large_numbers(arg) for arg in formula.args]
    if isinstance(formula, Add):
        return max(inside)
    size = log10(formula) if isinstance(formula, _POWERS) else 0
    return max(sum(inside), size if size > 50 else 0)


def check_digits(formula: Expr) -> None:
    """Raise TooCostly for a number with too many digits to tell whether another is equal."""
    if _digits_of_large_numbers(formula) > _MOST_DIGITS and _rational(formula) is None:
        raise TooCostly("too many digits to compare it")


def _rational(formula: Expr) -> Expr | None:
    """The exact value of a formula of rational numbers, their powers and factorials.

    None where it has so many digits that it takes seconds; fractions, with their gcd, have less.
    """
    functions = formula.atoms(sympy.Function) - formula.atoms(factorial)
    if functions or not all(atom.is_Rational for atom in formula.atoms()):
        return None
    powers = [p for p in sympy.preorder_traversal(formula) if isinstance(p, _POWERS)]
    whole = formula.atoms() == formula.atoms(Integer) and all(
        isinstance(p, factorial) or (p.exp.is_Integer and p.exp.is_positive) for p in powers
    )
    if sum(map(log10, powers)) > (_MOST_INTEGER_DIGITS if whole else _MOST_EXACT_DIGITS):
        return None
    value = formula.doit()
    return value if value.is_Rational else None


def _doit(formula: Expr, point: dict[Any, Any]) -> Expr:
    """Where the unevaluated formula has no numeric rule: evaluate it exactly first."""
    if log10(formula) > 10_000:
        raise TooCostly("too large to evaluate")
    return formula.subs(point).doit().evalf(15, maxn=_DIGITS)


def _number(formula: Expr, point: dict[Any, Any]) -> Any:
    value = formula.evalf(40, subs=point, maxn=200)
    return value if value.is_number and not value.has(sympy.nan, sympy.zoo, sympy.oo) else None
