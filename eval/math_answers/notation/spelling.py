r"""One spelling for both sides of a math comparison: typesetting is undone, values stay. A unit, a
percent or degree sign is kept apart: it counts only where both sides have it."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from . import words
from .forms import LATEX, equation_sides, form_of, is_name, rules
from .numerals import in_digits
from .plain import in_latex
from .words import GROUP, TEXT, in_english

NUMBER: str = LATEX["parts"]["NUMBER"]
_NUMBERS = {word: str(number) for number, word in enumerate(words.NUMBERS)}
_UNICODE = str.maketrans(dict.fromkeys("€£¥", "")) | {
    ord(symbol): latex + " " * latex[-1].isalpha() for symbol, latex in LATEX["symbols"].items()
}
_TYPOGRAPHIC = re.compile(
    "(?P<up>[⁰¹²³⁴-⁹⁺⁻ⁿ]+)|(?P<down>[₀-₉ₙ]+)|[\xa0¼-¾⅐-⅞]|[\uff01-\uff5e\U0001d400-\U0001d7ff]"
)
_COMMANDS = dict.fromkeys(LATEX["layout"], "") | LATEX["commands"]
_COMMAND = re.compile(r"\\([a-zA-Z]+)")


def _repeating(match: re.Match[str]) -> str:
    """0.1666… as a fraction: its digits before and in the period."""
    integer, before, period = match.groups()
    if len(before) + len(period) > 100:
        return match[0]
    shown = int(f"{integer or 0}{before}{period}") - int(f"{integer or 0}{before}")
    return rf"\frac{{{shown}}}{{{'9' * len(period)}{'0' * len(before)}}}"


_REWRITES = rules(
    "rewrites",
    REPEATING=_repeating,
    DIGITS=lambda m: f"_{{{_NUMBERS[m[1]]}}}",
    MINUTES=lambda m: (
        rf"\frac{{{(int(m[1]) * 60 + int(m[2])) * 60 + int(m[3] or 0)}}}{{3600}}^\circ "
    ),
    SYSTEM=lambda m: ", ".join(row.strip(" ,;.") for row in m[1].replace("&", "").split(r"\\")),
    HALF_LINE=lambda m: LATEX["half_lines"][m[1].replace(" ", "")],
)
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^\d{1,3}(?=.*, 0)(?:,\s?\d{3})+$")
_POWER = r"(?:\s*\^\s*\{?([23])\}?)?\s*$"
_ONE_UNIT = rf"{TEXT}(?:\s*\^\s*\{{?\s*-?\d\s*\}}?)?"
_UNITS = re.compile(  # \text{ m/s}^2, \frac{\text{m}}{\text{s}}, \mathrm{m s^{-1}}
    rf"(?<=[\w)}}])\s*(\\frac\s*\{{\s*{_ONE_UNIT}\s*\}}\s*\{{\s*{_ONE_UNIT}\s*\}}"
    rf"|{_ONE_UNIT}(?:\s*(?:/|\\cdot(?![a-z]))?\s*{_ONE_UNIT})*+)$"
)
_COUNTED_PIECE = re.compile(rf"[\d)}}]\s*(?:{TEXT}\s*|[a-z]{{2}}[a-z ]*+)$")
_TRAILING_UNIT = re.compile(
    rf"^(.*(?:[\d)}}]|\\pi))\s*([a-zA-Z]+\.?(?:[\s/][a-zA-Z]+\.?){{0,3}}){_POWER}"
)
_ALL_BUT = re.compile(
    r"\W*all (?:the )?real(?:s| numbers?)(?:\s+[a-z])?\W*?(?:except|but|excluding|other than)\b"
    r"(?:\s*(?:for|when|where|at)\b)?(.*?)\W*",
    re.IGNORECASE,
)
_DEGREES = re.compile(
    rf"(-?(?:{NUMBER}|\([^()]*\)|(?:{NUMBER})?\s*\\(?:frac\s*{GROUP}|sqrt\s*(?:\[\d+\])?)\s*{GROUP}))"
    r"\s*\^\\circ"
)
_NO_NAME = re.compile(r"=\s*(?:\\pi|\\infty|\\emptyset|[ei])\s*$|[<>]|\\[lgn]e(?![a-z])")
_COUNTED = re.compile(
    r"(?!alpha|beta|gamma|delta|theta|lambda|omega|sinh|cosh|tanh|sqrt|frac)"
    r"[a-z]{4,}(?: [a-z]{2,}){0,3}"
)
_MODULUS = re.compile(r"\s*\\pmod\s*\{?\s*(\d+)\s*\}?")


@dataclass(frozen=True)
class Spelled:
    """One side of the comparison in one spelling: `body`, with what stood around it apart."""

    body: str
    unit: str = ""
    mark: Literal["", "%", "°"] = ""
    listed: str = ""
    """The body as a list, where its commas were taken for those of thousands: `100,200`."""


def spell(text: str) -> Spelled:
    """Undo typesetting: spaces, dollars, fraction variants, digit groups, units, percent."""
    text = in_latex(unicodedata.normalize("NFC", text))
    words_only = re.fullmatch(TEXT, text.strip(" .$"))
    inside = words_only[1] if words_only else text
    text = number if (number := in_digits(inside)) != inside else text
    money = re.match(r"\s*(\\\$|\N{EURO SIGN})\s*[\d.]", text)
    unit = "" if not money else "$" if money[1] == r"\$" else "eur"
    text = _TYPOGRAPHIC.sub(_plain_letter, text).translate(_UNICODE)
    text = in_english(_COMMAND.sub(lambda m: _COMMANDS.get(m[1], m[0]), text))
    if match := _ALL_BUT.fullmatch(re.sub(TEXT, r" \1 ", text)):
        but = (equation_sides(piece)[-1] for piece in form_of(match[1]).pieces)
        text = rf"\mathbb{{R}}\setminus\{{{','.join(but)}\}}"
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".;,\\ ")
    text = _unwrap(_name_first(text))
    text, unit = _without_unit(text, unit)
    name, equals, value = text.rpartition("=")
    if not is_name(name.strip()):
        name, equals, value = "", "", text
    several = value.count("%") > 1  # 20%, 30%
    value, percents = (value, 0) if several else re.subn(r"\\?%$", "", value)
    value = value.strip()
    mark = "%" if percents else "°" if _DEGREES.fullmatch(value) and r"\pi" not in value else ""
    value = value.removesuffix(r"^\circ").strip() if mark == "°" else value
    listed = name + equals + value if _THOUSANDS.match(value) else ""
    value = re.sub(r",\s?", "", value) if listed else value
    value = in_digits(value) if name else _NUMBERS.get(value.casefold(), value)
    return Spelled(_unwrap(name + equals + value), unit, mark, listed)


def _name_first(text: str) -> str:
    """`x=5` for `5=x`, where a value without letters stands in front of its name."""
    value, _, name = text.rpartition("=")
    is_first = not value or is_name(value) or not is_name(name := name.strip())
    if is_first or _NO_NAME.search(text):
        return text
    letters = re.search(r"(?<![\\A-Za-z])[A-Za-z]", re.sub(TEXT, "", value))
    return text if letters and "(" not in name else f"{name}={value}"


def _plain_letter(match: re.Match[str]) -> str:
    """Superscripts, subscripts, vulgar fractions, full-width and mathematical letters."""
    plain = unicodedata.normalize("NFKC", match[0])
    if match.lastgroup:
        return f"{'^' if match.lastgroup == 'up' else '_'}{{{plain}}}"
    numerator, slash, denominator = plain.partition("\N{FRACTION SLASH}")
    return rf"\frac{{{numerator}}}{{{denominator}}}" if slash else numerator


def _without_unit(text: str, unit: str) -> tuple[str, str]:
    if several := words.quantity(text):
        return rf"\frac{{{several[0].numerator}}}{{{several[0].denominator}}}", several[1]
    if len(moduli := {*_MODULUS.findall(text)}) == 1 and not _MODULUS.split(text)[-1]:
        return _MODULUS.sub("", text).replace(r"\equiv", "="), f"mod {moduli.pop()}"
    if any(map(_COUNTED_PIECE.search, form_of(text).pieces[:-1])):
        return text, unit  # 12 dimes, 8 nickels: each value has its own
    if match := _UNITS.search(text):
        behind = re.sub(r"\}\s*\{", "/", match[1].replace(r"\cdot", " "))
        behind = re.sub(r"\\frac|[{}^]", "", re.sub(TEXT, r"\1", behind)).strip().strip(".")
        unit_name = words.unit_named(behind)
        if behind and (unit_name or words.is_unit(behind.lower())):
            return text[: match.start()].strip(), unit_name
    elif (match := _TRAILING_UNIT.match(text)) and (behind := match[2].strip(".")):
        prefixed = len(behind) > 1 and not behind.islower()  # 5 kJ; 5nm may be a product
        named = behind if prefixed else behind.lower()
        unit_name = words.unit_named(named + (match[3] or ""), prefixed)
        symbol = len(behind) > 1 or behind.islower() or behind == unit_name  # 5M are no metres
        if symbol and (unit_name or (_COUNTED.fullmatch(behind) and words.is_unit(behind))):
            return match[1].strip(), unit_name
    return text, unit


def _unwrap(text: str) -> str:
    r"""Without braces or \text{…} around all of it, or words in front of a formula."""
    before = None
    while before != text:
        before = text
        if match := re.fullmatch(GROUP, text) or re.fullmatch(TEXT, text):
            text = match[1].strip()
        elif (match := re.match(TEXT, text)) and words.announces(match[1]):
            rest = text[match.end() :].strip()
            text = rest if re.search(r"\d|\\", rest) else text
    return text.rstrip(".").strip()
