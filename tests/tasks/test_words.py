"""Every character of a column counts as the rule in Python says, whatever stands beside it."""

import sys
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.records import normalise_prompt
from tasks.data.text_columns import fold
from tasks.data.words import RULES, Rule, alnum_words, query_words

ALIKE = ("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT", "CUNEIFORM", "EGYPTIAN", "NUSHU", "YI SYLL")
CHARS = [
    char
    for code, char in enumerate(map(chr, range(sys.maxunicode + 1)))
    if unicodedata.category(char) not in ("Cn", "Co", "Cs")
    and (code % 97 == 0 or not unicodedata.name(char, "").startswith(ALIKE))
]
WHITE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2003\u3000"
TEXT = st.one_of(
    st.text(st.sampled_from("aZ[`{\x00\x7f" + WHITE[:10])),  # ASCII alone
    st.text(st.sampled_from("aZ ﬁİßΣςÅ①ｚ\u0301" + WHITE)),
    st.text(st.characters(exclude_categories=["Cs"])),  # Arrow holds no lone surrogates
)


def test_latex_becomes_its_letters_and_digits():
    words = alnum_words(r"Let $\frac{1}{2}x_1 \le \sqrt3$.")
    assert words == ["let", "frac", "1", "2", "x", "1", "le", "sqrt3"]
    assert alnum_words("base $b$  is\n9b+7.") == alnum_words("base b is $9b + 7$")


def test_a_raised_digit_is_a_word_of_its_own():
    assert alnum_words("x² + y₁") == alnum_words("x^2 + y_1")


def test_invisible_characters_hide_no_word():
    hidden = "Fi\u00adnd\u200b the\u2060 nu\u200bmb\u200der \ufeffof\u200e pairs"
    assert alnum_words(hidden) == alnum_words("Find the number of pairs")


def folded(texts: list[str] | pa.Array, rule: Rule) -> list[str]:
    return [text.decode() for text in fold(pa.array(texts, pa.string()), rule).to_pylist()]


@pytest.mark.parametrize("rule", [*RULES.values(), query_words])
def test_every_character_is_what_the_rule_says_alone_and_between_letters(rule: Rule):
    texts = [f"A{c}b {c} x{c}{c}" for c in CHARS]
    for text, found in zip(texts, folded(texts, rule), strict=True):
        assert found == " ".join(rule(text)), ascii(text)


@given(st.lists(TEXT, max_size=8), st.integers(0, 8), st.integers(0, 8))
@settings(max_examples=300, deadline=None)
def test_a_folded_query_is_the_normalised_prompt_in_any_slice(texts: list[str], a: int, b: int):
    some = slice(min(a, b), max(a, b))
    column = pa.array(texts, pa.string())[some]
    assert folded(column, query_words) == [normalise_prompt(text) for text in texts[some]]
