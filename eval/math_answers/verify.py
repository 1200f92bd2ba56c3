r"""A math answer's verdict without sympy: one spelling for both sides, then words and numbers.

Most answers of competition problems are integers, fractions and words; `quick_verdict` decides
them in microseconds, in the caller's process. Everything else goes to `eval.math_answers.worker`,
in a worker that can be killed.

Policies, where graders differ:
- a unit, a percent sign or a degree sign that only one side has does not matter; known units that
  differ do (5 m is not 5 cm but 500 cm), 25\% is 0.25 but 0.25 is not 25, and 0.5\% is not 0.5;
- words are compared without case; a choice may repeat its value: `(B) 12` answers B;
- dozens, millions and the like of an answer are counted out, unless its gold says them too;
- a rounded decimal does not answer an exact gold, an exact answer does answer a rounded gold;
- a numeral with a base (1011_2) is not the decimal number with the same digits.
"""

import math
import re
import string
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from ..answers import extract_boxed
from ..records import Judgement
from . import beside
from .notation.dates import date_of
from .notation.spelling import NUMBER, Spelled, spell
from .notation.words import (
    COMMON_WORDS,
    HAN,
    TEXT,
    common_word,
    size_of_count,
    truth_of,
    unit_named,
    unit_ratio,
)
from .rules import Ordering, Rule, first_decision

MAX_CHARACTERS = 2000  # longer answers are compared as text only
_MOST_OF_PROMPT, _MOST_WORDS = 4000, 8

_AFTER_HASHES = re.compile(r"####\s*([^\n#]+?)\s*$")
_SENTENCE = re.compile(
    r"(?:^|[.\n]\s*|\b)(?:the|my|our)?\s*(?:final |correct )?answer(?: is|:)"
    r"\s*:?\s*([^\n]+?)\s*\.?\s*$",
    re.IGNORECASE,
)

_SIMPLE = re.compile(rf"^({NUMBER}(?:[eE][-+]?\d{{1,3}})?)(?:\s*/\s*({NUMBER}))?$", re.ASCII)
_FRACTION = re.compile(rf"^([-+]?)\\frac\s*\{{\s*({NUMBER})\s*\}}\s*\{{\s*({NUMBER})\s*\}}$")
_CHOICE = re.compile(r"^[(\[]?\s*([A-J])\s*(?:[)\].:]+(?:\s+(.*))?)?$")
_LINK = r"(?:(?i:\b(?:or|and|maybe|perhaps|possibly|otherwise|else)\b)|[,;/&])"
_MARKED = r"(?:[(\[]\s*[A-J]\s*[)\]]|(?<![A-Za-z(])[A-J](?:[)\]]|[.:](?=\s|$)))"
_OTHER_CHOICE = re.compile(  # what stands behind a letter names another one, too
    rf"^\W*(?:{_LINK}\W*)+[A-HJ](?=\s*(?:$|[)\].:,;/&]|(?:or|and|is)\b))"  # or C
    rf"|^(?:[^A-Za-z\\]|\\[A-Za-z]+)*\bor\W*[A-HJ]\W*$"  # 5 or C
    rf"|(?:{_LINK}|[\d}}$])\s*{_MARKED}"  # 5 or C) 6
    rf"|^{_MARKED}(?:\s*{_MARKED})*\s*[A-J]?\W*$"  # B. C. D.
)
_SEVERAL = re.compile(r"(?:(?:\([A-J]\)|[A-J])(?:[\s,;]|\band\b)*){2,}")
_STATEMENT = re.compile("[\u2460-\u2473]")  # 1 to 20 in circles
_STATEMENTS = re.compile(rf"(?:{_STATEMENT.pattern}(?:[\s,;]|\\text\s*\{{\s*and\s*\}}|\band\b)*)+")
_OF_CHOICES = re.compile(r"(?i:\W*(?:none|all|both|neither|any|each|only|not)\b)")
_BRACKETED = re.compile(r"\((?!\s*[A-J]\s*\))[^()]*\)")  # an interval (A, B)
_DENIED = re.compile(r"\\not\s*(?=\\equiv)|\\nequiv|≢")
_KINDS = re.compile(rf"\b(odd|even|composite)\b|{_DENIED.pattern}")
_ANY_NUMBER = re.compile(r"\s*[a-z]\s*|(?!.*\\begin).*(?:[<>]|\\[lg]e(?![a-z])).*")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\s?\d{3})+(?:\.\d+)?", re.ASCII)
_TIME = re.compile(r"0?(\d{1,2})(?::\s*([0-5]\d))?")
_HALVES_OF_DAY = ("am", "pm")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ANNOUNCED = re.compile(r"^(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?\s*:?\s*", re.I)
_WORDS = re.compile(rf"^(?=.*[A-Za-z]{{3}})[A-Za-z][A-Za-z' .-]*$|^[{HAN}]+$")  # no product like xy


@dataclass(frozen=True)
class Quick:
    """A pair for the rules that need no sympy: as written, and as spelled."""

    gold: str
    answer: str
    theirs: Spelled
    ours: Spelled
    ordering: Ordering


_ASKING = re.compile(
    r"[^.?!。\uff1f\uff01]*(?:\b(?:find|what|which|determine|compute|list|give|enter|write|express|state|order"
    r"|arrange|rank|sort|answer|solve|calculate|evaluate)\b|[?\uff1f]|求|写出|列出|排列|答)"
    r"[^.?!。\uff1f\uff01]*[?\uff1f]?",
    re.IGNORECASE,
)
_SEQUENCE = re.compile(
    r"\bin (?:(?:that|this|the (?:given|correct|right|following|same)) )?order\b"
    r"(?! (?:to|that|for)\b)"
    r"|\bin (?:(?:strictly|lexicographic|alphabetical|numerical|chronological) )*"
    r"(?:(?:in|de|a|de)(?:creas|scend)ing|alphabetical|numerical|chronological) (?:order)?"
    r"|\brespectively\b|\bfrom (?:the )?(?:least|smallest|lowest|greatest|largest|highest|left"
    r"|first|most|fastest|slowest|shortest|longest) to\b"
    r"|依次|分别|按.{0,6}顺序|从小到大|从大到小|由小到大|由大到小",
    re.IGNORECASE,
)
_ANY_ORDER = re.compile(r"\b(?:in )?any order\b|order (?:does not|doesn't) matter", re.IGNORECASE)
_TUPLE = re.compile(
    r"\bordered (?:pair|triple|quadruple|tuple|\$?n\$?-tuple)\b(?!s)|\bcoordinates?\b|有序|坐标",
    re.IGNORECASE,
)
_FORMULA = re.compile(r"\$\$[^$]*\$\$|\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_LETTER = re.compile(r"(?<![A-Za-z\\\d/}])(?<!\d )([A-Za-z])(?![A-Za-z])")


def ordering_of(prompt: str) -> Ordering:
    """What the asking sentences of a prompt want: an order, or a tuple; else a list is a set."""
    asking = " ".join(_ASKING.findall(prompt[-_MOST_OF_PROMPT:]))
    if _ANY_ORDER.search(prompt):
        return ""
    return "sequence" if _SEQUENCE.search(asking) else "tuple" if _TUPLE.search(asking) else ""


def letters_of(prompt: str) -> str:
    """Unit letters that the formulas of a prompt use otherwise: `s` of `$s$`, not of `$5 s$`."""
    formulas = " ".join(match[0] for match in _FORMULA.finditer(prompt[-_MOST_OF_PROMPT:]))
    letters = {*_LETTER.findall(re.sub(TEXT, " ", formulas))}
    return "".join(sorted(x for x in letters if unit_named(x.lower())))


def with_factors(text: str, letters: str) -> str:
    r"""`3\cdot m g` for `3mg`, where m and g are letters of the problem, and no milligrams."""
    if not letters:
        return text
    power = r"(\s*\^\s*\{?\s*\d\s*\}?)?\s*$"
    trailing = rf"(?<=[\d)}}])\s*([{letters}](?:\s*[{letters}])*+){power}"
    return re.sub(trailing, lambda m: rf"\cdot {m[1]}{m[2] or ''}", text)


def stated(gold: str) -> str:
    r"""The answer of a worked solution: behind `####`, in its last box, or of its last sentence."""
    if match := _AFTER_HASHES.search(gold):
        return match[1]
    if r"\boxed" in gold and (boxed := extract_boxed(gold).answer):
        return boxed
    solution = "\n" in gold or len(re.sub(TEXT, r"\1", gold).split()) > _MOST_WORDS
    match = _SENTENCE.search(gold) if solution else None
    return match[1] if match else gold


def quick_verdict(gold: str, answer: str, ordering: Ordering = "") -> Judgement | None:
    """The verdict on integers, fractions, decimals, choices and words; None for all else."""
    if not gold.strip():
        return Judgement("IE", "the gold answer is empty")
    if gold.strip() == answer.strip():
        return Judgement("AC", "equal text")
    gold = stated(gold)
    if len(gold) > MAX_CHARACTERS:
        return Judgement("IE", "the gold answer is too long to be read")
    if len(answer) > MAX_CHARACTERS:
        return Judgement("WA", "the answer is too long to be read")
    theirs, ours = spell_both(gold, answer)
    if ours.unit and theirs.unit and ours.unit != theirs.unit:
        return Judgement("WA", f"{ours.unit} is not {theirs.unit}")
    if other_angle(ours, theirs):
        return None
    # 1234 of `1, 234`, which is a list as well: the gold decides
    ungrouped = re.sub(r",\s?", "", ours.body) if _GROUPED.fullmatch(ours.body) else ours.body
    gold_text, our_text = (_packed(re.sub(TEXT, r"\1", side.body)) for side in (theirs, ours))
    same_text = gold_text == our_text or _packed(theirs.body) == ungrouped
    if same_text and same_kinds(gold, answer, theirs.body):
        return Judgement("AC", "equal after normalisation")
    return first_decision(RULES, Quick(gold, answer, theirs, ours, ordering))


def same_kinds(gold: str, answer: str, body: str) -> bool:
    r"""Whether both speak of the same numbers: `\text{all odd } n` and not `\text{all even } n`."""
    named = re.sub(TEXT, "", body).rpartition("=")[2]
    kinds = _KINDS if _ANY_NUMBER.fullmatch(named) else _DENIED
    return len({frozenset(kinds.findall(side)) for side in (gold, answer)}) == 1


def spell_both(gold: str, answer: str) -> tuple[Spelled, Spelled]:
    r"""Both sides in one spelling, and the answer in the unit of its gold, where it can be: 5 dozen
    are 60, if the gold says nothing of dozens, and 0.5\% are 0.005 beside 0.5."""
    theirs, ours = map(spell, beside.resolve(gold, answer))
    if not re.search(r"(?<![A-Za-z\\])[ik](?![A-Za-z])", theirs.body) and re.search(
        r"(?<![A-Za-z\\])i(?![A-Za-z])", ours.body
    ):  # a gold 3+4j, as Python prints it; the j of an answer may be a letter
        theirs = replace(theirs, body=re.sub(r"(?<=\d)j(?![A-Za-z])", "i", theirs.body))
    count, other = size_of_count(ours.unit), size_of_count(theirs.unit)
    ratio = unit_ratio(ours.unit, theirs.unit) if ours.unit != theirs.unit else None
    if ours.unit and (count is None) != (other is None):  # 5 million are 5000000 dollars
        ratio = Fraction(count or 1) / (other or 1)
    if ours.mark == "%" != theirs.mark and 0 < abs(_rational(theirs.body) or 0) < 1:
        ours, ratio = replace(ours, mark=""), Fraction(1, 100)  # 12.5\% may answer 12.5
    if ratio:
        name, equals, value = ours.body.rpartition("=")
        number = _rational(value)
        scale = rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
        value = rf"{scale}\cdot({value})" if number is None else str(number * ratio)
        ours = replace(ours, body=name + equals + value, unit=theirs.unit)
    return theirs, ours


def _decided(same: bool, reason: str) -> Judgement:
    return Judgement("AC" if same else "WA", reason)


def _rational(text: str) -> Fraction | None:
    match = _SIMPLE.match(_FRACTION.sub(r"\1\2/\3", _packed(text)))
    with suppress(ZeroDivisionError):
        return Fraction(match[1]) / Fraction(match[2] or "1") if match else None
    return None


def _packed(text: str) -> str:
    """Without the spaces that mean nothing: `1 2` is two numbers, `x + 1` is `x+1`."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _quick_choice(pair: Quick) -> Judgement | None:
    ours, theirs = pair.ours.body, pair.theirs.body
    choice = re.fullmatch(r"\(?([A-J])\)?", theirs)
    ours = ours.upper() if re.fullmatch(r"\(?[a-j]\)?", ours) else ours
    if choice and (match := _CHOICE.match(_ANNOUNCED.sub("", re.sub(TEXT, r"\1", ours)))):
        # What stands behind it may hedge; `D) both A and B` is what choice D says.
        behind = match[2] or ""
        hedges = not _OF_CHOICES.match(behind) and _OTHER_CHOICE.search(_BRACKETED.sub("", behind))
        return _decided(match[1] == choice[1] and not hedges, "choice")
    statements = [
        _STATEMENT.findall(side) for side in (theirs, ours) if _STATEMENTS.fullmatch(side)
    ]
    if len(statements) == 2 and not pair.ordering:
        return _decided({*statements[0]} == {*statements[1]}, "choices")
    if not pair.ordering and (several := _choices(theirs)) and several == _choices(ours):
        return Judgement("AC", "choices")
    return None


def _quick_words(pair: Quick) -> Judgement | None:
    """Words without case and article; what means the same has one wording in words.toml."""
    ours, theirs = pair.ours.body, pair.theirs.body
    a, b = _said(ours), _said(theirs)
    if a != b and _is_product(a) and sorted(a) == sorted(b):
        return None
    if a != b and b and (not b.isascii() or b in COMMON_WORDS):
        return _decided(False, "words")
    if a and b and not ({*a.split()} & {*b.split()} & {"and", "or"}):  # those are lists
        return _decided(a == b, "words")
    return None


def _choices(text: str) -> str:
    """ABD of `A, B and D`, `(A)(B)(D)` and ABD, where several choices are right; else empty."""
    text = re.sub(TEXT, r"\1", text)
    letters = re.findall("[A-J]", text) if _SEVERAL.fullmatch(text) else []
    return "".join(letters if text.isalpha() else sorted(letters))


def _is_product(letters: str) -> bool:
    """xyz and bca, which may as well be zyx and abc: no words."""
    alphabetical = "".join(sorted(letters)) in string.ascii_lowercase
    return len(letters) <= 4 and (alphabetical or not set(letters) & set("aeiou"))


def _said(text: str) -> str:
    """Words without case and article, one wording for those that mean the same; else empty."""
    if text == r"\emptyset":
        return "no solution"
    return common_word(text) if _WORDS.match(text) else ""


def _quick_truth(pair: Quick) -> Judgement | None:
    """Yes and no, whatever reason is given; `yes or no` is neither."""
    gold, answer = (truth_of(re.sub(TEXT, r" \1 ", side)) for side in (pair.gold, pair.answer))
    return _decided(gold == answer, "yes or no") if gold and answer else None


def _quick_date(pair: Quick) -> Judgement | None:
    date = date_of(pair.gold)
    return _decided(date == date_of(pair.answer), "date") if date else None


def _quick_time(pair: Quick) -> Judgement | None:
    """10:40 is a time, for nobody leaves the ratio 1:4 so; 2023-05-06 is no difference."""
    theirs, ours = pair.theirs, pair.ours
    half = theirs.unit or ours.unit
    gold, answer = (_clock(side.body, half) for side in (theirs, ours))
    if gold and (half in _HALVES_OF_DAY or math.gcd(*gold) > 1):
        return _decided(gold == answer, "time")
    return _decided(ours.body == theirs.body, "time") if _DATE.fullmatch(theirs.body) else None


def _clock(text: str, half: str) -> tuple[int, int] | None:
    """15 and 45 of 15:45, and of 3:45 in the half of a day `pm`."""
    match, of_day = _TIME.fullmatch(text), half in _HALVES_OF_DAY
    if not match or not (match[2] or of_day):
        return None
    hour = int(match[1])
    hour = hour % 12 + 12 * (half == "pm") if of_day and 0 < hour <= 12 else hour
    return hour, int(match[2] or 0)


def other_angle(ours: Spelled, theirs: Spelled) -> bool:
    """Degrees on one side, radians on the other."""
    return ("°", "rad") in ((theirs.mark, ours.unit), (ours.mark, theirs.unit))


def _quick_number(pair: Quick) -> Judgement | None:
    theirs, ours = pair.theirs, pair.ours
    a, b = _rational(ours.body), _rational(theirs.body)
    if a is None or b is None:
        return None
    same = a == b
    if not same and not ours.unit and (count := size_of_count(theirs.unit)):
        same = a == b * count  # a gold `5 million` may be 5 or 5000000
    if not same and ours.mark != theirs.mark:
        a, b = (x / 100 if side.mark == "%" else x for x, side in ((a, ours), (b, theirs)))
        same = a == b
    same = same or _rounds_to(a, theirs.body)
    return _decided(same, "" if same else f"{a} is not {b}"[:200])


def rounding_error(gold: str) -> Fraction | None:
    """Half a unit of the last digit of a decimal gold; None when it is not a rounded decimal."""
    match = re.fullmatch(r"[-+]?\d*\.(\d{2,15})", gold)
    return Fraction(1, 2 * 10 ** len(match[1])) if match else None


def _rounds_to(exact: Fraction, gold: str) -> bool:
    """Whether a fraction without a finite decimal is what a decimal gold was rounded from."""
    error = rounding_error(gold)
    endless = 10 ** exact.denominator.bit_length() % exact.denominator != 0
    return error is not None and endless and abs(exact - Fraction(gold)) <= error


RULES = (
    # Dates hold commas and digits, and a reason may hold anything: both before words and numbers.
    Rule("Dates, weekdays, months", _quick_date),
    Rule("Yes and no, true and false", _quick_truth),
    # A single letter is a choice before it is a word.
    Rule("Choices", _quick_choice),
    Rule("Words", _quick_words),
    # A time looks like a ratio, and a ratio like no number.
    Rule("Times", _quick_time),
    Rule("Integers, fractions, decimals", _quick_number),
)
