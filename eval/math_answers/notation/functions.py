r"""Functions by their names: ζ, Γ, ψ, Li, erf, φ(n), 10C3, 7!!, as sympy has them or as symbols, of
which two are equal when name and arguments are. They are cut out before the formula is parsed: the
parser takes most for products."""

import re
from collections.abc import Callable
from typing import Any

import sympy
from sympy import Integer, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.combinatorial.numbers import totient

from .forms import split_top
from .plain import argument

_N = r"(?:\{\s*(\w+)\s*\}|(\w))"
_CHOSEN = [  # {}_{10}C_3, ^{10}C_3, C_{10}^3, C^3_{10}
    (re.compile(rf"(?:\{{\s*\}})?\s*[_^]\s*{_N}\s*C\s*_\s*{_N}"), False),
    (re.compile(rf"(?<![A-Za-z_^\\}}])C\s*_\s*{_N}\s*\^\s*{_N}"), False),
    (re.compile(rf"(?<![A-Za-z_^\\}}])C\s*\^\s*{_N}\s*_\s*{_N}"), True),
    (re.compile(r"(?<![A-Za-z\d_^])(\d{1,9})()\s*C\s*_?\s*(\d{1,9})()(?!\w)"), False),
]
_ARRANGED = [
    (re.compile(rf"(?:\{{\s*\}})?\s*[_^]\s*{_N}\s*P\s*_\s*{_N}"), False),
    (re.compile(rf"(?<![A-Za-z_^\\}}])[AP]\s*_\s*{_N}\s*\^\s*{_N}"), False),
    (re.compile(r"(?<![A-Za-z\d_^])(\d{1,9})()\s*P\s*_?\s*(\d{1,9})()(?!\w)"), False),
]
_UPRIGHT_LETTER = re.compile(
    r"\\(?:mathrm|text|operatorname|mathbf)\s*\{\s*([CPA])\s*\}(?=\s*[_^(])"
)
_DOUBLE = re.compile(r"(\d+|(?<![A-Za-z\\])[a-z]|\([^()]*\))\s*!!(?!!)")
_CALL = re.compile(
    r"(?:\\(?:operatorname\*?|mathrm|text|mathop)\s*\{\s*([A-Za-z]+)\s*\}|\\(zeta|psi|digamma))"
    r"(?:\s*_\s*(?:\{([^{}]*)\}|(\w)))?\s*(?:\\left\s*)?(?=\()"
    r"|\\(phi|varphi|sigma|tau|mu)()()()\s*(?:\\left\s*)?(?=\(\s*(?:\d{1,15}|[a-z])\s*(?:\\right\s*)?\))"
)
_NO_CALLS = {
    Symbol("q_{8998}"): (re.compile(r"\\gamma(?![a-zA-Z]|\s*[_'])"), sympy.EulerGamma),
    Symbol("q_{8999}"): (
        re.compile(r"\\Gamma(?![a-zA-Z]|\s*[_'(]|\s*\\left\s*\()"),
        Symbol("capital gamma"),
    ),
}
_LATEX_HAS = re.compile(
    r"(?:arc|ar)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|max|min|gcd|lcm|cis|mod"
)
_MOST_ARGUMENT = 10**12  # whose divisors are looked for


def _whole(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function on whole numbers; a symbol elsewhere."""

    def at(n: Any) -> Any:
        n = n.doit() if not n.free_symbols else n
        if not (n.is_Integer and 0 < n <= _MOST_ARGUMENT):
            raise ValueError(n)
        return function(n)

    return at


_EVALUATED: dict[tuple[str, int], Callable[..., Any]] = {
    ("zeta", 1): sympy.zeta, ("psi", 1): sympy.digamma, ("digamma", 1): sympy.digamma,
    ("Li_", 2): sympy.polylog, ("polylog", 2): sympy.polylog, ("li", 1): sympy.li,
    ("erf", 1): sympy.erf, ("erfc", 1): sympy.erfc, ("erfi", 1): sympy.erfi, ("Si", 1): sympy.Si,
    ("Ci", 1): sympy.Ci, ("Ei", 1): sympy.Ei, ("Shi", 1): sympy.Shi, ("Chi", 1): sympy.Chi,
    ("psi_", 2): sympy.polygamma, ("phi", 1): _whole(totient), ("varphi", 1): _whole(totient),
    ("sigma", 1): _whole(sympy.divisor_sigma),
    ("tau", 1): _whole(lambda n: sympy.divisor_sigma(n, 0)),
    ("mu", 1): _whole(sympy.mobius), ("doublefactorial", 1): sympy.factorial2,
    ("permutations", 2): sympy.ff, ("W", 1): sympy.LambertW, ("W_0", 1): sympy.LambertW,
    ("J_", 2): sympy.besselj, ("Y_", 2): sympy.bessely, ("C", 2): sympy.binomial,
    ("P", 2): sympy.ff, ("sgn", 1): sympy.sign, ("sign", 1): sympy.sign, ("Re", 1): sympy.re,
    ("Im", 1): sympy.im, ("Beta", 2): sympy.beta, ("gamma", 1): sympy.gamma,
    ("Gamma", 1): sympy.gamma,
}  # fmt: skip
TRANSCENDENTAL = (
    sympy.zeta, sympy.polylog, sympy.polygamma, sympy.li, sympy.erf, sympy.erfc, sympy.erfi,
    sympy.Si, sympy.Ci, sympy.Ei, sympy.Shi, sympy.Chi, sympy.LambertW, sympy.besselj,
    sympy.bessely,
)  # fmt: skip
"""Functions of which 1200 digits would take too long."""


def cut_out(text: str, parse: Callable[[str], Any]) -> tuple[str, dict[Symbol, Any]]:
    """The text with symbols for its named functions, and what those stand for. `parse` reads their
    arguments and raises what it raises."""
    text = _UPRIGHT_LETTER.sub(r"\1", text)
    for patterns, latex in (
        (_CHOSEN, r"\binom{%s}{%s}"),
        (_ARRANGED, r"\mathrm{permutations}(%s,%s)"),
    ):
        for pattern, upper_first in patterns:
            text = pattern.sub(lambda m, u=upper_first, x=latex: _of_two(m, u, x), text)
    text = _DOUBLE.sub(lambda m: rf"\mathrm{{doublefactorial}}({m[1].strip('()')})", text)
    symbols, end = dict[Symbol, Any](), 0
    for letter, (pattern, value) in _NO_CALLS.items():  # \gamma-2 is no value of a function
        text, several = pattern.subn(f" {letter.name.upper()} ", text)
        symbols |= {letter: value} if several else {}
    while match := _CALL.search(text, end):
        number = 9000 + len(symbols)
        name = match[1] or match[2] or match[5]
        inside = argument(text, match.end())
        if _LATEX_HAS.fullmatch(name) or not inside:
            end = match.end()
            continue
        index = match[3] or match[4] or ""
        values = [parse(piece) for piece in split_top(inside[0])]
        function = applied(f"{name}_{index}" if index else name, values, parse)
        symbols[Symbol(f"q_{{{number}}}")] = function
        text = f"{text[: match.start()]} Q_{{{number}}} {text[inside[1] :]}"
        end = match.start()
    return text, symbols


def _of_two(match: re.Match[str], upper_first: bool, latex: str) -> str:
    first, second = match[1] or match[2], match[3] or match[4]
    n, k = (second, first) if upper_first else (first, second)
    numbers = n.isdigit() and k.isdigit()
    indexed = "_" in match[0].lstrip("{} ")[:3] and match[0].lstrip()[0] in "CAP"
    if indexed and (int(n) < 3 or int(k) > int(n) if numbers else not n.isalpha()):
        return match[0]  # C_1^2 is the square of C_1
    return latex % (n, k)


def applied(name: str, values: list[Any], parse: Callable[[str], Any]) -> Any:
    r"""The function at its arguments, evaluated by sympy where it can be; else a symbol."""
    base, _, index = name.partition("_")
    attempts = [(name, values)]
    if index:
        number = Integer(index) if index.isdigit() else parse(index)
        attempts.append((f"{base}_", [number, *values]))
    for key, arguments in attempts:
        function = _EVALUATED.get((key, len(arguments)))
        if function is not None:
            try:
                return function(*arguments)
            except ValueError:
                break
    inside = ", ".join(sympy.srepr(value.doit()) for value in values)
    return Symbol(f"{name.strip(chr(92))}({inside})")  # of one function at one place


def with_functions(formula: Any, symbols: dict[Symbol, Any], parse: Callable[[str], Any]) -> Any:
    """The formula with its functions in place of the symbols; nothing else is evaluated."""
    if formula in symbols:
        return symbols[formula]
    if isinstance(formula, AppliedUndef):
        values = [with_functions(arg, symbols, parse) for arg in formula.args]
        return applied(re.sub(r"\\text\{(.*)\}$|[{}\\]", r"\1", str(formula.func)), values, parse)
    if not formula.args or not (formula.has(AppliedUndef) or formula.free_symbols & symbols.keys()):
        return formula
    arguments = [with_functions(arg, symbols, parse) for arg in formula.args]
    return formula.func(*arguments, evaluate=False)
