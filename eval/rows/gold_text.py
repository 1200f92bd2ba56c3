r"""The gold where its field holds more: after `####`, in a box, "the answer is 7"; or nothing."""

import re
from typing import Literal

from ..answers import after_think, extract_boxed
from .fields import BadField

HASHES = "####"
_ANNOUNCED = re.compile(
    r"\b(?:final\s+|correct\s+)?answer\s*(?:\*\*)?\s*(?:is:?|[:=])(?=.*\w)", re.I
)
_TAG = re.compile(r"<answer>(?=.*</answer>)", re.DOTALL)
_FORMULA = re.compile(r"\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|\\[A-Za-z]+", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]{2,}")
_PROGRAM = re.compile(
    r"^\s*(?:def |class |import |from \w[\w.]* import |print\(|#include|```"
    r"|(?:async )?function\s*\w*\([^)]*\)\s*\{|public (?:static|class) |int main\s*\()"
    r"|=\s*lambda\b[^:\n]*:|\)\s*=>",
    re.M,
)
_NUMBER = re.compile(r"[-+$€£]{0,2}[\d.,/]+[%$]?")
_FILLER = re.compile(
    r"^(?:therefore|hence|thus|so|then|simply|exactly|just|indeed|equal to|equals)\b[\s,]*", re.I
)
A_PROGRAM = "a program is no answer to compare with"


def rule_of(text: str) -> tuple[Literal["plain", "after", "box"], str]:
    """How the gold stands in a text: after a mark, in the last box, or it is the whole text."""
    text = after_think(text) or ""
    behind = text.rpartition(HASHES)[2].strip().splitlines() if HASHES in text else []
    if len(behind) == 1:  # more lines: a heading in Markdown
        return "after", HASHES
    if "boxed" in text and extract_boxed(text).answer is not None:
        return "box", ""
    if marks := list(_TAG.finditer(text)):
        return "after", marks[-1][0]
    marks = list(_ANNOUNCED.finditer(text))
    if marks and _is_last_word(text, marks):
        return "after", marks[-1][0]
    if behind and text.count(HASHES) == 1 and _NUMBER.fullmatch(behind[0].strip()):
        return "after", HASHES  # `#### 18`, then a remark
    return "plain", ""


def _is_last_word(text: str, marks: list[re.Match[str]]) -> bool:
    """Whether nothing is computed after the answer was announced, or the text opens with it."""
    first, *more = re.split(r"\.(?=\s|$)|\n", text[marks[-1].end() :].strip(" \n*:"), maxsplit=1)
    before = text[: marks[0].start()].strip("*#> \n").lower()
    opens = len(marks) == 1 and before in ("", "the", "so the")
    return bool(first) and (opens or not re.search(r"[\d$=\\]", "".join(more)))


def after_mark(text: str, mark: str, name: str) -> str:
    """The first sentence behind the last `mark`, without what only dresses it. Raises BadField."""
    _, separator, rest = text.rpartition(mark)
    if not separator:
        raise BadField(name, f"no {mark!r} before an answer")
    lines = rest.partition("</answer>")[0].strip(" \t\n*:").splitlines() or [""]
    gold = re.split(r"\.(?=\s|$)", lines[0], maxsplit=1)[0].strip(" \t*")
    gold = _FILLER.sub("", gold)
    for before, after in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = gold.removeprefix(before).removesuffix(after)
        if len(inner) == len(gold) - len(before) - len(after) and before not in inner:
            gold = inner.strip()
    return gold


def is_bare_letter(gold: str, prompt: str) -> bool:
    """Whether the gold is a letter that the prompt does not have: its options are elsewhere."""
    letter = gold.strip("()[]. ")
    apart = rf"(?<![A-Za-z]){letter}(?![A-Za-z])"
    return bool(re.fullmatch("[A-J]", letter)) and not re.search(apart, prompt)


def is_program(text: str) -> bool:
    return bool(_PROGRAM.search(text))


def is_short(text: str) -> bool:
    """Whether a text of a solution's field is an answer by itself: a value, no sentence."""
    words = _WORD.findall(_FORMULA.sub(" ", text))
    return 0 < len(text) <= 60 and not _FILLER.match(text) and len(words) <= 1
