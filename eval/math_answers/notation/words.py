r"""What the words of a math answer mean: units, as `m`, `m2`, `km/h`, and what one is in another,
and words that alter. An unknown unit is empty: what is counted is no part of the value."""

import re
import tomllib
from collections import Counter
from collections.abc import Set as AbstractSet
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

HAN = "\u4e00-\u9fff"
_FONTS = r"text|textrm|textbf|textit|textnormal|mathrm|mathbf|mathsf|textsc|mbox|hbox|operatorname"
GROUP = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
TEXT = rf"\\(?:{_FONTS})\*?\s*{GROUP}"
WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
NUMBERS: list[str] = WORDS["numbers"].split()
_SAME_WORDS = ((word, several.split(",")) for word, several in WORDS["synonyms"].items())
SYNONYMS = {" ".join(same.split()): word for word, several in _SAME_WORDS for same in several}
COMMON_WORDS = frozenset(SYNONYMS.values())
_TRUTHS = {same: word for word, several in WORDS["truths"].items() for same in several.split()}


def _any(words: str) -> str:
    return rf"\b(?:{'|'.join(words.split())})\b"


_DENIAL, _LIMIT = _any(WORDS["denial"]), _any(WORDS["limit"])
_NUMBER = _any(" ".join(NUMBERS[2:]))
_ALTERS_THE_NEXT = re.compile(
    rf"{_DENIAL}|{_LIMIT}|{_NUMBER}\s*$|{_any(WORDS['alters_the_next'])}"
    rf"|{_any(WORDS['of_the_next'])}\s+(?:of|to)\s*$"  # the square of 12 is not 12
)
_ALTERS_THE_LAST = re.compile(
    rf"{_DENIAL}|^{_LIMIT}|{_LIMIT}(?=\W*(?:\d|$))|{_any(WORDS['alters_the_last'])}"
    r"|^(?:squared|cubed)\b|\b(?:if|when)\b(?!\s+(?:you|we)\b)"
    r"|\bhalf\b(?![\s-]+(?!(?:of|an?|the)\b)[a-z])"  # a half, no half-hours
    r"|\band\s+(?:up|above|over|beyond|more|higher|greater|below|less)\b"
    rf"|(?:^\W*,|\balternatively\b|\bversus\b)\s*{_NUMBER}"
)
_ALTERS_THE_ANNOUNCED = re.compile(rf"{_DENIAL}|{_LIMIT}")  # so the double is 12
_ANNOUNCES = re.compile(r"(?:\b(?:is|are|was|be|equals)|[:=])\s*$")
_LEADING = re.compile(rf"^\W*(?:{_any(WORDS['leading'])}\W*)*")
_CIRCUMSTANCE = re.compile(  # after 5 minutes
    r"\b(?:after|in|for|at|with|on|during)\s+[\d.]+[\s-]*"
    r"(?!(?:and|or|to|by|times|plus|minus|more|less|mod|over)\b)[a-z]+\W*$"
)
_NUMBER_APART = re.compile(r"(?<![a-z^/\d.])\d")
_CONNECTS = re.compile(_any("and or if when where for mod base integer constant"))
_CONNECTIVE = re.compile(r"[\s,;]*(?:and|or|and also)[\s,;]*", re.IGNORECASE)
_COUNTED = re.compile(rf"[a-z({HAN}][a-z0-9 .²³/^(){HAN}-]*")
_CHINESE = [(re.compile(chinese), f" {english} ") for chinese, english in WORDS["chinese"]]
_IN_HAN = re.compile(rf"\\(?:{_FONTS})\*?\s*\{{([^{{}}]*[{HAN}][^{{}}]*)\}}")


def in_english(text: str) -> str:
    r"""Chinese words of a formula as `\text{…}`, in English where they matter to its value; a text
    of Chinese characters alone is an answer in words and stays."""
    text = _IN_HAN.sub(r"\1", text)
    return text if re.fullmatch(f"[{HAN}]*", text) else re.sub(f"[{HAN}]+:?", _phrase, text)


def _phrase(match: re.Match[str]) -> str:
    words = match[0]
    for chinese, english in _CHINESE:
        words = chinese.sub(english, words)
    words = re.sub(r" (or|and) ", r"}\\text{ \1 }\\text{", " ".join(f"{words} .".split())[:-1])
    return rf"\text{{{words}}}"


def is_unit(words: str) -> bool:
    """Whether lower-case words behind a value only say of what."""
    return bool(_COUNTED.fullmatch(words)) and not (
        _CONNECTS.search(words) or _alters(words, before=False, after=True)
    )


def announces(words: str) -> bool:
    """Whether words in front of a formula only say that it comes."""
    return len(words.split()) > 1 and not _alters(words, before=True, after=False)


def contradicts(answer: str, gold: str) -> bool:
    r"""Whether a `\text{…}` of the answer changes its value, by words that the gold lacks."""
    gold_words = set(re.findall(r"[a-z]+", gold.casefold()))
    for text in re.finditer(TEXT, answer):
        left, right = answer[: text.start()], answer[text.end() :]
        names_a_base = left.rstrip("{ ").endswith("_")
        if not _CONNECTIVE.fullmatch(text[1]) and not names_a_base:
            sides = {"before": bool(right.strip()), "after": bool(left.strip())}
            if any(sides.values()) and _alters(text[1], **sides, gold_words=gold_words):
                return True
    return False


def _alters(
    words: str, *, before: bool, after: bool, gold_words: AbstractSet[str] = frozenset()
) -> bool:
    """Whether words `before` or `after` a value make it another one; `gold_words` do not."""
    words = words.casefold()
    new = re.sub(r"[a-z]+", lambda word: "" if word[0] in gold_words else word[0], words)
    announced = before and _ANNOUNCES.search(words)
    if before and (_ALTERS_THE_ANNOUNCED if announced else _ALTERS_THE_NEXT).search(new):
        return True
    if before:
        new = _CIRCUMSTANCE.sub("", new)
    if after and (_ALTERS_THE_LAST.search(new) or _ALTERS_THE_LAST.search(_LEADING.sub("", new))):
        return True
    shared = gold_words & set(re.findall("[a-z]+", words))
    return not announced and not shared and bool(_NUMBER_APART.search(new))


_UNITS: dict[str, tuple[str, Fraction]] = {}
_NAMES: dict[str, str] = {"mph": "mi/h", "kph": "km/h"}
_TABLE = tomllib.loads(Path(__file__).with_name("units.toml").read_text("utf-8"))
_PREFIXED = _TABLE.pop("symbols")
for _kind, _units in _TABLE.items():
    for _unit, (_size, *_names) in _units.items():
        _UNITS[_unit] = _kind, Fraction(_size)
        _NAMES |= dict.fromkeys(_names, _unit)
        _NAMES |= {name + "s": _unit for name in _names if len(name) > 2}
_NAMED = (*_PREFIXED["symbols"].split(), "um", "nm", "ug", "us", "ns")
_SYMBOLS = {n: n for n in _NAMED if n not in ("C", "F")}  # degrees as often as coulombs, farads
for (_prefix, _word), _size in zip(
    _PREFIXED["prefixes"].items(), (12, 9, 6, 3, -2, -3, -6, -9, -12), strict=True
):
    for _unit in (*_PREFIXED["symbols"].split(), "ohm"):
        _kind, _one = _UNITS[_unit]
        _UNITS[_prefix + _unit] = _kind, _one * Fraction(10) ** _size
        _SYMBOLS[_prefix + _unit] = _prefix + _unit
    for _name in _PREFIXED["words"].split():
        _NAMES[_word + _name] = _NAMES[f"{_word}{_name}s"] = _prefix + _NAMES[_name]
_POWER = re.compile(r"\b(?:(square|sq\.?)|cubic|cu\.?)\s+(\w+)")
_FACTOR = re.compile(rf"([a-z{HAN}]++)\s*\^?\s*\{{?(-?\d)?\}}?\s*")
_QUANTITY = (
    r"(\d++(?:\.\d++)?)\s*(?:\\text\s*\{([^{}\d]*)\}|([a-z]+)\b)\s*"
    r"(?:,|and\b|\\text\s*\{[\s,]*and\s*\})?\s*"
)


def unit_named(words: str, symbols: bool = True) -> str:
    """The unit that words are, or empty: `m/s` of `meters per second`. mW is no MW."""
    words = words.strip().strip(".").translate(str.maketrans("²³Ωµμ", "23\u03a9uu"))
    words = words.replace("\u03a9", "ohm").replace(r"\Omega", "ohm")
    if symbols and words in _SYMBOLS:
        return _SYMBOLS[words]
    words = words.lower()
    if size_of_count(first := _NAMES.get(words.partition(" ")[0], "")):  # of `million dollars`
        return first
    words = _POWER.sub(lambda m: m[2] + ("2" if m[1] else "3"), words)
    powers: Counter[str] = Counter()
    for n, side in enumerate(re.split(r"/|\bper\b", words)):
        if not re.fullmatch(f"(?:{_FACTOR.pattern})+", side := side.strip()):
            return ""
        for name, power in _FACTOR.findall(side):
            if name not in _NAMES:
                return ""
            powers[_NAMES[name]] += int(power or 1) * (-1 if n else 1)
    sides = ([(unit, p) for unit, p in sorted(powers.items()) if p * s > 0] for s in (1, -1))
    above, below = (" ".join(f"{u}{abs(p)}".removesuffix("1") for u, p in side) for side in sides)
    return f"{above}/{below}" if below else above


def quantity(text: str) -> tuple[Fraction, str] | None:
    r"""1 hour 30 minutes as 3/2 h: quantities of one kind, the larger unit first; else None."""
    if not re.fullmatch(f"(?:{_QUANTITY}){{2,}}", text):
        return None
    parts = re.findall(_QUANTITY, text)
    words = [re.sub(r"^\s*|\s*(?:,|\band)?\s*$", "", in_text or bare) for _, in_text, bare in parts]
    units = ["in" if word == "in" else unit_named(word.lower()) for word in words]
    ratios = [unit_ratio(unit, units[0]) for unit in units]
    values = [Fraction(value) * r for (value, _, _), r in zip(parts, ratios, strict=True) if r]
    sizes = [ratio for ratio in ratios if ratio]
    falling = len(sizes) == len(ratios) and all(a > b for a, b in pairwise(sizes))
    return (sum(values, Fraction(0)), units[0]) if falling else None  # 3 cm, 4 cm are two


def unit_ratio(unit: str, target: str) -> Fraction | None:
    """What one of `unit` is in `target` (cm2 in m2 is 1/10000); None for other dimensions."""
    (size, kinds), (other, other_kinds) = _measure(unit), _measure(target)
    return size / other if kinds and kinds == other_kinds else None


def _measure(unit: str) -> tuple[Fraction, dict[str, int]]:
    """The size of a unit in those that stand for their kinds, and their powers; none if unknown."""
    size, kinds = Fraction(1), Counter[str]()
    for sign, side in zip((1, -1), unit.split("/"), strict=False):
        for factor in side.split():
            name, power = (factor[:-1], int(factor[-1])) if factor[-1].isdigit() else (factor, 1)
            if name not in _UNITS:
                return size, {}
            kind, one = _UNITS[name]
            inner, powers = (Fraction(1), {kind: 1}) if kind in (name, "count") else _measure(kind)
            size *= (one * inner) ** (sign * power)
            kinds.update({base: sign * power * p for base, p in powers.items()})
    return size, {base: power for base, power in kinds.items() if power}


def size_of_count(unit: str) -> Fraction | None:
    """1000 of `thousand`: a unit that may as well be part of the number; None for others."""
    kind, size = _UNITS.get(unit, ("", Fraction(0)))
    return size if kind == "count" else None


_SUBJECT = re.compile(
    rf"(?:(?:the|this|that|a)\s+)?(?:(?:given|improper|infinite|original|resulting)\s+)?{_any(WORDS['subject'])}\s+"
    r"(?:(?:is|are|was|has|will be|must be)\s+)?(?:(?:an?|the)\s+)?(?=\w)"
)
_NOTHING = re.compile(
    r"(?:(?:there (?:is|are|exists?)|(?:it )?has|(?:the )?(?:equation|system|inequality) has) )?"
    r"(no (?!one).+?)s?(?: exists?| possible)?"
)
_HEDGES, _DENIALS = (
    re.compile("|".join(rf"\b{w}\b" if w.isascii() else w for w in WORDS[key].split()))
    for key in ("hedges", "denials")
)
_TRUTH = re.compile(
    rf"({'|'.join(sorted(_TRUTHS, key=len, reverse=True))})"
    r"(?:\s*[,.;:!\uff0c。\uff1b\uff1a、—-]+\s*"
    r"|\s+(?=(?:because|since|as|for|it|there|they|the|we|this)\b)|$)(.*)",
    re.DOTALL,
)


def truth_of(text: str) -> str:
    """yes, no, true, false, whatever the reason; `hedged` where that takes it back; else empty."""
    text = " ".join(text.casefold().split())
    match = _TRUTH.fullmatch(text)
    if not match:
        return ""
    truth, clause = _TRUTHS[match[1]], match[2]
    if clause and not re.search(rf"[a-z]{{2}}|[{HAN}]", clause):
        return ""
    back = _HEDGES.search(clause) or (truth in ("yes", "true") and _DENIALS.search(clause))
    return "hedged" if back or ("n't" in clause and truth in ("yes", "true")) else truth


def common_word(text: str) -> str:
    """The one wording of all that mean the same: `converges` of `The series is convergent`."""
    words = " ".join(text.casefold().split()).rstrip(".。")
    words = re.sub(r"^(?:a|an|the) (?=.)", "", words)
    if words in SYNONYMS:
        return SYNONYMS[words]
    words = _SUBJECT.sub("", words, count=1) if _SUBJECT.match(words) else words
    if match := _NOTHING.fullmatch(words):
        words = match[1]
    return SYNONYMS.get(words, words)
