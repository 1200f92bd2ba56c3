import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.near_duplicates import ShingledTexts, buckets, near_duplicates, signatures
from tasks.ngrams import ngrams

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=9).map(" ".join), max_size=8)


def jaccard(a: str, b: str, shingle: int) -> float:
    def shingles(text: str) -> set:
        words = text.lower().split()
        return set(ngrams(words, shingle)) if len(words) >= shingle else {tuple(words)}

    one, two = shingles(a), shingles(b)
    return len(one & two) / len(one | two)


def near(texts: list[str], **chosen):
    return near_duplicates(texts, **{"jaccard": 0.7, "shingle": 3, "permutations": 128, **chosen})


def test_a_copy_with_one_word_changed_at_the_end_is_near():
    text = "a b c d e f g h i j k l m n o p"
    pairs, first = near([text, "something else entirely", text.replace("p", "q")])
    # 14 shingles each, 13 of them shared.
    assert [(p.first, p.second) for p in pairs] == [(0, 2)]
    assert pairs[0].jaccard == 13 / 15
    assert first == [0, 1, 0]


def test_short_texts_are_near_only_when_their_words_are_the_same():
    assert near(["Find x", "find  X", "find y"])[1] == [0, 0, 2]


def test_signs_count_as_words_so_other_operators_make_another_problem():
    assert near(["2 + 3 = x", "2 * 3 = x"], shingle=5)[1] == [0, 1]


def test_texts_without_words_resemble_nothing():
    text = "a b c d e f g h"
    assert near(["", text, " ", text + " i", ""])[1] == [0, 1, 2, 1, 4]


def test_a_chain_of_neighbours_is_one_group_and_its_first_text_stays():
    words = [f"w{i}" for i in range(30)]
    chain = [" ".join(words[i : i + 20]) for i in (0, 2, 4)]
    assert jaccard(chain[0], chain[2], 3) < 0.7 <= jaccard(chain[0], chain[1], 3)
    assert near(chain)[1] == [0, 0, 0]


def test_many_copies_in_one_bucket_are_joined_by_one_pair_each():
    pairs, first = near(["a b c d e f"] * 500)
    assert first == [0] * 500
    assert len(pairs) == 499


@given(TEXTS)
@settings(deadline=None)
def test_every_listed_pair_is_verified_and_groups_hold_nothing_else(texts: list[str]):
    pairs, first = near(texts)
    for pair in pairs:
        assert pair.jaccard == jaccard(texts[pair.first], texts[pair.second], 3) >= 0.7
    assert sum(i != f for i, f in enumerate(first)) == len(pairs)  # a forest of linking pairs


def test_signatures_are_datasketch_signatures():
    texts = ShingledTexts(["a b c d e f", "", "x y", "a b c d q r s t", " "], shingle=3)
    ours = signatures(texts, permutations=16)
    for number in (0, 2, 3):
        hashes, _ = texts.hashes(number, number + 1)
        sketch = MinHash(num_perm=16, scheme="affine32", hashfunc=int)
        sketch.update_batch(hashes.tolist())
        assert ours[number].tolist() == sketch.hashvalues.tolist()


def test_a_text_is_hashed_alike_whatever_stands_beside_it():
    alone = ShingledTexts(["b c d e"], shingle=3).hashes(0, 1)[0]
    beside = ShingledTexts(["a a a", "b c d e", "d"], shingle=3)
    assert beside.hashes(1, 2)[0].tolist() == alone.tolist()
    assert beside.hashes(0, 3)[0][1:3].tolist() == alone.tolist()


def test_buckets_hold_the_texts_that_agree_in_a_band():
    signature = np.array([[1, 2, 3, 4], [9, 9, 3, 4], [1, 2, 7, 7], [1, 2, 3, 5]], np.uint32)
    assert list(buckets(signature, bands=2, rows=2)) == [[0, 2, 3], [0, 1]]


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_most_pairs_above_the_threshold_are_found(threshold: float):
    chance = np.random.default_rng(0)
    texts = []
    for _ in range(150):
        words = chance.integers(0, 5000, 60).astype(str)
        texts.append(" ".join(words))
        texts.append(" ".join(words[: chance.integers(20, 60)]))
    true = {
        (i, j)
        for i in range(0, 300, 2)
        for j in [i + 1]
        if jaccard(texts[i], texts[j], 3) >= threshold
    }
    found = {(p.first, p.second) for p in near(texts, jaccard=threshold)[0]}
    lsh = MinHashLSH(threshold=threshold, num_perm=128)
    # At the threshold itself a pair is missed with probability (1 - t^r)^b; above it, less.
    expected_recall = 1 - (1 - threshold**lsh.r) ** lsh.b
    assert found <= true
    assert len(found) >= 0.9 * expected_recall * len(true)
