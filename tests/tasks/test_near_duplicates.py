from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_rows

from klear.eval.records import normalise_prompt
from klear.tasks.data import near_duplicates
from klear.tasks.data.near_duplicates import WEIGHTS, band_keys, buckets, near_groups
from klear.tasks.data.text_columns import fold
from klear.tasks.data.words import query_words

TEXTS = st.lists(st.lists(st.sampled_from("abcé"), max_size=9).map(" ".join), max_size=8)


def shingles(text: str, size: int) -> set[str]:
    words = normalise_prompt(text).split(" ")
    return {" ".join(words[i : i + size]) for i in range(max(len(words) - size + 1, 1))} - {""}


def jaccard(a: str, b: str, size: int = 3) -> float:
    one, two = shingles(a, size), shingles(b, size)
    return len(one & two) / len(one | two) if one | two else 0.0


def near(texts: list[str], jaccard: float = 0.7, shingle: int = 3, permutations: int = 128):
    """The uniting pairs, their similarities, and the first row of each text's group."""
    text = folded(texts)
    bands = band_keys(text, shingle, jaccard, permutations)
    keys = [pa.chunked_array([band]) for band in bands]
    column, rows = pa.chunked_array([text]), np.arange(len(texts))
    pairs, similarity, first = near_groups(column, keys, rows, jaccard=jaccard, shingle=shingle)
    return list(map(tuple, pairs.tolist())), similarity.tolist(), first.tolist()


def folded(texts: list[str]) -> pa.Array:
    return fold(pa.array(texts, pa.string()), query_words)


@given(TEXTS)
@settings(deadline=None)
def test_groups_are_what_verified_candidates_connect(texts: list[str]):
    keys = band_keys(folded(texts), 3, 0.5, 16)
    parent = list(range(len(texts)))
    for a, b in combinations(range(len(texts)), 2):
        if (keys[:, a] == keys[:, b]).any() and jaccard(texts[a], texts[b]) >= 0.5:
            parent = [parent[a] if p == parent[b] else p for p in parent]
    pairs, similarity, first = near(texts, jaccard=0.5, permutations=16)
    assert first == [parent.index(p) for p in parent]
    assert similarity == [jaccard(texts[a], texts[b]) for a, b in pairs]
    assert len(pairs) == sum(i != f for i, f in enumerate(first))  # a forest of uniting pairs


def sketched(text: pa.Scalar) -> MinHash:
    """datasketch's own MinHash over the 32-bit hashes of our shingles."""
    data = np.frombuffer(text.as_py(), np.uint8)
    hashes = np.empty(len(data) // 2 + 1, np.uint64)
    count = near_duplicates._shingles(data, 0, len(data), 5, hashes)
    sketch = MinHash(num_perm=128, scheme="affine32", hashfunc=int)
    if count:
        sketch.update_batch((hashes[:count] >> np.uint64(32)).tolist())
    return sketch


def test_candidates_of_real_prompts_are_those_of_datasketch():
    real = (row["problem"] for row in shared_rows("deepscaler/train")[:3000])
    texts = folded([*real, "", "x y"])
    keys = band_keys(texts, 5, 0.7, 128)
    lsh = MinHashLSH(threshold=0.7, num_perm=128, weights=WEIGHTS)
    theirs: set[tuple[int, int]] = set()
    for number, text in enumerate(texts):
        sketch = sketched(text)
        theirs.update((earlier, number) for earlier in lsh.query(sketch))  # type: ignore[misc]
        lsh.insert(number, sketch)
    candidates: set[tuple[int, int]] = set()
    for band in keys:
        members, edges = buckets(band, np.arange(len(band)))
        for a, b in pairwise(edges):
            candidates.update(combinations(members[a:b].tolist(), 2))
    assert candidates == theirs
    assert len(candidates) > 50  # the sample has repeats: nothing passes for want of candidates
