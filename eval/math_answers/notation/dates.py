"""Days of the week, months and dates: one spelling for those that are the same. 03/04/2025 is the
fourth of March or the third of April, and therefore no date here."""

import re

from .words import TEXT, WORDS

_DAYS, _MONTHS = WORDS["days"].split(), WORDS["months"].split()
_SHORT = {"tues": "tuesday", "wednes": "wednesday", "thur": "thursday", "thurs": "thursday",
          "sept": "september"}  # fmt: skip
_NAMES = {name[:3]: name for name in (*_DAYS, *_MONTHS)} | _SHORT
_NAMES |= {name: name for name in (*_DAYS, *_MONTHS)}
_HAN_DAYS = {day: _DAYS[n] for n, day in enumerate("一二三四五六日")} | {"天": "sunday"}
_HAN_DAYS |= {str(n + 1): day for n, day in enumerate(_DAYS[:6])}
_HAN_NUMBERS = ["十二", "十一", "十", *"九八七六五四三二一"]
_HAN_MONTHS = {month: 12 - n for n, month in enumerate(_HAN_NUMBERS)}

_WEEKDAY = re.compile("(?:星期|周|礼拜)([一二三四五六日天1-6])")
_MONTH = re.compile(r"(\d{1,2}|[一二三四五六七八九十]{1,2})月份?")
_NAME = "|".join(sorted((name for name in _NAMES), key=len, reverse=True))
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<month>{_NAME})\.? (?:the )?{_DAY}(?:(?:,| |, ){_YEAR})?",
        rf"(?:the )?{_DAY} (?:of )?(?P<month>{_NAME})\.?(?:(?:,| |, ){_YEAR})?",
        rf"(?P<month>{_NAME})\.?,? {_YEAR}",
        r"(?P<year>\d{4})([-/.])(?P<month>\d{1,2})\2(?P<day>\d{1,2})",
        r"(?P<first>\d{1,2})([-/.])(?P<second>\d{1,2})\2(?P<year>\d{4})",
        r"(?:(?P<year>\d{4})年)?(?P<month>\d{1,2})月(?P<day>\d{1,2})[日号]",
    )
]
_LAYOUT = re.compile(r"\\[,;:! ]|[~${}]|\^|\\(?:text|mathrm|left|right)\b")


def date_of(text: str) -> str:
    """`wednesday`, `march`, `2025-3-14`, `-3-14` without a year; empty for all else."""
    text = " ".join(_LAYOUT.sub(" ", re.sub(TEXT, r" \1 ", text)).split())
    text = re.sub(r"\s+(?=,|(?:st|nd|rd|th)\b)", "", text).rstrip(".。")
    word = re.sub(r"^on ", "", text.casefold())
    if word in _NAMES:
        return _NAMES[word]
    if match := _WEEKDAY.fullmatch(text):
        return _HAN_DAYS[match[1]]
    if match := _MONTH.fullmatch(text):
        number = int(match[1]) if match[1].isdigit() else _HAN_MONTHS.get(match[1], 0)
        return _MONTHS[number - 1] if 0 < number < 13 else ""
    for pattern in _DATES:
        if match := pattern.fullmatch(re.sub(r"^on ", "", text, flags=re.IGNORECASE)):
            return _written(**match.groupdict())
    return ""


def _written(day: str = "", month: str = "", year: str = "", **either: str) -> str:
    if either:
        first, second = int(either["first"]), int(either["second"])
        if (first <= 12 and second <= 12 and first != second) or max(first, second) > 31:
            return ""
        day, month = str(max(first, second)), str(min(first, second))
    if month and not month.isdigit():
        name = _NAMES[month.casefold()]
        if name not in _MONTHS:
            return ""
        month = str(_MONTHS.index(name) + 1)
    if not 0 < int(month or 0) < 13 or (day and not 0 < int(day) < 32):
        return ""
    return f"{year or ''}-{month}-{int(day) if day else ''}".replace("-0", "-")
