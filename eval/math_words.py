r"""The words of a math answer: which ones name a unit, and which ones change what is said.

`12\text{ ways}` and `\text{The answer is } 12` say 12; `\text{not } 12`, `\text{at least } 12` and
`12\text{ or more}` do not.
"""

import re
from collections.abc import Set as AbstractSet

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


def says_otherwise(answer: str, gold: str) -> bool:
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
