r"""What a text means only beside the other side: `5 N` is newtons beside `5000 \text{ mN}`, and
else a product; `{{1,2},{3,4}}` is a matrix beside a matrix, and else a set of sets. Text in, text
out."""

import re

from .notation.plain import in_latex
from .notation.spelling import spell
from .notation.words import TEXT, unit_named, unit_ratio
from .rules import Rule

Pair = tuple[str, str]

_SPACE = re.compile(r"\\(?:[ ,;:!]|q?quad(?![a-z]))|[~$]")
_LETTER = re.compile(r"(?i:option|choice|answer)?\s*\(?([A-J])[).]?")
_LETTER_AND_VALUE = re.compile(
    r"(?:\(([A-J])\)\s*|([A-J])[.)]\s+)"
    r"((?![-+*/^=<>_,;:&|!]\s|[+*/^=<>_,;:&|!]|\\(?:cdot|times|c[au]p|to|in|[lg]eq?|[Rr]ight|implies)"
    r"|.*\b[A-J]\s*[).:=]|[A-J]\b\W*$)\S.*)"
)
_SYMBOL = re.compile(
    r"(?<=[\d)}])(?<!\\circ\})(?:[\s~]|\\[,;:! ]|\\(?:text|mathrm)\s*\{)*"
    r"((?:[kMGTmunp]|\\mu\s*|[\u03bc\u00b5])?(?:[NJWVACF]|Hz|Pa|\\Omega|[\u03a9\u2126]))\s*\}?[\s.$]*$"
)
_AMBIGUOUS = {"C": "coulomb", "F": "farad"}  # as often degrees, where nothing else is said
_BRACED = re.compile(r"\s*\{\s*\{[^\\{}]*\}(?:\s*,\s*\{[^\\{}]*\})*\s*\}\s*")
_DECORATED = r"\\(?:hat|widehat|mathbf|vec|boldsymbol|bm|overrightarrow)\s*"
_AXIS = r"(?:([ijk])(?![A-Za-z])|\\([ij])math(?![A-Za-z]))\s*"
_UNIT_VECTOR = re.compile(
    rf"{_DECORATED}(?:\{{\s*{_DECORATED}(?:\{{\s*{_AXIS}\}}|{_AXIS})\s*\}}|\{{\s*{_AXIS}\}}|{_AXIS})"
)
_PLAIN_AXIS = re.compile(r"(?<![A-Za-z\\])([ijk])(?![A-Za-z])")
_MARK = "\ue000"
_TERM = re.compile(rf"(.*?)(?:\\cdot|\*|\\[,;:! ]|\s)*{_MARK}([ijk])\s*", re.DOTALL)


def _lettered(text: str) -> tuple[str, str] | None:
    """B and 21 of `\\textbf{(B)}\\ 21`, B and nothing of `(B)`."""
    plain = " ".join(_SPACE.sub(" ", re.sub(TEXT, r" \1 ", text)).split()).replace(" )", ")")
    if match := _LETTER.fullmatch(plain):
        return match[1], ""
    match = _LETTER_AND_VALUE.fullmatch(plain)
    return (match[1] or match[2], match[3]) if match else None


def choice_or_value(gold: str, answer: str) -> Pair | None:
    """Of a choice with its value, the part that the other side says."""
    theirs, ours = _lettered(gold), _lettered(answer)
    if not theirs and ours and ours[1]:
        return gold, ours[1]
    if not theirs or not theirs[1]:
        return None
    if not ours:
        return theirs[1], answer
    by_value = theirs[0] == ours[0] and ours[1]
    return (theirs[1], ours[1]) if by_value else (theirs[0], ours[0])


def symbols_of_units(gold: str, answer: str) -> Pair | None:
    """A capital letter behind a number, where the other side names a unit of its kind."""
    matches = [_SYMBOL.search(side) for side in (gold, answer)]
    if not any(matches):
        return None
    names = (
        m and _AMBIGUOUS.get(m[1], m[1].replace(r"\mu", "u").replace(" ", "")) for m in matches
    )
    pairs = zip((gold, answer), names, strict=True)
    units = [spell(side).unit if name is None else unit_named(name) for side, name in pairs]
    if not all(units) or unit_ratio(units[1], units[0]) is None:
        return None
    theirs, ours = (
        rf"{side[: match.start()]}\text{{ {_AMBIGUOUS.get(unit, unit)}}}" if match else side
        for side, match, unit in zip((gold, answer), matches, units, strict=True)
    )
    return theirs, ours


def matrix_in_braces(gold: str, answer: str) -> Pair | None:
    braced = [_BRACED.fullmatch(side) is not None for side in (gold, answer)]
    if braced[0] == braced[1] or not re.search(
        r"matrix|\[\s*\[|\\begin\s*\{array\}", answer if braced[0] else gold
    ):
        return None
    theirs, ours = (
        in_latex(side.replace("{", "[").replace("}", "]")) if is_braced else side
        for side, is_braced in zip((gold, answer), braced, strict=True)
    )
    return theirs, ours


def unit_vectors(gold: str, answer: str) -> Pair | None:
    r"""`2\mathbf{i}-3\mathbf{j}` as (2,-3); with a third entry where the other side has one."""
    decorated = [{*map(_axis, _UNIT_VECTOR.finditer(side))} for side in (gold, answer)]
    if not any(axes & {"j", "k"} for axes in decorated):
        return None
    marked = [_UNIT_VECTOR.sub(lambda m: _MARK + _axis(m), side) for side in (gold, answer)]
    pairs = zip(marked, decorated, strict=True)
    marked = [s if axes else _PLAIN_AXIS.sub(rf"{_MARK}\1", s) for s, axes in pairs]
    sides = list(map(_entries, marked))
    three = any(entries and entries[1].get("k") for entries in sides)
    pairs = zip(sides, (gold, answer), strict=True)
    three = three or any(not e and len(re.split(r",|&|\\\\", side)) == 3 for e, side in pairs)
    if any(axes and not entries for axes, entries in zip(decorated, sides, strict=True)):
        return None
    theirs, ours = (
        entries[0] + f"({','.join(entries[1].get(axis) or '0' for axis in 'ijk'[: 2 + three])})"
        if entries
        else side
        for entries, side in zip(sides, (gold, answer), strict=True)
    )
    return theirs, ours


def _axis(match: re.Match[str]) -> str:
    return "".join(filter(None, match.groups()))


def _entries(text: str) -> tuple[str, dict[str, str]] | None:
    """The name before an equals sign, and the coefficient of each unit vector."""
    name, equals, formula = text.rpartition("=")
    terms, depth = [""], 0
    for character in formula.strip().strip("$"):
        depth += (character in "([{") - (character in ")]}")
        if character in "+-" and depth == 0 and terms[-1].strip():
            terms.append("")
        terms[-1] += character
    entries = dict[str, str]()
    for term in terms:
        match = _TERM.fullmatch(term.strip())
        if not match or _MARK in match[1]:
            return None
        coefficient = match[1].strip()
        coefficient += "1" if coefficient in ("", "+", "-") else ""
        joined = entries.get(match[2], "")
        plus = "+" if joined and coefficient[0] not in "+-" else ""
        entries[match[2]] = joined + plus + coefficient
    return name + equals, entries


RULES = (
    Rule("A choice with its value as gold", choice_or_value),
    Rule("Symbols of units beside a unit", symbols_of_units),
    Rule("Braces beside a matrix", matrix_in_braces),
    Rule("Unit vectors", unit_vectors),
)


def resolve(gold: str, answer: str) -> Pair:
    for rule in RULES:
        gold, answer = rule.decide(gold, answer) or (gold, answer)
    return gold, answer
