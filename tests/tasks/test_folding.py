import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.records import normalise_prompt
from tasks.data.duplicates.folding import Folded, concatenate, fold

WHITE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2003\u3000"
TEXT = st.one_of(
    st.text(st.sampled_from("aZ[`{\x00\x7f" + WHITE[:10])),  # ASCII alone
    st.text(st.sampled_from("aZ ﬁİßΣςÅ①ｚ\u0301" + WHITE)),
    st.text(st.characters(exclude_categories=["Cs"])),  # Arrow holds no lone surrogates
)


def column(texts: list[str], type_=None) -> pa.Array:
    return pa.array(texts, type_ or pa.string())


def texts_of(folded: Folded) -> list[str]:
    data = folded.data.tobytes()
    return [data[a:b].decode() for a, b in zip(folded.ends, folded.ends[1:], strict=False)]


@given(st.lists(TEXT, max_size=8))
@settings(max_examples=300, deadline=None)
def test_folded_text_is_the_normalised_prompt(texts: list[str]):
    assert texts_of(fold(column(texts))) == [normalise_prompt(text) for text in texts]


@given(st.lists(TEXT, max_size=6), st.integers(0, 6), st.integers(0, 6))
@settings(deadline=None)
def test_slices_and_chunks_of_a_column_fold_like_their_texts(texts: list[str], a: int, b: int):
    first, last = min(a, b, len(texts)), min(max(a, b), len(texts))
    whole = [normalise_prompt(text) for text in texts]
    for type_ in (pa.string(), pa.large_string()):
        array = column(texts, type_)
        assert texts_of(fold(array.slice(first, last - first))) == whole[first:last]
        chunks = pa.chunked_array([array.slice(0, first), array.slice(first)], type_)
        assert texts_of(fold(chunks)) == whole


def test_texts_can_be_taken_in_any_order_and_put_together():
    folded = fold(column(["One", "é", "", "last  one"]))
    assert texts_of(folded.take(np.array([3, 0, 3]))) == ["last one", "one", "last one"]
    assert texts_of(folded.take(np.zeros(0, np.int64))) == []
    both = concatenate([folded, fold(column([])), folded.take(np.array([1]))])
    assert texts_of(both) == ["one", "é", "", "last one", "é"]
    assert texts_of(concatenate([])) == []


def test_a_missing_text_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="text 1 is missing"):
        fold(pa.array(["a", None], pa.string()))
