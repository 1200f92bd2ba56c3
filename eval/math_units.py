"""The units of math answers: their names, and what one is in another.

A unit is written as in `m`, `m2`, `km/h`, `m/s2`; an unknown one is the empty string, because what
is counted (apples, ways) is no part of the value.
"""

import re
from fractions import Fraction

_UNITS: dict[str, tuple[str, str, str]] = {
    "m": ("length", "1", "m meter meters metre metres"),
    "cm": ("length", "1/100", "cm centimeter centimeters centimetre centimetres"),
    "mm": ("length", "1/1000", "mm millimeter millimeters millimetre millimetres"),
    "km": ("length", "1000", "km kilometer kilometers kilometre kilometres"),
    "in": ("length", "254/10000", "inch inches"),
    "ft": ("length", "3048/10000", "ft foot feet"),
    "yd": ("length", "9144/10000", "yd yard yards"),
    "mi": ("length", "1609344/1000", "mile miles"),
    "g": ("mass", "1", "g gram grams"),
    "kg": ("mass", "1000", "kg kilogram kilograms"),
    "mg": ("mass", "1/1000", "mg milligram milligrams"),
    "lb": ("mass", "45359237/100000", "lb lbs pound pounds"),
    "oz": ("mass", "28349523125/1000000000", "oz ounce ounces"),
    "s": ("time", "1", "s sec second seconds"),
    "ms": ("time", "1/1000", "ms millisecond milliseconds"),
    "min": ("time", "60", "min minute minutes"),
    "h": ("time", "3600", "h hr hour hours hrs"),
    "d": ("time", "86400", "day days"),
    "week": ("time", "604800", "week weeks"),
    "month": ("calendar", "1", "month months"),
    "year": ("calendar", "12", "year years yr yrs"),
    "L": ("volume", "1", "l liter liters litre litres"),
    "mL": ("volume", "1/1000", "ml milliliter milliliters"),
    "gal": ("volume", "3785411784/1000000000", "gallon gallons"),
    "qt": ("volume", "946352946/1000000000", "quart quarts"),
    "pt": ("volume", "473176473/1000000000", "pint pints"),
    "N": ("force", "1", "newton newtons"),
    "J": ("energy", "1", "joule joules"),
    "rad": ("angle", "1", "rad radian radians"),
    "$": ("money", "1", "dollar dollars usd"),
    "c": ("money", "1/100", "cent cents"),
    "eur": ("other money", "1", "eur euro euros"),
    "am": ("half of the day", "1", "am a.m"),
    "pm": ("other half of the day", "1", "pm p.m"),
    "dozen": ("count", "12", "dozen dozens"),
    "hundred": ("count", "100", "hundred"),
    "thousand": ("count", "1000", "thousand"),
    "million": ("count", "1000000", "million"),
    "billion": ("count", "1000000000", "billion"),
    "trillion": ("count", "1000000000000", "trillion"),
}
_NAMES = {name: unit for unit, (_, _, names) in _UNITS.items() for name in names.split()}
_NAMES |= {"mph": "mi/h", "kph": "km/h"}
_AREA = re.compile(r"(?:square|sq\.?)\s+(\w+)")
_VOLUME = re.compile(r"(?:cubic|cu\.?)\s+(\w+)")
_SPEED = re.compile(r"(\w+)\s*(?:/|\s+per\s+)\s*(\w+?)(?:\^?\{?([23²³])\}?)?")
_QUANTITY = r"(\d++(?:\.\d++)?)\s*(?:\\text\s*\{([^{}\d]*)\}|([a-z]+)\b)\s*(?:,|and\b)?\s*"


def unit_named(words: str) -> str:
    """The unit that lower-case words are, or empty."""
    words = re.sub(r"\^\{?([23])\}?$", r"\1", words.strip().strip("."))
    if known := _NAMES.get(words):
        return known
    first = words.partition(" ")[0]
    if _UNITS.get(first, ("",))[0] == "count":  # million of `million dollars`
        return first
    for pattern, power in ((_AREA, "2"), (_VOLUME, "3")):
        if match := pattern.fullmatch(words):
            side = _NAMES.get(match[1], "")
            return side + power if side else ""
    if words[-1:] in "23" and (side := _NAMES.get(words[:-1].strip(), "")):
        return side + words[-1]
    if match := _SPEED.fullmatch(words):
        way, time = _NAMES.get(match[1], ""), _NAMES.get(match[2], "")
        return f"{way}/{time}{(match[3] or '').translate(_POWERS)}" if way and time else ""
    return ""


_POWERS = str.maketrans("²³", "23")


def quantity(text: str) -> tuple[Fraction, str] | None:
    r"""1 hour 30 minutes as 3/2 h, two or more quantities of one kind; None for all else."""
    if not re.fullmatch(f"(?:{_QUANTITY}){{2,}}", text):
        return None
    found = re.findall(_QUANTITY, text)
    words = [re.sub(r"^\s*|\s*(?:,|\band)?\s*$", "", said or bare) for _, said, bare in found]
    units = ["in" if word == "in" else unit_named(word.lower()) for word in words]
    total = Fraction(0)
    for (value, _, _), unit in zip(found, units, strict=True):
        ratio = unit_ratio(unit, units[0])
        if ratio is None:
            return None
        total += Fraction(value) * ratio
    return total, units[0]


def unit_ratio(ours: str, theirs: str) -> Fraction | None:
    """What one of `ours` is in `theirs` (cm2 in m2 is 1/10000); None for other dimensions."""
    above, below = ours.split("/"), theirs.split("/")
    if len(above) != len(below):
        return None
    ratio = Fraction(1)
    for place, (one, other) in enumerate(zip(above, below, strict=True)):
        (a, power), (b, other_power) = _power(one), _power(other)
        if power != other_power or a not in _UNITS or b not in _UNITS:
            return None
        (kind, size, _), (other_kind, other_size, _) = _UNITS[a], _UNITS[b]
        if kind != other_kind:
            return None
        ratio *= (Fraction(size) / Fraction(other_size)) ** (-power if place else power)
    return ratio


def size_of_count(unit: str) -> Fraction | None:
    """1000 of `thousand`: a unit that may as well be part of the number; None for others."""
    kind, size, _ = _UNITS.get(unit, ("", "0", ""))
    return Fraction(size) if kind == "count" else None


def _power(unit: str) -> tuple[str, int]:
    return (unit[:-1], int(unit[-1])) if unit[-1:].isdigit() else (unit, 1)
