r"""Formulas: from the LaTeX of an answer to an unevaluated sympy formula, and are two equal?

sympy is asked only what it can answer in bounded time: what would be too large to write down,
integrals and long sums are refused before, and nothing is simplified or expanded. Constants are
compared by the digits that tell them apart (up to 1200), formulas with letters at random points.
"""

import math
import random
import re
import warnings
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy import Add, Expr, Integer, Mul, Pow, Rational, Symbol, factorial
from sympy.polys.polyerrors import BasePolynomialError

from .forms import SAID_BETWEEN, parsable
from .functions import TRANSCENDENTAL, cut_out, with_functions
from .sampling import Domain

_LOG10_AT_A_POINT = 0.55  # 0.3 to 2.9
_MAX_LOG10 = 1e7
_MAX_ARGUMENT_LOG10 = 1000  # sin(10^n) needs n digits of pi
_LONGEST_SUM = 10_000
_CONSTANTS = {Symbol("i"): sympy.I, Symbol("e"): sympy.E}
_UNDONE = (sympy.Integral, sympy.Limit, sympy.Derivative)
_EAGER = re.compile(r"\\(?:binom|choose|lfloor|lceil|gcd|lcm|mod|bmod|pmod)")
_SQUARED = re.compile(r"\\[a-z]+\s*\^\s*\d\s+(?=\d)")  # \ln^2 2
_DIGITS, _DIGITS_AT_A_POINT, _MOST_DIGITS = 1200, 120, 20_000
_POWERS = (Pow, factorial, sympy.exp)
_ENDLESS = (sympy.nan, sympy.zoo, sympy.oo, -sympy.oo)
_SIGNS_AT_A_POINT = (1, 1), (1, 1), (1, 1), (-1, 1)
_ENOUGH_POINTS = 20
_ANTIDERIVATIVE, _VARIABLES = re.compile(r"(.+)\+\s*C"), (*"rstuvwxyz", "theta")
_MOST_OPERATIONS = 60  # of an equation whose denominators are cleared

warnings.filterwarnings("ignore")


class TooCostly(Exception):
    """The formula is not evaluated: its value would not fit, or it is no value yet."""


class Unreadable(Exception):
    """The text is no formula."""


class _Reader(_Latex2Sympy):
    """latex2sympy, for which 2(3) is 6 and no mixed number: `parsable` has written those out."""

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        factor = self.convert_postfix(arr[i])
        if i == len(arr) - 1 or not isinstance(factor, Expr | sympy.MatrixBase):
            return factor
        rest = self.convert_postfix_list(arr, i + 1)
        matrices = any(isinstance(side, sympy.MatrixBase) for side in (factor, rest))
        return self.mat_mul_flat(factor, rest) if matrices else self.mul_flat(factor, rest)


@lru_cache(maxsize=512)
def parse(text: str) -> Expr:
    """The unevaluated formula. Raises Unreadable and TooCostly."""
    text = text.strip()
    _check_text(text)
    text, functions = cut_out(text, parse)
    try:
        formula = _Reader(None, None, False, config=ConversionConfig()).parse(
            normalize_latex(parsable(text), NormalizationConfig())
        )
    except Exception as error:
        raise Unreadable(f"not a formula: {text[:80]}") from error
    if not isinstance(formula, Expr):
        raise Unreadable(f"not a formula: {text[:80]}")
    formula = with_functions(formula, functions, parse)
    for part in sympy.preorder_traversal(formula):
        _check_part(part)
    if formula.has(sympy.Sum, sympy.Product):
        formula = formula.doit()
    return _with_constants(formula)


def _with_constants(formula: Any) -> Any:
    """The letters i and e are numbers; nothing is evaluated."""
    if formula in _CONSTANTS:
        return _CONSTANTS[formula]
    if not formula.args or not formula.free_symbols & _CONSTANTS.keys():
        return formula
    return formula.func(*map(_with_constants, formula.args), evaluate=False)


def _check_text(text: str) -> None:
    """Refuse by the text what the parser would misread, evaluate or choke on."""
    if re.search(r"(?<!\\)[A-Za-z]{40}", text):
        raise TooCostly("a long run of letters is no formula")
    if re.search(r"_\s*\w\s*_", text):
        raise Unreadable("a double subscript is no formula")
    if re.search(r"(?:[{(\[][^][{}()]*){30}", text):
        raise TooCostly("too deeply nested")
    tall = any(int(n) > 30 for n in re.findall(r"\^\s*\{?\s*(\d{1,9})", text))
    tall = tall or re.search(r"\^\s*\{[^{}]*\^", text) is not None
    if _EAGER.search(text) and (tall or "!" in text or re.search(r"\d{5}", text)):
        raise TooCostly("too large to evaluate")
    if re.search(r"\d\s+\d", _SQUARED.sub("", text)):
        raise Unreadable("two numbers beside each other")
    if between := SAID_BETWEEN.search(text):
        raise Unreadable(f"words between two values: {between[1][:80]}")


def _check_part(part: Any) -> None:
    if isinstance(part, _UNDONE):
        raise TooCostly("an integral or limit is no final answer")
    if isinstance(part, sympy.Sum | sympy.Product):
        for _, low, high in part.limits:
            if not (low.is_Integer and high.is_Integer and high - low <= _LONGEST_SUM):
                raise TooCostly("a long sum or product is no final answer")
    if isinstance(part, TRANSCENDENTAL):
        most = 300 if isinstance(part, sympy.zeta) else 16  # erf(30) is 1 for 390 digits
        constant: list[Any] = [arg for arg in part.args if not arg.free_symbols]
        if any(abs(complex(arg.evalf())) > most for arg in constant):
            raise TooCostly("too near to a simpler value to be told from it")
    function = isinstance(part, sympy.Function) and not isinstance(part, factorial | sympy.log)
    constants = [arg for arg in part.args if function and not arg.free_symbols]
    size = log10(part) if isinstance(part, Pow | factorial) else 0
    large = size > _MAX_LOG10 and not part.free_symbols
    if size == math.inf or large or any(log10(arg) > _MAX_ARGUMENT_LOG10 for arg in constants):
        raise TooCostly("too large to evaluate")


def log10(formula: Any) -> float:
    """An upper bound of log10 |formula| for nested powers and factorials, without evaluating."""
    if isinstance(formula, Integer | Rational):
        return math.log10(max(abs(formula.p), 1)) if formula.p < 10**300 else len(str(formula.p))
    if isinstance(formula, Pow | sympy.exp):
        above: Any = formula.exp
        exponent = log10(above)
        if 1 < exponent <= 18 and not above.free_symbols:  # small enough to be looked at
            exponent = math.log10(max(abs(complex(above.evalf())), 1))
        base = math.log10(math.e) if isinstance(formula, sympy.exp) else log10(formula.base)
        if isinstance(formula.base, Rational):
            base = max(base, math.log10(formula.base.q))
        return math.inf if exponent > 18 else base * 10**exponent
    if isinstance(formula, factorial):
        n = log10(formula.args[0])
        return math.inf if n > 12 else n * 10**n
    if formula.args:
        sizes = [log10(arg) for arg in formula.args]
        return sum(max(size, 0) for size in sizes) + math.log10(len(sizes) + 1)
    return _LOG10_AT_A_POINT if isinstance(formula, Symbol) else 1.0  # a named constant


def same_value(gold: str, answer: str, error: Fraction | None = None) -> bool:
    """Whether two formulas are equal, or an irrational answer is within `error` of the gold. Raises
    Unreadable when the gold cannot be read; an answer that cannot be read is wrong."""
    expected = parse(gold)
    try:
        actual = parse(answer)
    except Unreadable:
        return False
    if error is not None and not actual.free_symbols and not actual.is_rational:
        value = actual.evalf(30)
        return bool(value.is_real and abs(value - expected) <= Rational(error))
    return _same_formula(expected, actual)


def same_antiderivative(gold: str, answer: str) -> bool:
    """Whether f(x) + C and g(x) + C differ by a constant, of which C is as good as any other."""
    matches = [_ANTIDERIVATIVE.fullmatch(side.strip()) for side in (gold, answer)]
    try:
        f, g = (parse(match[1]) for match in matches if match)
    except (ValueError, Unreadable):
        return False
    if len(f.free_symbols) != 1 or f.free_symbols != g.free_symbols:
        return False
    domain = Domain(f, g)
    point = next(filter(domain.compared, domain.points()), None)
    if point is None or str(*f.free_symbols) not in _VARIABLES:
        return False
    here: list[Any] = [formula.xreplace(point) for formula in (f, g)]
    difference = Add(here[0], Mul(-1, here[1], evaluate=False), evaluate=False)
    return _same_formula(f, Add(g, difference, evaluate=False))


def _same_formula(expected: Expr, actual: Expr) -> bool:
    if expected.has(*_ENDLESS) or actual.has(*_ENDLESS):
        return bool(expected.doit() == actual.doit())
    if expected == actual:
        return True
    symbols = expected.free_symbols | actual.free_symbols
    difference = Add(expected, Mul(-1, actual, evaluate=False), evaluate=False)
    if not symbols:
        return _is_zero(difference, {}) is True
    verdicts, domain = list[bool | None](), Domain(expected, actual)
    for point in domain.points():
        if (compared := domain.compared(point)) is False:
            continue
        verdicts.append(_is_zero(difference, point) if compared else False)
        if False in verdicts:
            return False
        if domain.restricted and verdicts.count(True) >= _ENOUGH_POINTS:
            break
    if not verdicts:  # real nowhere that we look
        verdicts = [_is_zero(difference, point) for point in _points(symbols)]
    return False not in verdicts and verdicts.count(True) > 1


def same_equation(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Whether two equations have the same solutions: the differences of sides are proportional."""
    expected = Add(parse(gold[0]), -parse(gold[1]), evaluate=False)
    try:
        actual = Add(parse(answer[0]), -parse(answer[1]), evaluate=False)
    except Unreadable:
        return False
    symbols = expected.free_symbols
    if not symbols or symbols != actual.free_symbols:
        return False
    if _proportional(expected, actual, symbols):
        return True
    if max(expected.count_ops(), actual.count_ops()) > _MOST_OPERATIONS:
        return False
    pairs = (sympy.fraction(sympy.together(side)) for side in (expected, actual))
    (one, excluded), (other, below) = pairs
    return _proportional(one, other, symbols) and all(
        part in Mul.make_args(excluded) or _loses_nothing(other, part.as_base_exp()[0])
        for part in Mul.make_args(below)
    )


def _loses_nothing(numerator: Any, denominator: Any) -> bool:
    """Whether a denominator loses no solution: y = x^2 has (0, 0), y/x = x has not."""
    if not denominator.free_symbols:
        return True
    for symbol in {denominator, *denominator.free_symbols}:
        with suppress(BasePolynomialError):
            remainder = sympy.rem(numerator, denominator, symbol)
            if not remainder.free_symbols and remainder != 0:
                return True
    return False


def _proportional(expected: Any, actual: Any, symbols: set[Any]) -> bool:
    def at(formula: Any, point: dict[Any, Any]) -> Any:
        value = formula.evalf(40, subs=point, maxn=200)
        return value if _is_finite(value) and value != 0 else None

    pairs = [(at(expected, point), at(actual, point)) for point in _points(symbols)]
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    return len(ratios) > 1 and all(abs(r / ratios[0] - 1) < 1e-25 for r in ratios)


def _points(symbols: set[Any]) -> list[dict[Any, Any]]:
    """The same rational points every time: some positive, one with every sign."""
    chosen = random.Random(0)
    ordered = sorted(symbols, key=str)
    return [
        {s: Rational(sign[n % 2] * chosen.randint(300, 2900), 997) for n, s in enumerate(ordered)}
        for sign in _SIGNS_AT_A_POINT
    ]


def _is_finite(value: Any) -> bool:
    return value.is_number and not value.has(*_ENDLESS)


def _is_zero(formula: Expr, point: dict[Any, Any]) -> bool | None:
    """Whether no digit tells the value from zero; None at a pole. TooCostly for too many digits."""
    larger = _digits_of_large_numbers(formula)
    if larger and not point:
        with suppress(ValueError):
            return _residue(formula, _prime()) == 0
    if point and all(value.is_Integer for value in point.values()):
        exact = formula.xreplace(point)  # of whole numbers it is quicker than 120 digits
        if exact.is_Rational:
            return exact == 0
    few = point or formula.has(*TRANSCENDENTAL)
    digits = (_DIGITS_AT_A_POINT if few else _DIGITS) + int(min(larger, _MOST_DIGITS))
    try:
        value = formula.evalf(15, subs=point, maxn=digits)
    except (ArithmeticError, ValueError, TypeError, NotImplementedError, AttributeError):
        return None
    if not _is_finite(value):
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


@lru_cache
def _prime() -> int:
    """A large prime that every process draws anew: no answer is written to be a multiple of it."""
    return sympy.nextprime(2**127 + random.SystemRandom().getrandbits(126))


def _residue(formula: Any, prime: int) -> int:
    """A formula of rational numbers and whole powers, modulo a prime; ValueError for any other."""
    if isinstance(formula, Rational):
        return formula.p * pow(formula.q, -1, prime) % prime
    if isinstance(formula, Add | Mul):
        parts = [_residue(arg, prime) for arg in formula.args]
        return (sum(parts) if isinstance(formula, Add) else math.prod(parts)) % prime
    exponent: Any = formula.exp.doit() if isinstance(formula, Pow) else None
    if exponent is None or not exponent.is_Integer:
        raise ValueError("no formula of rational numbers")
    return pow(_residue(formula.base, prime), int(exponent), prime)
