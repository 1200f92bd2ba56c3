r"""Formulas as programs and keyboards write them, in LaTeX: `3*sqrt(2)/2`, `2**10`, `√(x+1)`. A
name counts where it stands alone, not inside of `\text{…}` or after a backslash."""

import re

from .forms import LATEX, enclosing, split_top
from .words import TEXT

_PLAIN: dict[str, dict[str, str]] = LATEX["plain"]
_CONSTANTS, _FUNCTIONS, _WRAPPED = (_PLAIN[key] for key in ("constants", "functions", "wrapped"))
_ROOTS = {"√": "", "∛": "[3]", "∜": "[4]", "sqrt": "", "cbrt": "[3]"}
_NAMES = sorted({*_CONSTANTS, *_FUNCTIONS, *_WRAPPED, *_ROOTS} - {*"√∛∜"}, key=len, reverse=True)
_TRIGGER = re.compile(r"\*|\^\s*[-(]|[√∛∜]|\\sqrt\s*\(|(?<![\\A-Za-z])[A-Za-z]{2}|\[\s*\[")
_WORD = re.compile(rf"{TEXT}|\\[A-Za-z]+|\\.|log(?:2|10)(?=\()|[A-Za-z]+|[√∛∜]")
_BOLD = re.compile(r"\s*(\*\*|\*|__|`+)(?=\S)([^*`]*?)(?<=\S)\1\s*")
_POWER = re.compile(r"(?:\*\*|\^)\s*(?=\(|-|\d)|\*\*\s*")
_EXPONENT = re.compile(r"[-+]?\s*(?:\d+(?:\.\d+)?|\\?[A-Za-z]+)")
_RADICAND = re.compile(r"\s*(\d+(?:\.\d+)?|(?:[a-zA-Z]|\\(?:pi|alpha|theta))(?![a-zA-Z(]))")
_MATRIX = re.compile(r"\s*(?:[Mm]atrix\s*\(\s*)?(\[\s*\[.*\]\s*\])\s*\)?\s*", re.DOTALL)
_DIGITS_BEFORE_E = re.compile(r"[\d.]\s*$")
_OF_PROGRAMS = re.compile(r"\*\*|(?<![\\A-Za-z])exp\(")
_LOG = re.compile(r"(?<![\\A-Za-z])log\((?=[^(),]*(?:\([^(),]*\)[^(),]*)*\))")  # of one argument
_MOST = 400  # characters of a formula that is written so


def in_latex(text: str) -> str:
    """The formula in LaTeX; a text without such syntax stays as it is."""
    if match := _BOLD.fullmatch(text):
        text = match[2]
    if len(text) > _MOST or not _TRIGGER.search(text):
        return text
    if match := _MATRIX.fullmatch(text):
        return _rows(match[1]) or text
    if _OF_PROGRAMS.search(text):
        text = _LOG.sub("ln(", text)
    text = _named(text)
    text = _powers(text)
    return re.sub(r"(?<![\^_{*\\])\*(?![*}])", r"\\cdot ", text)


def _rows(text: str) -> str:
    """[[1,2],[3,4]] as a matrix; empty where its rows are of different lengths."""
    around = enclosing(text)
    inner = [enclosing(row) for row in split_top(around[1])] if around else []
    if not all(row and row[0] == "[" and row[2] == "]" for row in inner):
        return ""
    rows = [split_top(row[1]) for row in inner if row]
    if len({len(row) for row in rows}) != 1 or (len(rows) == 1 and "," not in text):
        return ""
    body = r"\\".join("&".join(map(in_latex, row)) for row in rows)
    return rf"\begin{{pmatrix}}{body}\end{{pmatrix}}"


def argument(text: str, start: int) -> tuple[str, int] | None:
    """What stands in the brackets that open at `start`, and where they have ended."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return text[start + 1 : i].removesuffix(r"\right"), i + 1
    return None


def _named(text: str) -> str:
    """Names of functions and constants, with the arguments of those that LaTeX writes in braces."""
    result, end = "", 0
    while match := _WORD.search(text, end):
        result += text[end : match.start()]
        word, end = match[0], match.end()
        opening = re.match(r"\s*(?:\\left\s*)?(?=\()", text[end:])
        start = end + opening.end() if opening else -1
        parts = _split_word(word, start >= 0, text[end : end + 1])
        result += "".join(_CONSTANTS.get(part, part) for part in parts[:-1])
        name = parts[-1]
        inside = argument(text, start) if start >= 0 else None
        if inside and (name in _WRAPPED or name in _ROOTS or name == r"\sqrt"):
            arguments = [_named(piece) for piece in split_top(inside[0], (",",))]
            if written := _wrapped(name, arguments):
                result, end = result + written, inside[1]
                continue
        if name in _ROOTS and (simple := _RADICAND.match(text, end)):
            result, end = rf"{result}\sqrt{_ROOTS[name]}{{{simple[1]}}}", simple.end()
        elif name in "√∛∜":
            result += rf"\sqrt{_ROOTS[name]}"
        elif name in _FUNCTIONS and (start >= 0 or re.match(r"\s*(?:\^|[a-z\d\\])", text[end:])):
            result += _FUNCTIONS[name] + " " * (start < 0)
        elif name in _CONSTANTS and not (name == "e" and _DIGITS_BEFORE_E.search(result)):
            result += _CONSTANTS[name] + " "
        else:
            result += name
    return result + text[end:]


def _split_word(word: str, called: bool, after: str) -> list[str]:
    """`sinx` as sin and x, `xsqrt(` as x and sqrt; any other word is one part."""
    if not word.isalpha() or word in _NAMES or word in "√∛∜":
        return [word]
    for name in _NAMES:
        if called and word[1:] == name and name not in _CONSTANTS:
            return [word[0], name]
        if name in _FUNCTIONS and word.startswith(name) and not called and len(name) > 1:
            rest = word[len(name) :]
            if (len(rest) == 1 and rest not in "ghs") or rest in _CONSTANTS:
                return [_FUNCTIONS[name] + " ", rest]
    return [word]


def _wrapped(name: str, arguments: list[str]) -> str:
    """A call in LaTeX; empty where the function takes another number of arguments."""
    if name in _ROOTS or name == r"\sqrt":
        index = _ROOTS.get(name, "")
        return rf"\sqrt{index}{{{arguments[0]}}}" if len(arguments) == 1 else ""
    patterns = [p for p in _WRAPPED[name].split(" | ") if p.count("%") == len(arguments)]
    for pattern in patterns:
        for n, value in enumerate(arguments, 1):
            pattern = pattern.replace(f"%{n}", value)
        return pattern
    return ""


def _powers(text: str) -> str:
    """`e^(2)`, `x**2` and `10^-7` with braces."""
    result, end = "", 0
    while match := _POWER.search(text, end):
        result, start = result + text[end : match.start()], match.end()
        bracketed = argument(text, start) if text[start : start + 1] == "(" else None
        if bracketed:
            result, end = rf"{result}^{{{_powers(bracketed[0])}}}", bracketed[1]
        elif simple := _EXPONENT.match(text, start):
            result, end = rf"{result}^{{{simple[0]}}}", simple.end()
        else:
            result, end = result + match[0], start
    return result + text[end:]
