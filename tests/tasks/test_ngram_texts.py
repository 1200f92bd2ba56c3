"""Folding by the table of code points: every one of them, and what it must not try."""

import sys
import unicodedata

import pyarrow as pa
import pytest

from tasks.ngram_texts import BY_HAND, Reader
from tasks.words import RULES, Normalisation

ALIKE = ("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT", "CUNEIFORM", "EGYPTIAN", "NUSHU", "YI SYLL")
CHARS = [
    char
    for code, char in enumerate(map(chr, range(sys.maxunicode + 1)))
    if unicodedata.category(char) not in ("Cn", "Co", "Cs")
    and (code % 97 == 0 or not unicodedata.name(char, "").startswith(ALIKE))
]


def words_read(reader: Reader, texts: list[str]) -> list[list[str]]:
    """The words of each text as the n-gram loops would see them."""
    pieces, unreadable = reader.read(pa.array(texts, pa.large_string()))
    assert unreadable == []
    found: list[list[str]] = [[] for _ in texts]
    for piece in pieces:
        for row, start, end in zip(piece.rows, piece.starts, piece.ends, strict=True):
            seen = reader.rule[piece.data[start:end]].tobytes()
            found[row] = [word.decode() for word in seen.split(b" ") if word]
    return found


@pytest.mark.parametrize("normalise", ["alnum", "whitespace"])
def test_every_character_is_what_the_rule_says_alone_and_between_letters(
    normalise: Normalisation,
):
    reader = Reader(normalise)
    texts = [f"A{c}b {c} x{c}{c}" for c in CHARS]
    for text, words in zip(texts, words_read(reader, texts), strict=True):
        assert words == RULES[normalise](text), ascii(text)


def test_whatever_nfkc_joins_to_its_neighbour_is_left_to_python():
    reader = Reader("alnum")
    pairs = (unicodedata.decomposition(char).split() for char in CHARS)
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and pair[0][0] != "<"}
    jamo = [chr(code) for code in range(0x1160, 0x1200)]
    reordered = [char for char in CHARS if unicodedata.combining(char)]
    for char in (*seconds, *jamo, *reordered):
        assert reader._entry(char) == BY_HAND, ascii(char)


@pytest.mark.parametrize("text", ["a\u0301 ΑΣ", "ﬁx ½", "\u1100\u1161", "x²₁y", "²", "a²", "²b"])
@pytest.mark.parametrize("normalise", ["alnum", "whitespace"])
def test_neighbours_matter_where_the_rule_says_so(normalise: Normalisation, text: str):
    assert words_read(Reader(normalise), [text, text + "!", "z"]) == [
        RULES[normalise](t) for t in (text, text + "!", "z")
    ]
