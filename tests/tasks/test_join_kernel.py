import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.join_kernel import distinct, shared

WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "abc"]), max_size=12)


def laid_out(words: list[str], hash_of) -> tuple:
    """Words as shingles in one buffer, with the hashes that `hash_of` gives them."""
    data = np.frombuffer("".join(words).encode(), np.uint8)
    stops = np.cumsum([len(word) for word in words]).astype(np.int64)
    starts = stops - np.array([len(word) for word in words], np.int64)
    return data, np.array([hash_of(word) for word in words], np.uint64), starts, stops


@given(WORDS, WORDS, st.sampled_from([hash, len, lambda _: 7]))
def test_shared_shingles_are_counted_exactly_even_when_every_hash_collides(one, two, hash_of):
    data, hashes, starts, stops = laid_out(one + two, lambda word: hash_of(word) % 2**64)
    end_one = distinct(data, hashes, starts, stops, 0, len(one))
    end_two = distinct(data, hashes, starts, stops, len(one), len(one) + len(two))
    assert end_one == len(set(one))
    assert end_two - len(one) == len(set(two))
    same = shared(data, hashes, starts, stops, 0, end_one, len(one), end_two)
    assert same == len(set(one) & set(two))
