r"""What a word is: the rules that decide which texts share words.

whitespace   the published rule (s1, open-r1): lower case, split at white space
alnum        lower-case runs of letters and digits: `$\frac{1}{2}$` and `\frac 1 2` are frac 1 2
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Literal

Rule = Callable[[str], list[str]]
Normalisation = Literal["alnum", "whitespace"]

RAISED = re.compile(r"[\u00b2\u00b3\u00b9\u2070-\u209c]+")
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]+")
"""Soft hyphens, zero-width spaces, marks of direction: no reader sees them in a word."""
_WORD = re.compile(r"[^\W_]+")


def whitespace_words(text: str) -> list[str]:
    """The published rule: what stands between white space, in lower case."""
    return text.lower().split()


def alnum_words(text: str) -> list[str]:
    """Lower-case runs of letters and digits.

    Text beyond ASCII is brought to NFKC first, without invisible characters; a superscript or
    subscript is a word of its own, so that x² and x^2 agree.
    """
    spaced = RAISED.sub(lambda raised: f" {raised[0]} ", INVISIBLE.sub("", text))
    return _WORD.findall(unicodedata.normalize("NFKC", spaced).lower())


RULES: dict[Normalisation, Rule] = {"alnum": alnum_words, "whitespace": whitespace_words}
