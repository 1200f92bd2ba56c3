r"""Numbers in words, English and Chinese, in digits: `twenty-five`, `two-thirds`, `百分之五`, where
they are all of an answer, or stand before one word for what is counted."""

import re
from fractions import Fraction

from .words import HAN, NUMBERS, WORDS

_SMALL = {word: n for n, word in enumerate(NUMBERS)}
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL |= {word: 10 * n for n, word in enumerate(_TENS, 2)} | {"a": 1, "an": 1, "fourty": 40}
_SIZES = {"thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6,
          "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12,
          "hundredth": 100, "thousandth": 1000}  # fmt: skip
_TENS_OF = rf"(?:{'|'.join(_TENS)}|fourty)"
_DIGIT = rf"(?:{'|'.join(NUMBERS[1:10])})"
_TO_99 = rf"(?:{_TENS_OF}(?:[ -]{_DIGIT})?|{'|'.join(NUMBERS[10:20])}|{_DIGIT})"
_TO_999 = rf"(?:(?:{_DIGIT}|an?)[ -]hundred(?:(?: and)? {_TO_99})?|{_TO_99})"
_WHOLE = (
    rf"(?:(?:{_TO_999}|an?)[ -](?:{'|'.join(_SIZES)})(?:,? (?:and )?{_TO_999})?|{_TO_999}|zero)"
)
_PART = rf"(?:{'|'.join(_PARTS)})s?"
_DENOMINATOR = rf"(?:{_WHOLE}|an?)[ -]{_PART}"
_NUMBER = re.compile(
    rf"(?P<sign>(?:minus|negative) )?(?:(?P<whole>{_WHOLE}) and (?P<part>{_DENOMINATOR})"
    rf"|(?P<fraction>{_DENOMINATOR}|half)|(?P<point>{_WHOLE} point(?: (?:zero|{_DIGIT}))+)"
    rf"|(?P<number>{_WHOLE}))(?P<rest>(?: [a-z]+| %)?)",
    re.IGNORECASE,
)
_UNCOUNTED = frozenset(WORDS["uncounted"].split())

_DIGITS = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_STEPS, _MYRIADS = {"十": 10, "百": 100, "千": 1000}, {"万": 10**4, "亿": 10**8}
_H = r"[零\u3007一二两三四五六七八九十百千万亿]+"
_MEASURE = (
    "个|个人|种|条|只|本|块|元|人|天|岁|张|名|位|支|辆|棵|道|件|对|组|页|次|度|倍|年|周|分|吨|秒|升|克"
    "|小时|分钟|千克|公斤|毫升|(?:平方|立方)?(?:千|厘|毫|分|公)?米|公里|美元"
)
_CHINESE = re.compile(
    rf"(?P<sign>负)?(?:(?P<whole>{_H})又)?(?:(?P<below>{_H})分之(?P<above>{_H}(?:点{_H})?)"
    rf"|(?P<number>{_H})(?:点(?P<point>[零\u3007一二三四五六七八九]+))?)(?P<rest>{_MEASURE})?"
)


def in_digits(text: str) -> str:
    """The number that a text is, in digits, with what it counts; every other text as it is."""
    if not re.search(rf"[a-z{HAN}]", text, re.IGNORECASE):
        return text
    stripped = text.strip().rstrip(".。")
    if match := re.fullmatch(r"(?:minus|negative)\s+(\d+(?:\.\d+)?)", stripped, re.IGNORECASE):
        return f"-{match[1]}"
    if match := _CHINESE.fullmatch(stripped):
        return _from_chinese(match) or text
    if not (match := _NUMBER.fullmatch(" ".join(stripped.replace("\N{HYPHEN}", "-").split()))):
        return text
    rest = match["rest"].strip().casefold()
    ordinal = rest in _PARTS or rest.endswith("th") or rest in ("first", "second", "third")
    if rest in _UNCOUNTED | _SMALL.keys() or ordinal or (rest and match["fraction"]):
        return text
    tail = {"percent": r"\%", "%": r"\%", "": ""}.get(rest, rf"\text{{ {rest}}}")
    if match["point"]:
        integer, _, digits = match["point"].casefold().partition(" point ")
        value = f"{_whole(integer)}.{''.join(str(_SMALL[d]) for d in digits.split())}"
    elif match["number"]:
        value = str(_whole(match["number"]))
    else:
        part = _fraction(match["part"] or match["fraction"])
        total = Fraction(_whole(match["whole"] or "zero")) + part
        value = rf"\frac{{{total.numerator}}}{{{total.denominator}}}"
    return f"{'-' if match['sign'] else ''}{value}{tail}"


def _whole(words: str) -> int:
    total = current = 0
    for word in re.findall("[a-z]+", words.casefold()):
        if word in _SIZES:
            total, current = total + current * _SIZES[word], 0
        elif word == "hundred":
            current *= 100
        elif word != "and":
            current += _SMALL[word]
    return total + current


def _fraction(words: str) -> Fraction:
    count, _, part = words.casefold().replace("-", " ").rpartition(" ")
    part = part if part in _PARTS else part.removesuffix("s")
    return Fraction(_whole(count) if count else 1, _PARTS[part])


def _from_chinese(match: re.Match[str]) -> str:
    sign, rest = "-" if match["sign"] else "", match["rest"] or ""
    if match["number"]:
        number = _hundreds(match["number"])
        if number is None or match["whole"]:
            return ""
        point = "".join(str(_DIGITS[c]) for c in match["point"] or "")
        return f"{sign}{number}{'.' * bool(point)}{point}{rest}"
    mixed, below = (_hundreds(match[key] or "零") for key in ("whole", "below"))
    integer, _, decimals = match["above"].partition("点")
    above = _hundreds(integer)
    if mixed is None or not below or above is None:
        return ""
    if match["below"] == "百" and not match["whole"]:
        point = "".join(str(_DIGITS.get(c, "")) for c in decimals)
        return rf"{sign}{above}{'.' * bool(point)}{point}\%{rest}"
    return "" if decimals else rf"{sign}\frac{{{mixed * below + above}}}{{{below}}}{rest}"


def _hundreds(text: str) -> int | None:
    """123 of 一百二十三; None for digits in no order, such as 三十百."""
    if len(text) > 1 and all(c in _DIGITS for c in text):  # 二零二五, read digit by digit
        return int("".join(str(_DIGITS[c]) for c in text)) if len(text) > 2 else None
    total = section = digit = 0
    last = 10**9
    for c in text:
        if c in _DIGITS:
            if digit:
                return None
            digit = _DIGITS[c]
        elif c in _STEPS:
            if _STEPS[c] >= last:
                return None
            last = _STEPS[c]
            section, digit = section + (digit or 1) * last, 0
        else:
            total = (total + (section + digit or 1)) * _MYRIADS[c]
            section, digit, last = 0, 0, 10**9
    return total + section + digit
