"""Words and n-grams: the compiled search finds what the rule in Python says, and real leaks."""

import re
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_rows

from klear.tasks.data.ngrams import Item, NgramIndex
from klear.tasks.data.text_columns import SPACE, byte_rule, normalized_buffers
from klear.tasks.data.tokenize import RULES, Normalisation, Rule, alnum_words
from tests.bench.open_r1_peer import grams

ALIKE = ("CJK UNIFIED", "HANGUL SYLLABLE", "TANGUT", "CUNEIFORM", "EGYPTIAN", "NUSHU", "YI SYLL")
CHARS = [
    char
    for code, char in enumerate(map(chr, range(sys.maxunicode + 1)))
    if unicodedata.category(char) not in ("Cn", "Co", "Cs")
    and (code % 97 == 0 or not unicodedata.name(char, "").startswith(ALIKE))
]
WHITE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2003\u3000"
COLUMN = st.one_of(
    st.text(st.sampled_from("aZ[`{\x00\x7f" + WHITE[:10])),  # ASCII alone
    st.text(st.sampled_from("aZ ﬁİßΣςÅ①ｚ\u0301" + WHITE)),
    st.text(st.characters(exclude_categories=["Cs"])),  # Arrow holds no lone surrogates
)


def test_neither_signs_nor_raised_digits_nor_invisible_characters_hide_a_word():
    hidden = "Fi\u00adnd\u200b the\u2060 nu\u200bmb\u200der \ufeffof\u200e pairs"
    for typeset, plain in (("base $b$  is\n9b+7.", "base b is $9b + 7$"), ("x² + y₁", "x^2 + y_1"),
                           (hidden, "Find the number of pairs")):  # fmt: skip
        assert alnum_words(typeset) == alnum_words(plain)
    words = alnum_words(r"Let $\frac{1}{2}x_1 \le \sqrt3$.")
    assert words == ["let", "frac", "1", "2", "x", "1", "le", "sqrt3"]


def read_words(texts: list[str] | pa.Array, rule: Rule) -> list[str]:
    """The words of each text as the loops read them, with one space between them."""
    data, starts, ends = normalized_buffers(pa.array(texts, pa.string()), rule)
    read = [byte_rule(rule)[data[a:b]].tobytes() for a, b in zip(starts, ends, strict=True)]
    return [b" ".join(filter(None, text.split(bytes([SPACE])))).decode() for text in read]


@pytest.mark.parametrize("rule", RULES.values())
def test_every_character_is_what_the_rule_says_alone_and_between_letters(rule: Rule):
    texts = [f"A{c}b {c} x{c}{c}" for c in CHARS]
    for text, words in zip(texts, read_words(texts, rule), strict=True):
        assert words == " ".join(rule(text)), ascii(text)


@pytest.mark.parametrize("rule", RULES.values())
@given(texts=st.lists(COLUMN, max_size=8), a=st.integers(0, 8), b=st.integers(0, 8))
@settings(max_examples=150)
def test_any_slice_of_a_column_has_the_words_of_its_texts(rule: Rule, texts, a: int, b: int):
    some = slice(min(a, b), max(a, b))
    column = pa.array(texts, pa.string())[some]
    assert read_words(column, rule) == [" ".join(rule(text)) for text in texts[some]]


# Few words, so that texts share some; and what the table and the loops could get wrong.
HARD = (
    "a", "B", "c.", "ab", "Σ", "ΑΣ", "ς", "İ", "ß", "ẞ", "é", "e\u0301", "\u0301", "ﬁ", "½", "x²",
    "₁", "⁺", "10⁵", "\u00a0", "\u2003", "\u0085", "\x1c", "\x1f", "\x00", "\u200b", "\u3000", "Å",
    "K", "Ⱥ", "가", "\u1100", "\u1161", "\uac00", "\u11a8", "中文", "。", "\U0001d431", "🎉",
    "_", "\\frac", "…", "—", "٣", "ª", "ﾞ", "か", "\u3099", "ǅ", "𐐀", "\ufeff",
)  # fmt: skip
PIECE = st.one_of(st.sampled_from(HARD), st.sampled_from([" ", "", "\n", "-"]))
PIECES = st.lists(PIECE, max_size=40)
TEXT = st.one_of(PIECES.map("".join), PIECES.map(" ".join), st.text(max_size=30))


def ngrams(words: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


class Overlap(NamedTuple):
    item: Item
    ngram: str
    coverage: float
    whole_item: bool


def index_of(*texts: str, n: int = 3, normalise: Normalisation = "whitespace") -> NgramIndex:
    return NgramIndex([Item("bench", str(i), t) for i, t in enumerate(texts)], n, normalise)


def by_definition(text: str, items: list[Item], n: int, normalise: Normalisation) -> list[Overlap]:
    """The rule in plain Python, one item after the other."""
    words = RULES[normalise](text)
    of_text = ngrams(words, n)
    overlaps = []
    for item in items:
        of_item = RULES[normalise](item.text)
        shared = [gram for gram in of_text if gram in set(ngrams(of_item, n))]
        size = len(of_item)
        if shared:
            coverage = len(set(shared)) / len(set(ngrams(of_item, n)))
            overlaps.append(Overlap(item, " ".join(shared[0]), coverage, False))
        elif 0 < size < n and of_item in [words[i : i + size] for i in range(len(words))]:
            overlaps.append(Overlap(item, " ".join(of_item), 1.0, True))
    return sorted(overlaps, key=lambda o: (-o.coverage, o.whole_item))


def found_in(index: NgramIndex, texts: list[str]) -> list[list[Overlap]]:
    """What one search over a whole column finds, by text."""
    hits = index.search(pa.array(texts, pa.string()))
    assert hits.rows.tolist() == sorted(hits.rows.tolist())
    by_text: list[list[Overlap]] = [[] for _ in texts]
    for row, item, coverage, entry in zip(*map(np.ndarray.tolist, hits[:4]), strict=True):
        overlap = Overlap(index.items[item], index.ngram(entry), coverage, bool(index.whole[entry]))
        by_text[row].append(overlap)
    return by_text


@pytest.mark.parametrize("normalise", ["alnum", "whitespace"])
@given(st.data())
@settings(max_examples=400)
def test_the_compiled_search_agrees_with_the_definition_on_any_text(normalise, data):
    n = data.draw(st.integers(1, 32) | st.integers(1, 4))
    items = [Item("b", str(i), t) for i, t in enumerate(data.draw(st.lists(TEXT, max_size=5)))]
    texts = data.draw(st.lists(TEXT, max_size=6))
    quoted = st.sampled_from([item.text for item in items] or [""])
    texts += [data.draw(TEXT) + data.draw(quoted) + data.draw(TEXT) for _ in range(3)]
    for overlaps, text in zip(found_in(NgramIndex(items, n, normalise), texts), texts, strict=True):
        assert overlaps == by_definition(text, items, n, normalise)


def test_more_hits_than_fit_at_once_are_all_found():
    index, texts = index_of("a b c d", "b c d e", "c d", n=3), ["a b c d e", "x", "c d e b c d"] * 5
    index._hits = index._hits[:, :1]
    overlaps = found_in(index, texts)
    assert overlaps == [by_definition(text, index.items, 3, "whitespace") for text in texts]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_columns_of_every_type_and_cut_are_read(kind: pa.DataType):
    column = pa.array(["é x", None, "a b c", "x é a b c", None], pa.string())
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    index = index_of("a b c", n=3)
    assert index.search(column).rows.tolist() == [2, 3]
    assert index.search(column.slice(2)).rows.tolist() == [0, 1]
    assert index.search(column.slice(0, 0)).rows.tolist() == []


def found_pairs(
    items: list[str], rows: list[str], normalise: Normalisation, coverage: float = 0.0
) -> set[tuple[int, int]]:
    """(item, row) that share a 9-gram or a whole short item, at this coverage or more."""
    hits = index_of(*items, n=9, normalise=normalise).search(pa.array(rows, pa.large_string()))
    pairs = zip(hits.items.tolist(), hits.rows.tolist(), hits.coverage.tolist(), strict=True)
    return {(item, row) for item, row, share in pairs if share >= coverage}


def character_grams(text: str) -> set[str]:
    letters = re.sub(r"[^a-z0-9]", "", text.lower())
    return {letters[i : i + 4] for i in range(len(letters) - 3)}


def answer(text: str) -> str:
    boxed = re.search(r"\\boxed\{(.*)\}", text, re.DOTALL)
    return re.sub(r"[\s$]", "", boxed[1] if boxed else text).lstrip("0")


def true_pairs(items: list[tuple[str, str]], rows: list[tuple[str, str]]) -> set[tuple[int, int]]:
    """Same problem: nearly the same characters, or the same answer and many of them."""
    grams = [character_grams(text) for text, _ in rows]
    pairs = set()
    for i, (text, value) in enumerate(items):
        grams_of_row = character_grams(text)
        alike, row = max(
            (len(grams_of_row & g) / len(grams_of_row | g), j) for j, g in enumerate(grams)
        )
        same_answer = answer(value) == answer(rows[row][1])
        if alike >= 0.9 or (alike >= 0.4 and same_answer):
            pairs.add((i, row))
    return pairs


@pytest.mark.parametrize(
    ("items_of", "rows_of", "expected"),
    [
        (("aime24/test", "problem", "expected_answer"),
         ("aimo_validation_aime/train", "question", "answer"), 30),
        (("hmmt_feb_2025/test", "problem", "solution"),
         ("comp_math_24_25/test", "problem", "expected_answer"), 29),  # problem 24 is not in it
    ],
)  # fmt: skip
def test_alnum_finds_every_problem_in_other_typesetting(items_of, rows_of, expected):
    (name, text, gold), (other, other_text, other_gold) = items_of, rows_of
    items = [(row[text], row[gold]) for row in shared_rows(name)]
    rows = [(row[other_text], row[other_gold]) for row in shared_rows(other)]
    true = true_pairs(items, rows)
    assert len(true) == expected
    item_texts, row_texts = [t for t, _ in items], [t for t, _ in rows]
    assert true <= found_pairs(item_texts, row_texts, "alnum", 0.25)
    assert not true <= found_pairs(item_texts, row_texts, "whitespace")


def test_whitespace_has_the_n_grams_of_the_published_rule():
    texts = [row["problem"] for row in shared_rows("math500/test")]
    texts += [row["problem"] for row in shared_rows("deepscaler/train")[::4]]
    for text in texts:
        assert grams(text) == [" ".join(gram) for gram in ngrams(RULES["whitespace"](text), 9)]
