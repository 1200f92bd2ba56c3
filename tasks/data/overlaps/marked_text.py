"""A text with the n-gram it shares set between marks, for people who compare two texts."""

import re

from tasks.data.overlaps.words import RULES, Normalisation

OPEN, CLOSE = "⟦", "⟧"
_CHUNK = {"alnum": re.compile(r"[^\W_]+"), "whitespace": re.compile(r"\S+")}


def marked(text: str, ngram: str, normalise: Normalisation, around: int) -> str:
    """The text with its first occurrence of `ngram` between ⟦ and ⟧.

    At most `around` characters before and after it are kept. Where characters combine across
    words (NFKC) the place may not be found: then the beginning of the text, without marks.
    """
    wanted = ngram.split(" ")
    words: list[str] = []
    places: list[tuple[int, int]] = []
    for chunk in _CHUNK[normalise].finditer(text):
        for word in RULES[normalise](chunk[0]):
            words.append(word)
            places.append(chunk.span())
            if words[-len(wanted) :] == wanted:
                return _between(text, places[-len(wanted)][0], places[-1][1], around)
    return text if len(text) <= 2 * around else text[: 2 * around] + " …"


def _between(text: str, start: int, end: int, around: int) -> str:
    left, right = max(0, start - around), min(len(text), end + around)
    return (
        f"{'… ' if left else ''}{text[left:start]}{OPEN}{text[start:end]}{CLOSE}"
        f"{text[end:right]}{' …' if right < len(text) else ''}"
    )
