"""The units of math answers: their names, and what one is in another.

A unit is written as in `m`, `m2`, `km/h`, `m/s2`; an unknown one is the empty string, because what
is counted (apples, ways) is no part of the value.
"""

import re
from collections.abc import Set as AbstractSet
from fractions import Fraction

_FONTS = r"text|textrm|textbf|textit|textnormal|mathrm|mathbf|mathsf|mbox|hbox|operatorname"
GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
TEXT = rf"\\(?:{_FONTS})\*?\s*{GROUP}"

_DENIES = "never cannot isn neither nor wrong incorrect false either or"
_DENIES += " maybe perhaps probably possibly unless otherwise"
_LIMITS = "not no without except but"  # behind a value, they often speak of what is counted
_BEFORE = "than least most above below between within from minus plus negative opposite reciprocal"
_BEFORE += " inverse root logarithm log sqrt factorial double twice triple half"
_BEFORE += " up under over near nearly almost exceeds exceeding beyond neg hundred thousand"
_AFTER = "than least most minus plus factorial mod modulo base halves thirds fourths"
_AFTER += " fifths sixths sevenths eighths ninths tenths hundredths thousandths"
_AFTER += " pi point halved doubled tripled inverse inverted negated fails rejected too"
_TO_TWENTY = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
_TO_TWENTY += " fifteen sixteen seventeen eighteen nineteen twenty"
NUMBER_WORDS = tuple(_TO_TWENTY.split())
_CONNECTS = frozenset(["and", "or", "if", "when", "where", "for", "mod", "base"])
_DENYING, _LIMITING = set(_DENIES.split()), set(_LIMITS.split())
_BEFORE_IT, _AFTER_IT = set(_BEFORE.split()), set(_AFTER.split())
_LEADING = re.compile(
    r"^\W*(?:(?:and|also|which|that|this|it|is|are|was|were|does|do|did|can|could|will|would|should"
    r"|may|might)\b\W*)*"
)
_LIMITED = re.compile(rf"^(?:{'|'.join(_LIMITING)})\b|\b(?:{'|'.join(_LIMITING)})\b(?=\W*(?:\d|$))")
_PART = re.compile(r"\bhalf\b(?![\s-]+(?!(?:of|an?|the)\b)[a-z])")  # a half, no half-hours
_CONDITION = re.compile(r"\b(?:if|when)\b(?!\s+(?:you|we)\b)")
_CIRCUMSTANCE = re.compile(
    r"\b(?:after|in|for|at|with|on|during)\s+[\d.]+[\s-]*"
    r"(?!(?:and|or|to|by|times|plus|minus|more|less|mod|over)\b)[a-z]+\W*$"
)
_OF = re.compile(  # the square of 12 is not 12
    r"\b(?:square|cube|power|multiples?|divisors?|factors?|digits|complement|maximum|minimum|close)"
    r"\s+(?:of|to)\s*$"
)
_NUMBERS = "|".join(NUMBER_WORDS[2:])
_NUMBER_BEFORE = re.compile(rf"\b(?:{_NUMBERS})\s*$")
_MORE = re.compile(r"\band\s+(?:up|above|over|beyond|more|higher|greater|below|less)\b")
_OTHER_NUMBER = re.compile(rf"(?:^\W*,|\balternatively\b|\bversus\b)\s*(?:{_NUMBERS})\b")
_COPULA = re.compile(r"(?:\b(?:is|are|was|be|equals)|[:=])\s*$")
_UNIT = re.compile(r"^[a-z(][a-z0-9 .²³/^()-]*$")
_CONNECTIVE = re.compile(r"[\s,;]*(?:and|or|and also)[\s,;]*", re.IGNORECASE)
_NUMBER_APART = re.compile(r"(?<![a-z^/\d.])\d")


def is_unit(words: str) -> bool:
    """Whether lower-case words behind a value only say of what."""
    return bool(_UNIT.match(words)) and not (
        _CONNECTS & set(words.split()) or _alters(words, before=False, after=True)
    )


def announces(words: str) -> bool:
    """Whether words in front of a formula only say that it comes."""
    return len(words.split()) > 1 and not _alters(words, before=True, after=False)


def contradicts(answer: str, gold: str) -> bool:
    r"""Whether a `\text{…}` of the answer changes its value, by words that the gold lacks."""
    known = set(_tokens(gold))
    for text in re.finditer(TEXT, answer):
        before, after = (
            bool(side.strip()) for side in (answer[: text.start()], answer[text.end() :])
        )
        if _CONNECTIVE.fullmatch(text[1]) or not before | after:
            continue
        if answer[: text.start()].rstrip("{ ").endswith("_"):  # the name of a base
            continue
        if _alters(text[1], before=after, after=before, known=known):
            return True
    return False


def _alters(
    words: str, *, before: bool, after: bool, known: AbstractSet[str] = frozenset()
) -> bool:
    """Whether words `before` or `after` a value make it another one."""
    words = words.casefold()
    tokens = _tokens(words)
    found = set(tokens) & _DENYING
    announced = before and bool(_COPULA.search(words))
    if before:
        found |= set(tokens) & (_LIMITING if announced else _LIMITING | _BEFORE_IT)
        patterns = () if announced else (_OF, _NUMBER_BEFORE)
        found |= {m[0] for pattern in patterns if (m := pattern.search(words))}
        words = _CIRCUMSTANCE.sub("", words)
    if after:
        found |= set(tokens) & _AFTER_IT
        for pattern in (_LIMITED, _PART, _CONDITION):
            found |= set(_tokens(" ".join(pattern.findall(_LEADING.sub("", words)))))
        found |= set(tokens[:1]) & {"squared", "cubed"}
        found |= {m[0] for pattern in (_MORE, _OTHER_NUMBER) if (m := pattern.search(words))}
    return bool(found - known) or (
        not announced and not known & set(tokens) and bool(_NUMBER_APART.search(words))
    )


def _tokens(words: str) -> list[str]:
    return re.findall(r"[a-z]+", words.casefold())


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
