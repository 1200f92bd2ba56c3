import pytest

from tasks.data.overlaps.marked_text import marked
from tasks.data.overlaps.words import Normalisation


@pytest.mark.parametrize(
    ("text", "ngram", "normalise", "shown"),
    [
        (r"Let $\frac{1}{2}$ be", "frac 1 2", "alnum", r"Let $\⟦frac{1}{2⟧}$ be"),
        ("Find  THE\nsum, now", "the sum,", "whitespace", "Find  ⟦THE\nsum,⟧ now"),
        ("so x² is", "x 2 is", "alnum", "so ⟦x² is⟧"),
        ("no such words", "other words", "alnum", "no such words"),
        ("a a b", "a b", "alnum", "a ⟦a b⟧"),
    ],
)
def test_the_words_are_marked_where_they_stand(
    text: str, ngram: str, normalise: Normalisation, shown: str
):
    assert marked(text, ngram, normalise, around=100) == shown


def test_a_long_text_is_cut_around_the_mark():
    text = "x " * 500 + "here it is" + " y" * 500
    assert marked(text, "here it is", "alnum", around=4) == "… x x ⟦here it is⟧ y y …"
    assert marked(text, "not there", "alnum", around=4) == "x x x x  …"
