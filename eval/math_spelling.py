r"""One spelling for both sides of a math comparison: typesetting is undone, values stay.

What stands around the value (a unit, a percent sign, a degree sign) is kept apart, because it
counts only where both sides have it.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

from eval.math_words import GROUP, TEXT, announces, is_unit

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)"
_UNICODE = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{MULTIPLICATION SIGN}": r"\times ",
        "\N{MIDDLE DOT}": r"\cdot ",
        "\N{DOT OPERATOR}": r"\cdot ",
        "\N{DIVISION SIGN}": r"\div ",
        "\N{GREEK SMALL LETTER PI}": r"\pi ",
        "\N{GREEK SMALL LETTER ALPHA}": r"\alpha ",
        "\N{GREEK SMALL LETTER BETA}": r"\beta ",
        "\N{GREEK SMALL LETTER THETA}": r"\theta ",
        "\N{INFINITY}": r"\infty ",
        "\N{SQUARE ROOT}": r"\sqrt ",
        "\N{DEGREE SIGN}": r"^\circ ",
        "\N{LESS-THAN OR EQUAL TO}": r"\le ",
        "\N{GREATER-THAN OR EQUAL TO}": r"\ge ",
        "\N{NOT EQUAL TO}": r"\ne ",
        "\N{ALMOST EQUAL TO}": r"\approx ",
        "\N{PLUS-MINUS SIGN}": r"\pm ",
        "\N{UNION}": r"\cup ",
        "\N{INTERSECTION}": r"\cap ",
        "\N{ELEMENT OF}": r"\in ",
        "\N{EMPTY SET}": r"\emptyset ",
        "\N{DOUBLE-STRUCK CAPITAL R}": r"\mathbb{R}",
        "\N{HORIZONTAL ELLIPSIS}": r"\ldots ",
        "\N{FRACTION SLASH}": "/",
        "\N{EURO SIGN}": "",
        "\N{POUND SIGN}": "",
        "\N{YEN SIGN}": "",
        "\N{NO-BREAK SPACE}": " ",
        "\N{PRIME}": "'",
    }
)

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n")
_TYPOGRAPHIC = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+|[₀-₉ₙ]+|[¼-¾⅐-⅞]|[\uff01-\uff5e\U0001d400-\U0001d7ff]")
_NAMED = r"[a-zA-Z]|\\(?:pi|theta|alpha|beta)(?![a-zA-Z])"
_FUNCTIONS = (
    "log|ln|lg|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|max|min|gcd|lcm"
)
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|bigl?|bigr|Bigl?|Bigr)(?![a-zA-Z])",
            "",
        ),
        (r"\\(?:bf|it|rm|sf|tiny|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])", ""),
        (r"\\(?:text|mathrm|textrm|mbox)\s*\{((?:[^\w{}\\]|[\d_])*)\}", r"\1"),  # no words in it
        (r"\\(?:text|mathrm|textrm)\s*\{\s*([abeijknopqruvwxyz])\s*\}", r" \1"),  # no unit
        (rf"^\s*\\text\s*\{{\s*({NUMBER})\s+([a-z][a-z .]*)\}}\s*$", r"\1\\text{\2}"),
        (
            r"(?<=\d)\s*\\text\s*\{\s*\(?base[\s-]*(?:(\d+)|([a-z]+))\)?\s*\}",
            lambda m: f"_{{{m[1]}}}" if m[1] else rf"_{{\text{{{m[2]}}}}}",
        ),
        (rf"\\(?:text|mathrm|operatorname)\s*\{{({_FUNCTIONS})\}}", r"\\\1 "),
        (r",\\!", ","),
        (r"\\text\s*\{\s*(?i:all) real(?:s| numbers)\.?\s*\}", r"\\mathbb{R}"),
        (r"\\(?:text)?color\s*\{[a-zA-Z0-9!]+\}", ""),
        (r"\{:\}", ":"),
        (r"(?<=\d)\s*(?:\\[,;:! ]|~|\{,\}|\\thinspace)\s*(?=\d{3}(?!\d))", ""),  # 1\,000\,000
        (r"(?<=\d)(?<!\d\d\d\d)\s(?=\d{3}(?!\d))(?=[\d\s]*$)", ""),  # 1 000 000
        (r"(?<!\\)\\(?:[,;:! >]|(?:quad|qquad|thinspace|enspace)(?![a-zA-Z]))|~", " "),
        (r"\\\$|(?<!\\)\\[()\[\]]|\$", ""),
        (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\\[dtc]frac", r"\\frac"),
        (rf"\\frac\s*(\d|(?<=\s)[a-zA-Z]|\\pi)\s*(?=\d|\{{|{_NAMED})", r"\\frac{\1}"),
        (rf"(\\frac\s*\{{[^{{}}]*\}})\s*(\d|{_NAMED})", r"\1{\2}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"\\sqrt\s*\[(\d*[13579])\]\s*\{\s*-\s*(\d+)\s*\}", r"(-\\sqrt[\1]{\2})"),
        (r"\\(?:leq|leqslant|le)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![a-zA-Z])", r"\\ge "),
        (r"\\neq(?![a-zA-Z])", r"\\ne "),
        (r"\\(?:dots|cdots|dotsc|dotsb)(?![a-zA-Z])", r"\\ldots "),
        (r"\\(?:lbrace|rbrace)(?![a-zA-Z])", lambda m: r"\{" if "lb" in m[0] else r"\}"),
        (r"\\(?:varnothing)(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\langle(?![a-zA-Z])", "("),
        (r"\\rangle(?![a-zA-Z])", ")"),
        (r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?::|\\mid|\|)([^{}|]*)\\\}", r"\1"),
        (r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|\bto\b)\s*(?=\d)", ":"),  # 3 to 4
        (r"\\text\s*\{\s*degrees?\s*\}", r"^\\circ "),
        (r"\^\s*\{?\s*(?:\\circ|\\degree)\s*\}?|\\degree|\bdegrees?\b", r"^\\circ "),
        (r"\\(?:boldsymbol|mathbf|mathit|underline|pmb|bm)\s*(?=\{)", ""),
        (r"\\(?:mathrm|textrm|textnormal|mbox|hbox)(?=\s*\{[^{}]*[ :][^{}]*\})", r"\\text"),
        (r"^\*\*|\*\*$", ""),
        (r"\s+", " "),
    )
]
# Possessive, and from the first digit only: 2,000 digits would take minutes otherwise.
_OVERLINED = re.compile(r"(?<!\d)(\d*+)\.(\d*+)\\(?:overline|bar|dot)\s*\{?\s*(\d+)\s*\}?(?!\d)")
_BRACKETED = re.compile(r"(?<!\d)(\d++)\.(\d*+)\((\d+)\)$")
_GOES_ON = re.compile(r"(?<!\d)(\d*+)\.(\d{0,94}?)(\d{1,6}?)(?:\3){2,}+\s*(?:\\ldots|\.\.\.)\s*$")
_MIXED = re.compile(r"^([-+]?\d+)\s+(\d+)\s*/\s*(\d+)$")
_THOUSANDS = re.compile(r"^[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^\d{1,3}(?=.*, 0)(?:,\s?\d{3})+$")
_POWER = r"(?:\s*\^\s*\{?([23])\}?)?\s*$"
_TRAILING_TEXT = re.compile(rf"^(.*[\w)}}])\s*{TEXT}{_POWER}")
_TRAILING_UNIT = re.compile(rf"^(.*[\d)}}])\s*([a-zA-Z]+\.?(?:\s[a-zA-Z]+\.?){{0,3}}){_POWER}")
_MODULUS = re.compile(r"\s*\\pmod\s*\{?\s*(\d+)\s*\}?$")
_TEMPERATURE = re.compile(r"\s*\^\\circ\s*(?:\\(?:text|mathrm)\s*\{\s*([CFK])\s*\}|([CFK]))$")
_UNIT_NAMES: dict[str, tuple[str, str, str]] = {
    "m": ("length", "1", "m meter meters metre metres"),
    "cm": ("length", "1/100", "cm centimeter centimeters centimetre centimetres"),
    "mm": ("length", "1/1000", "mm millimeter millimeters"),
    "km": ("length", "1000", "km kilometer kilometers kilometre kilometres"),
    "in": ("length", "254/10000", "inch inches"),
    "ft": ("length", "3048/10000", "ft foot feet"),
    "yd": ("length", "9144/10000", "yd yard yards"),
    "mi": ("length", "1609344/1000", "mile miles"),
    "g": ("mass", "1", "g gram grams"),
    "kg": ("mass", "1000", "kg kilogram kilograms"),
    "s": ("time", "1", "s sec second seconds"),
    "min": ("time", "60", "min minute minutes"),
    "h": ("time", "3600", "h hr hour hours hrs"),
    "d": ("time", "86400", "day days"),
    "week": ("time", "604800", "week weeks"),
    "L": ("volume", "1", "l liter liters litre litres"),
    "mL": ("volume", "1/1000", "ml milliliter milliliters"),
    "$": ("money", "1", "dollar dollars usd"),
    "c": ("money", "1/100", "cent cents"),
    "am": ("half of the day", "1", "am a.m"),
    "pm": ("other half of the day", "1", "pm p.m"),
    "dozen": ("count", "12", "dozen dozens"),
    "hundred": ("count", "100", "hundred"),
    "thousand": ("count", "1000", "thousand"),
    "million": ("count", "1000000", "million"),
    "billion": ("count", "1000000000", "billion"),
    "trillion": ("count", "1000000000000", "trillion"),
}
_UNITS = {name: unit for unit, (_, _, names) in _UNIT_NAMES.items() for name in names.split()}


@dataclass(frozen=True)
class Spelled:
    """One side of the comparison in one spelling: `body`, with what stood around it apart."""

    body: str
    unit: str = ""
    percent: bool = False
    degrees: bool = False
    listed: str = ""
    """The body as a list, where its commas were taken for those of thousands: `100,200`."""


def spell(text: str) -> Spelled:
    """Undo typesetting: spaces, dollars, fraction variants, digit groups, units, percent."""
    text = unicodedata.normalize("NFC", text)
    text = _TYPOGRAPHIC.sub(_plain_letter, text).translate(_UNICODE)
    unit = "$" if re.match(r"\s*\\\$\s*[\d.]", text) else ""
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    for pattern in (_OVERLINED, _BRACKETED, _GOES_ON):
        text = pattern.sub(_repeating, text.strip())
    text = text.strip().rstrip(".;,\\ ")
    text = _unwrap(_MIXED.sub(_mixed, text))
    text, unit = _without_unit(text, unit)
    percent = bool(re.search(r"\\?%$|\\?percent$|\bpercent$", text))
    text = re.sub(r"\s*(?:\\?%|\\text\s*\{\s*percent\s*\}|percent)$", "", text).strip()
    degrees = text.endswith(r"^\circ") and text.count(r"\circ") == 1
    degrees = degrees and bool(re.match(rf"^{NUMBER}\s*\^\\circ$", text))
    if degrees:
        text = text[: -len(r"^\circ")].strip()
    listed = text if _THOUSANDS.match(text) else ""
    text = re.sub(r",\s?", "", text) if listed else text
    return Spelled(_unwrap(text), unit, percent, degrees, listed)


def _plain_letter(match: re.Match[str]) -> str:
    """Superscripts, subscripts, vulgar fractions, full-width and mathematical letters."""
    found = match[0]
    if found[0] in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ":
        return f"^{{{found.translate(_SUPERSCRIPTS)}}}"
    if "₀" <= found[0] <= "₉" or found[0] == "ₙ":
        return f"_{{{found.translate(_SUBSCRIPTS)}}}"
    numerator, slash, denominator = unicodedata.normalize("NFKC", found).partition("\u2044")
    return rf"\frac{{{numerator}}}{{{denominator}}}" if slash else numerator


def _repeating(match: re.Match[str]) -> str:
    """0.1666… as a fraction: its digits before and in the period."""
    whole, before, period = match.groups()
    if len(before) + len(period) > 100:
        return match[0]
    shown = int(f"{whole or 0}{before}{period}") - int(f"{whole or 0}{before}")
    return rf"\frac{{{shown}}}{{{'9' * len(period)}{'0' * len(before)}}}"


def _mixed(match: re.Match[str]) -> str:
    whole, numerator, denominator = match.groups()
    if int(numerator) >= int(denominator):
        return match[0]
    return rf"{whole}\frac{{{numerator}}}{{{denominator}}}"


def _without_unit(text: str, unit: str) -> tuple[str, str]:
    if match := _TEMPERATURE.search(text):
        return text[: match.start()].strip(), "°" + (match[1] or match[2])
    if match := _MODULUS.search(text):
        return text[: match.start()].replace(r"\equiv", "="), f"mod {match[1]}"
    said = _TRAILING_TEXT.match(text)
    match = said or _TRAILING_UNIT.match(text)
    if match and (words := match[2].strip().strip(".").lower()):
        known = _UNITS.get(words) or _UNITS.get(_counted(words), "")
        if known or (said and is_unit(words)):
            return match[1].strip(), known + (match[3] or "")
    return text, unit


def _counted(words: str) -> str:
    """million of `million dollars`."""
    first = words.partition(" ")[0]
    return first if _UNIT_NAMES.get(first, ("",))[0] == "count" else ""


def _unwrap(text: str) -> str:
    r"""Without braces or \text{…} around all of it, or words in front of a formula."""
    before = None
    while before != text:
        before = text
        if match := re.fullmatch(GROUP, text) or re.fullmatch(TEXT, text):
            text = match[1].strip()
        elif (match := re.match(TEXT, text)) and announces(match[1]):
            rest = text[match.end() :].strip()
            text = rest if re.search(r"\d|\\", rest) else text
    return text.rstrip(".").strip()


def unit_ratio(ours: str, theirs: str) -> Fraction | None:
    """What one of `ours` is in `theirs` (cm2 in m2 is 1/10000); None for other dimensions."""
    (a, power), (b, other) = _power(ours), _power(theirs)
    if power != other or a not in _UNIT_NAMES or b not in _UNIT_NAMES:
        return None
    (kind, size, _), (other_kind, other_size, _) = _UNIT_NAMES[a], _UNIT_NAMES[b]
    return (Fraction(size) / Fraction(other_size)) ** power if kind == other_kind else None


def size_of_count(unit: str) -> Fraction | None:
    """1000 of `thousand`: a unit that may as well be part of the number; None for others."""
    kind, size, _ = _UNIT_NAMES.get(unit, ("", "0", ""))
    return Fraction(size) if kind == "count" else None


def _power(unit: str) -> tuple[str, int]:
    return (unit[:-1], int(unit[-1])) if unit[-1:].isdigit() else (unit, 1)
