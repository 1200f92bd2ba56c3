r"""The shape of a math answer: lists, tuples, sets, intervals, unions, chains of equations. Shapes
decide more than sympy can: (1,2) is not \{1,2\}, `7 or 8` is two answers, `x = 3` names its value.
Text in, text out; the pieces go to sympy one at a time."""

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from . import words

LATEX = tomllib.loads(Path(__file__).with_name("latex.toml").read_text(encoding="utf-8"))
_PARTS: dict[str, str] = LATEX["parts"] | {"NUMBER_WORD": "|".join(words.NUMBERS)}
Shape = Literal["scalar", "list", "tuple", "set", "brackets", "half_open", "matrix"]

_AND_OR = re.compile(
    r"(?:,\s*)?(?:\\text\s*\{[\s,]*(?i:and|or|and also)[\s,]*\}|\b(?:and|or)\b|\\lor\b|\\land\b)"
    r"(?:\s*,)?"
)
_OPENERS, _CLOSERS = ("(", "[", "{", r"\{", r"\langle"), (")", "]", "}", r"\}", r"\rangle")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_MATRIX = re.compile(
    r"\\begin\{([bpB]?matrix|smallmatrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL
)
_KINDS: dict[tuple[str, str], Shape] = {
    ("(", ")"): "tuple", (r"\langle", r"\rangle"): "tuple", (r"\{", r"\}"): "set",
    ("[", "]"): "brackets", ("[", ")"): "half_open", ("(", "]"): "half_open",
}  # fmt: skip
_NAME = re.compile(  # x, x_1, f(x)
    r"(?:\\[A-Za-z]++|(?<=[A-Za-z}])_\s*\{?\d+\}?|[A-Za-z_{}'^\s|])++(?:\([A-Za-z, _0-9\\]*\))?"
)
_CHAIN_OF_NAMES = re.compile(r"\s*((?:[a-z](?:_\s*\{?\d+\}?)?\s*=\s*){2,})([^=,;]+)")
_LETTER = re.compile(r"\\text\s*\{[^{}]*\}|\\[A-Za-z]+|(?<!_)(?<!_\{)[A-Za-z](?!\s*[_'])")
_NAMED_TUPLE = re.compile(r"^\s*\(([A-Za-z_0-9, ]+)\)\s*=\s*\((.*)\)\s*$", re.DOTALL)
SAID_BETWEEN = re.compile(  # words between two values
    r"(?<=[\w)}\]])\s*\\text\s*\{([^{}]*[a-zA-Z][^{}]*)\}\s*"
    r"(?=[\w({]|\\(?!times|cdot|div|pm|mp|l[et]|g[et]|ne|in|to|equiv|approx|cup|cap|quad|text)[a-zA-Z])"
)
"""In group 1 the words, which are neither a unit behind a value nor an announcement before one."""


@dataclass(frozen=True)
class Form:
    """One answer as its pieces; `brackets` are the outermost pair, if any."""

    kind: Shape
    pieces: tuple[str, ...]
    brackets: tuple[str, str] = ("", "")


def rules(
    name: str, **computed: Callable[[re.Match[str]], str]
) -> list[tuple[re.Pattern[str], Any]]:
    """A list of latex.toml as (pattern, replacement); `computed` are the replacements in <>."""
    compiled = list[tuple[re.Pattern[str], Any]]()
    for pattern, replacement in LATEX[name]:
        for part, meaning in _PARTS.items():
            pattern = pattern.replace(f"<{part}>", meaning)
        compiled.append((re.compile(pattern), computed.get(replacement.strip("<>"), replacement)))
    return compiled


def split_top(text: str, separators: tuple[str, ...] = (",", ";")) -> list[str]:
    pieces, depth, current = [], 0, ""
    for token in _TOKEN.findall(text):
        depth += (token in _OPENERS) - (token in _CLOSERS)
        if depth == 0 and token in separators:
            pieces.append(current)
            current = ""
        else:
            current += token
    return [piece.strip() for piece in [*pieces, current]]


def enclosing(text: str) -> tuple[str, str, str] | None:
    """(opener, inside, closer) when one pair of brackets surrounds the whole text."""
    tokens = _TOKEN.findall(text.strip())
    if len(tokens) < 2 or tokens[0] not in _OPENERS or tokens[-1] not in _CLOSERS:
        return None
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token in _OPENERS) - (token in _CLOSERS)
        if depth == 0 and i < len(tokens) - 1:
            return None
    return tokens[0], "".join(tokens[1:-1]).strip(), tokens[-1]


def form_of(text: str) -> Form:
    """The outermost shape. `a and b`, `a or b` and ± count as lists."""
    text = _NAMED_TUPLE.sub(_named_values, text).strip()
    around = enclosing(text)
    if around and _MATRIX.fullmatch(around[1]) and around[0] in "([":
        text = around[1]
    if match := _MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\\\|\\cr(?![a-z])", match[2]) if row.strip()]
        cells = tuple(cell.strip() for row in rows for cell in row.split("&"))
        return Form("matrix", cells, (str(len(rows)), str(len(cells))))
    text = _AND_OR.sub(",", text)
    if len(pieces := _pieces(text)) > 1:
        return Form("list", pieces)
    opener, inside, closer = enclosing(text) or ("", "", "")
    pieces, kind = _pieces(inside), _KINDS.get((opener, closer))
    if kind and (len(pieces) > 1 or kind == "set"):
        return Form(kind, pieces, (opener, closer))
    return Form("scalar", (text,))


def _pieces(text: str) -> tuple[str, ...]:
    return tuple(p for piece in split_top(text) if piece for p in _plus_minus(piece))


def _named_values(match: re.Match[str]) -> str:
    """(y,x)=(2,1) as (y=2,x=1)."""
    names, values = split_top(match[1]), split_top(match[2])
    if len(names) != len(values):
        return f"({match[2]})"
    return f"({','.join(map('='.join, zip(names, values, strict=True)))})"


def _plus_minus(piece: str) -> list[str]:
    if not 0 < len(re.findall(r"\\[pm]{2}(?![a-z])", piece)) < 4:
        return [piece]
    upper = piece.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = piece.replace(r"\pm", "-").replace(r"\mp", "+")
    return [upper.removeprefix("+").replace("=+", "="), lower]


def equation_sides(text: str) -> list[str]:
    r"""The sides of a chain `a = b = c`, without what only approximates it (`\approx 1.41`)."""
    exact = re.split(r"\\approx|\\simeq|≈", text)
    text = exact[0] if exact[0].strip() else exact[-1]
    return [side for side in split_top(text, ("=",)) if side]


def each_named(text: str) -> str:
    """`x = 1, y = 1` of `x = y = 1`."""
    match = _CHAIN_OF_NAMES.fullmatch(text)
    names = match[1].split("=")[:-1] if match else []
    return ", ".join(f"{name.strip()}={match[2]}" for name in names) if match else text


def is_name(text: str) -> bool:
    r"""x, x_1, \theta, f(x), P(A), \angle ABC: what an equation gives a value to."""
    names = len(text) <= 60 and _NAME.fullmatch(text)
    return bool(names) and not re.search(r"\\(?:frac|sqrt)", text)


def _mixed_number(match: re.Match[str]) -> str:
    integer, numerator, denominator = map(int, match.groups())
    if numerator >= denominator:  # no mixed number
        return rf"{integer}\cdot\frac{{{numerator}}}{{{denominator}}}"
    return rf"\frac{{{integer * denominator + numerator}}}{{{denominator}}}"


_PARSABLE = rules(
    "parsable",
    MIXED=_mixed_number,
    DIVISOR=lambda m: str((math.gcd if m[1] == "gcd" else math.lcm)(int(m[2]), int(m[3]))),
    PRIMES=lambda m: f"{m[1]}_{{{1000 + len(m[2])}}}",
    REMAINDER=lambda m: str(int(m[1]) % (int(m[2]) or 1)),
    DECIMAL=lambda m: rf"\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}",
)


def parsable(text: str) -> str:
    for pattern, replacement in _PARSABLE:
        text = pattern.sub(replacement, text)
    return text


def renamed(answer: str, name: str, gold: str, parameter: str) -> str:
    """The answer with its parameter called as in the gold, where no other letter is in the way."""
    theirs, ours = (set(_LETTER.findall(side)) for side in (gold, answer))
    other = {parameter} if parameter else {letter for letter in theirs - ours if len(letter) == 1}
    if len(other) != 1 or other & ours or name in theirs:
        return answer
    return _LETTER.sub(lambda match: min(other) if match[0] == name else match[0], answer)


def distinct_capitals(gold: str, answer: str) -> tuple[str, str]:
    """Where a letter occurs in both cases, the capital gets an index: latex2sympy reads N as n. A
    constant may be c on one side and C on the other, but not beside sides and angles."""
    theirs, ours = (set(_LETTER.findall(side)) for side in (gold, answer))
    letters, constant = theirs | ours, {"c", "C"}
    both = {a for a in letters if len(a) == 1 and a.isupper() and a.lower() in letters}
    if len(constant & theirs) == len(constant & ours) == 1 and not letters & {*"abAB"}:
        both -= constant

    def indexed(match: re.Match[str]) -> str:
        letter = match[0]
        return f"{letter.lower()}_{{{ord(letter)}}}" if letter in both else letter

    return _LETTER.sub(indexed, gold), _LETTER.sub(indexed, answer)
