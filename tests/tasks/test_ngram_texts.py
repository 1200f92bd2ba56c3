"""Texts beyond ASCII: the index reads every character as the rule in Python does."""

import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from tasks.data.overlaps import ngrams
from tasks.data.overlaps.ngrams import NgramIndex
from tasks.data.overlaps.words import RULES, Normalisation

ALIKE = ("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT", "CUNEIFORM", "EGYPTIAN", "NUSHU", "YI SYLL")
CHARS = [
    char
    for code, char in enumerate(map(chr, range(sys.maxunicode + 1)))
    if unicodedata.category(char) not in ("Cn", "Co", "Cs")
    and (code % 97 == 0 or not unicodedata.name(char, "").startswith(ALIKE))
]


def words_read(normalise: Normalisation, texts: list[str]) -> list[list[str]]:
    """The words of each text as the n-gram loops would see them."""
    index = NgramIndex([], 1, normalise)
    whole = ngrams._Texts(np.arange(len(texts)), *ngrams._buffers(pa.array(texts)))
    folded, unreadable = index._fold(whole, index._foreign_words(whole))
    assert unreadable == []
    found: list[list[str]] = [[] for _ in texts]
    for piece in (whole, folded):  # the second replaces what is not ASCII
        for row, start, end in zip(piece.rows, piece.starts, piece.ends, strict=True):
            seen = index._rule[piece.data[start:end]].tobytes()
            found[row] = [word.decode() for word in seen.split(b" ") if word]
    return found


@pytest.mark.parametrize("normalise", ["alnum", "whitespace"])
def test_every_character_is_what_the_rule_says_alone_and_between_letters(
    normalise: Normalisation,
):
    texts = [f"A{c}b {c} x{c}{c}" for c in CHARS]
    for text, words in zip(texts, words_read(normalise, texts), strict=True):
        assert words == RULES[normalise](text), ascii(text)


@pytest.mark.parametrize("text", ["a\u0301 ΑΣ", "ﬁx ½", "\u1100\u1161", "x²₁y", "²", "a²", "²b"])
@pytest.mark.parametrize("normalise", ["alnum", "whitespace"])
def test_neighbours_matter_where_the_rule_says_so(normalise: Normalisation, text: str):
    assert words_read(normalise, [text, text + "!", "z"]) == [
        RULES[normalise](t) for t in (text, text + "!", "z")
    ]
