r"""The shape of a math answer: lists, tuples, sets, intervals, unions, chains of equations.

Shapes decide more than sympy can: (1,2) is not \{1,2\}, `7 or 8` is two answers, `x = 3` names its
value. Text in, text out; the pieces go to sympy one at a time.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["scalar", "list", "tuple", "set", "brackets", "half_open", "matrix"]

_AND_OR = re.compile(
    r"(?:,\s*)?(?:\\text\s*\{[\s,]*(?:and|or|and also)[\s,]*\}|\b(?:and|or)\b|\\lor\b|\\land\b)"
    r"(?:\s*,)?"
)
_OPENERS, _CLOSERS = ("(", "[", "{", r"\{", r"\langle"), (")", "]", "}", r"\}", r"\rangle")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{([bpvBV]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_KINDS: dict[tuple[str, str], Kind] = {
    ("(", ")"): "tuple",
    (r"\langle", r"\rangle"): "tuple",
    (r"\{", r"\}"): "set",
    ("[", "]"): "brackets",
    ("[", ")"): "half_open",
    ("(", "]"): "half_open",
}
_NAME = re.compile(r"(?:\\[A-Za-z]++|[A-Za-z_{}'^\s|])++(?:\([A-Za-z, _0-9\\]*\))?")
_NAMED_TUPLE = re.compile(r"^\s*\([A-Za-z_0-9, ]+\)\s*=\s*(?=\()")


@dataclass(frozen=True)
class Form:
    """One answer as its pieces; `brackets` are the outermost pair, if any."""

    kind: Kind
    pieces: tuple[str, ...]
    brackets: tuple[str, str] = ("", "")


def split_top(text: str, separators: tuple[str, ...] = (",", ";")) -> list[str]:
    """Split where no bracket is open."""
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
    text = _NAMED_TUPLE.sub("", text).strip()
    if match := _MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\\\", match[2]) if row.strip()]
        cells = tuple(cell.strip() for row in rows for cell in row.split("&"))
        return Form("matrix", cells, (str(len(rows)), str(len(cells))))
    text = _AND_OR.sub(",", text)
    pieces = [p for piece in split_top(text) if piece for p in _plus_minus(piece)]
    if len(pieces) > 1:
        return Form("list", tuple(pieces))
    around = enclosing(text)
    if around:
        opener, inside, closer = around
        inner = [p for piece in split_top(inside) if piece for p in _plus_minus(piece)]
        kind = _KINDS.get((opener, closer))
        if kind and (len(inner) > 1 or kind == "set"):
            return Form(kind, tuple(inner), (opener, closer))
    return Form("scalar", (text,))


def _plus_minus(piece: str) -> list[str]:
    if r"\pm" not in piece and r"\mp" not in piece:
        return [piece]
    upper = piece.replace(r"\pm", "+").replace(r"\mp", "-")
    lower = piece.replace(r"\pm", "-").replace(r"\mp", "+")
    return [upper.removeprefix("+").replace("=+", "="), lower]


def equation_sides(text: str) -> list[str]:
    r"""The sides of a chain `a = b = c`, without what only approximates it (`\approx 1.41`)."""
    exact = re.split(r"\\approx|\\simeq|≈", text)
    text = exact[0] if exact[0].strip() else exact[-1]
    return [side for side in split_top(text, ("=",)) if side]


def is_name(text: str) -> bool:
    r"""x, x_1, \theta, f(x), P(A), \angle ABC: what an equation gives a value to."""
    return (
        len(text) <= 60 and bool(_NAME.fullmatch(text)) and not re.search(r"\\(?:frac|sqrt)", text)
    )
