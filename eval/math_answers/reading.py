r"""From the LaTeX of an answer to an unevaluated sympy formula, or a refusal.

Formulas whose value would be too large to write down, and unevaluated integrals and long sums, are
refused before they are evaluated.
"""

import math
import re
import warnings
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy import Expr, Integer, Pow, Rational, Symbol, factorial

from eval.math_answers.forms import SAID_BETWEEN, parsable

_LOG10_AT_A_POINT = 0.55  # 0.3 to 2.9
_MAX_NESTING, _MAX_POWERS_DEEP, _MAX_LOG10 = 40, 2, 1e7
_MAX_ARGUMENT_LOG10 = 1000  # sin(10^n) needs n digits of pi
_LONGEST_SUM = 10_000
_UNDONE = (sympy.Integral, sympy.Limit, sympy.Derivative)
_EAGER = re.compile(r"\\(?:binom|choose|lfloor|lceil|gcd|lcm|mod|bmod|pmod)")

warnings.filterwarnings("ignore")


class TooCostly(Exception):
    """The formula is not evaluated: its value would not fit, or it is no value yet."""


class Unreadable(Exception):
    """The text is no formula."""


class _Reader(_Latex2Sympy):
    """latex2sympy, for which 2(3) is 6: the library reads it as the mixed number 2 + 3.

    `parsable` has written out those that are mixed numbers.
    """

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        factor, last = self.convert_postfix(arr[i]), i == len(arr) - 1
        if isinstance(factor, list) and not last:  # d/dx, in front of what it is taken of
            return sympy.Derivative(self.convert_postfix_list(arr, i + 1), factor[0])
        if last or not isinstance(factor, Expr | sympy.MatrixBase):
            return factor
        rest = self.convert_postfix_list(arr, i + 1)
        matrices = any(isinstance(side, sympy.MatrixBase) for side in (factor, rest))
        return self.mat_mul_flat(factor, rest) if matrices else self.mul_flat(factor, rest)


@lru_cache(maxsize=512)
def parse(text: str) -> Expr:
    """The unevaluated formula. Raises Unreadable and TooCostly."""
    text = text.strip()
    _check_nesting(text)
    if re.search(r"\d\s+\d", text):
        raise Unreadable("two numbers beside each other")
    if said := SAID_BETWEEN.search(text):
        raise Unreadable(f"words between two values: {said[1][:80]}")
    try:
        formula = _Reader(None, None, False, config=ConversionConfig()).parse(
            normalize_latex(parsable(text), NormalizationConfig())
        )
    except RecursionError as error:
        raise TooCostly("too deeply nested") from error
    except Exception as error:
        raise Unreadable(f"not a formula: {text[:80]}") from error
    if isinstance(formula, sympy.FiniteSet) and len(formula) == 1:
        formula = formula.args[0]
    if not isinstance(formula, Expr):
        raise Unreadable(f"not a formula: {text[:80]}")
    _check_cost(formula)
    if formula.has(sympy.Sum, sympy.Product):
        formula = formula.doit()
    constants = {Symbol("i"): sympy.I, Symbol("e"): sympy.E}
    used = {s: value for s, value in constants.items() if s in formula.free_symbols}
    return _replace(formula, used)


def _replace(formula: Any, values: dict[Any, Any]) -> Any:
    """Substitute without evaluating anything."""
    if not values:
        return formula
    if formula in values:
        return values[formula]
    if not formula.args or not formula.free_symbols & set(values):
        return formula
    return formula.func(*(_replace(arg, values) for arg in formula.args), evaluate=False)


def _check_nesting(text: str) -> None:
    """Refuse by the text what the parser itself would evaluate or choke on."""
    if re.search(r"(?<!\\)[A-Za-z]{40}", text):
        raise TooCostly("a long run of letters is no formula")
    if re.search(r"_\s*\w\s*_", text):
        raise Unreadable("a double subscript is no formula")
    depth = deepest = powers = 0
    open_powers: list[bool] = []
    for match in re.finditer(r"(\^\s*)?([{(\[])|[)}\]]", text):
        if match[2]:
            open_powers.append(bool(match[1]))
            depth += 1
            powers = max(powers, sum(open_powers))
        elif open_powers:
            open_powers.pop()
            depth -= 1
        deepest = max(deepest, depth)
    if deepest > _MAX_NESTING or powers > _MAX_POWERS_DEEP:
        raise TooCostly("too deeply nested")
    if _EAGER.search(text) and ("^" in text or "!" in text or re.search(r"\d{5}", text)):
        numbers = re.findall(r"\d{5,}", text)
        if "!" in text or numbers or _tall_power(text):
            raise TooCostly("too large to evaluate")


def _tall_power(text: str) -> bool:
    return any(int(n) > 30 for n in re.findall(r"\^\s*\{?\s*(\d{1,9})", text))


def _check_cost(formula: Expr) -> None:
    for part in sympy.preorder_traversal(formula):
        if isinstance(part, _UNDONE):
            raise TooCostly("an integral or limit is no final answer")
        if isinstance(part, sympy.Sum | sympy.Product):
            for _, low, high in part.limits:
                if not (low.is_Integer and high.is_Integer and high - low <= _LONGEST_SUM):
                    raise TooCostly("a long sum or product is no final answer")
        function = isinstance(part, sympy.Function) and not isinstance(part, factorial | sympy.log)
        constants = [arg for arg in part.args if function and not arg.free_symbols]
        if any(log10(arg) > _MAX_ARGUMENT_LOG10 for arg in constants):
            raise TooCostly("too large to evaluate")
        if isinstance(part, Pow | factorial) and not part.free_symbols and log10(part) > _MAX_LOG10:
            raise TooCostly("too large to evaluate")


def log10(formula: Any) -> float:
    """An upper bound of log10 |formula| for nested powers and factorials, without evaluating."""
    if isinstance(formula, Integer | Rational):
        return math.log10(max(abs(formula.p), 1)) if formula.p < 10**300 else len(str(formula.p))
    if isinstance(formula, Pow):
        base, exponent = log10(formula.base), log10(formula.exp)
        if formula.base.is_Rational and isinstance(formula.base, Rational):
            base = max(base, math.log10(formula.base.q))
        return math.inf if exponent > 18 else base * 10**exponent
    if isinstance(formula, sympy.exp):
        exponent = log10(formula.args[0])
        return math.inf if exponent > 18 else math.log10(math.e) * 10**exponent
    if isinstance(formula, factorial):
        n = log10(formula.args[0])
        return math.inf if n > 12 else n * 10**n
    if formula.args:
        sizes = [log10(arg) for arg in formula.args]
        return sum(max(size, 0) for size in sizes) + math.log10(len(sizes) + 1)
    return _LOG10_AT_A_POINT if isinstance(formula, Symbol) else 1.0  # a named constant
