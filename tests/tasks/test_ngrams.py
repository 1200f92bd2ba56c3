from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.ngrams import Item, NgramIndex, alnum_words, ngrams, whitespace_words

WORDS = st.lists(st.sampled_from("abc"), max_size=30)


def index_of(*texts: str, n: int = 3, normalise="whitespace") -> NgramIndex:
    return NgramIndex([Item("bench", str(i), t) for i, t in enumerate(texts)], n, normalise)


def test_latex_becomes_its_letters_and_digits():
    words = alnum_words(r"Let $\frac{1}{2}x_1 \le \sqrt3$.")
    assert words == ["let", "frac", "1", "2", "x", "1", "le", "sqrt3"]


def test_the_same_problem_in_other_typesetting_has_the_same_words():
    assert alnum_words("base $b$  is\n9b+7.") == alnum_words("base b is $9b + 7$")


def test_a_raised_digit_is_a_word_of_its_own():
    assert alnum_words("x² + y₁") == alnum_words("x^2 + y_1")


def test_letters_of_any_script_are_words_and_their_signs_are_not():
    assert alnum_words("Ünïcode “ΣΑΣ”—число") == ["ünïcode", "σας", "число"]


def test_both_routes_of_alnum_agree_on_ascii():
    text = "".join(chr(c) for c in range(128))
    beyond = alnum_words(text + " é")
    assert alnum_words(text) == beyond[:-1]


def test_whitespace_rule_keeps_punctuation():
    assert whitespace_words("A b,\u00a0C.\n") == ["a", "b,", "c."]


@given(WORDS, WORDS, st.integers(1, 12))
@settings(deadline=None)
def test_overlaps_agree_with_the_definition(text: list[str], item: list[str], n: int):
    found = index_of(" ".join(item), n=n).overlaps(" ".join(text))
    of_item, of_text = set(ngrams(item, n)), set(ngrams(text, n))
    if 0 < len(item) < n:
        whole = any(text[i : i + len(item)] == item for i in range(len(text)))
        assert [o.coverage for o in found] == ([1.0] if whole else [])
    elif of_item & of_text:
        assert [o.coverage for o in found] == [len(of_item & of_text) / len(of_item)]
        assert tuple(found[0].ngram.split()) in of_item & of_text
    else:
        assert found == []


def test_a_text_without_a_whole_ngram_shares_nothing():
    item = "a b c d e f g h i"
    assert index_of(item, n=9).overlaps("a b c d e f g h") == []
    assert index_of(item, n=9).overlaps("x a b c d e f g h i y")[0].coverage == 1.0


def test_an_item_shorter_than_n_is_found_whole_and_only_whole():
    index = index_of("compute 5!", n=9)
    assert index.short_items == 1
    assert index.overlaps("please compute 5! now")[0].whole_item
    assert index.overlaps("compute it: 5!") == []


def test_items_that_share_their_rarest_word_are_both_found():
    found = index_of("find zeta", "zeta of two", n=9).overlaps("find zeta of two")
    assert {o.item.id for o in found} == {"0", "1"}


def test_the_best_covered_item_comes_first():
    found = index_of("a b c d e f", "a b c", n=3).overlaps("a b c")
    assert [(o.item.id, o.coverage) for o in found] == [("1", 1.0), ("0", 0.25)]


def test_coverage_counts_each_ngram_once():
    # "a a a a" has one distinct 3-gram, so a text with it covers the item fully.
    assert index_of("a a a a").overlaps("a a a")[0].coverage == 1.0


def test_an_item_of_symbols_only_is_reported_not_lost():
    index = index_of("∀ ∃ !", normalise="alnum")
    assert [i.id for i in index.wordless] == ["0"]
    assert index.overlaps("∀ ∃ !") == []
