import gzip
import json
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.records import normalise_prompt
from tasks.data.duplicates import minhash
from tasks.data.duplicates.first_rows import first_rows, repeated
from tasks.data.duplicates.folding import Folded, fold
from tasks.data.duplicates.minhash import WEIGHTS, Banding, band_keys, shingle_sets, signatures
from tasks.data.duplicates.near_duplicates import near_groups
from tasks.data.duplicates.prompt_parts import ComputedParts, compute_part, prompt_parts

DATA = Path(__file__).parents[3] / "shared" / "data"
TEXTS = st.lists(st.lists(st.sampled_from("abcé"), max_size=9).map(" ".join), max_size=8)


def shingles(text: str, size: int) -> set[str]:
    words = normalise_prompt(text).split(" ")
    return {" ".join(words[i : i + size]) for i in range(max(len(words) - size + 1, 1))} - {""}


def jaccard(a: str, b: str, size: int = 3) -> float:
    one, two = shingles(a, size), shingles(b, size)
    return len(one & two) / len(one | two) if one | two else 0.0


def near(texts: list[str], jaccard: float = 0.7, shingle: int = 3, permutations: int = 128):
    """The uniting pairs, their similarities, and the first row of each text's group."""
    banding = Banding.for_threshold(jaccard, permutations)
    with TemporaryDirectory() as place:
        source = Path(place) / "kept.parquet"
        columns = {"prompt": pa.array(texts, pa.string()), "id": list(map(str, range(len(texts))))}
        pq.write_table(pa.table(columns), source)
        for part in prompt_parts(source, len(texts)):
            compute_part(part, Path(place), shingle, banding)
        parts = ComputedParts([Path(place)] if texts else [])
        parts.open_texts()
        pairs, first = near_groups(
            parts, np.arange(len(texts)), bands=banding.bands, jaccard=jaccard, shingle=shingle
        )
    return list(map(tuple, pairs.rows.tolist())), pairs.jaccard.tolist(), first.tolist()


def test_a_copy_with_one_word_changed_at_the_end_is_near():
    text = "a b c d e f g h i j k l m n o p"
    pairs, similarity, first = near([text, "something else entirely", text.replace("p", "q")])
    # 14 shingles each, 13 of them shared.
    assert (pairs, similarity, first) == ([(0, 2)], [13 / 15], [0, 1, 0])


def test_short_texts_are_near_only_when_their_words_are_the_same():
    assert near(["Find x", "find  X", "find y"])[2] == [0, 0, 2]


def test_signs_count_as_words_so_other_operators_make_another_problem():
    assert near(["2 + 3 = x", "2 * 3 = x"], shingle=5)[2] == [0, 1]


def test_texts_without_words_resemble_nothing():
    text = "a b c d e f g h"
    assert near(["", text, " ", text + " i", ""])[2] == [0, 1, 2, 1, 4]


def test_a_chain_of_neighbours_is_one_group_and_its_first_text_stays():
    words = [f"w{i}" for i in range(30)]
    chain = [" ".join(words[i : i + 20]) for i in (0, 2, 4)]
    assert jaccard(chain[0], chain[2]) < 0.7 <= jaccard(chain[0], chain[1])
    assert near(chain)[2] == [0, 0, 0]
    # The link may come last: it unites two groups that were apart.
    assert near([chain[0], chain[2], chain[1]])[2] == [0, 0, 0]


def test_many_copies_in_one_bucket_are_joined_by_one_pair_each():
    pairs, _, first = near(["a b c d e f"] * 500)
    assert first == [0] * 500
    assert len(pairs) == 499


@given(TEXTS)
@settings(deadline=None)
def test_groups_are_what_verified_candidates_connect(texts: list[str]):
    banding = Banding.for_threshold(0.5, 16)
    folded = fold(pa.array(texts, pa.string()))
    keys = band_keys(folded, 3, banding)
    parent = list(range(len(texts)))
    for a, b in combinations(range(len(texts)), 2):
        if (keys[:, a] == keys[:, b]).any() and jaccard(texts[a], texts[b]) >= 0.5:
            parent = [parent[a] if p == parent[b] else p for p in parent]
    pairs, similarity, first = near(texts, jaccard=0.5, permutations=16)
    assert first == [parent.index(p) for p in parent]
    assert similarity == [jaccard(texts[a], texts[b]) for a, b in pairs]
    assert len(pairs) == sum(i != f for i, f in enumerate(first))  # a forest of uniting pairs


@given(TEXTS)
@settings(deadline=None)
def test_a_set_holds_every_shingle_of_its_text_once_in_order(texts: list[str]):
    hashes, ends = shingle_sets(fold(pa.array(texts, pa.string())), 3)
    sets = [hashes[a:b].tolist() for a, b in pairwise(ends)]
    assert [len(found) for found in sets] == [len(shingles(text, 3)) for text in texts]
    assert all(found == sorted(set(found)) for found in sets)


def real_texts(count: int) -> list[str]:
    path = DATA / "deepscaler" / "train.jsonl.gz"
    if not path.exists():
        pytest.skip("needs ../shared/data/deepscaler/train.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        return [json.loads(line)["problem"] for line, _ in zip(lines, range(count), strict=False)]


def sketched(folded: Folded, text: int, size: int, permutations: int) -> MinHash:
    """datasketch's own MinHash over the 32-bit hashes of our shingles."""
    room = int(np.diff(folded.ends).max(initial=0)) + 2
    hashes = np.empty(room, np.uint64)
    begin, end = folded.ends[text], folded.ends[text + 1]
    count = minhash._shingles(folded.data, begin, end, size, hashes)
    sketch = MinHash(num_perm=permutations, scheme="affine32", hashfunc=int)
    if count:
        sketch.update_batch((hashes[:count] >> np.uint64(32)).tolist())
    return sketch


def test_signatures_and_candidates_of_real_prompts_are_those_of_datasketch():
    texts = [*real_texts(3000), "", "x y"]
    folded, banding = fold(pa.array(texts)), Banding.for_threshold(0.7, 128)
    ours, keys = signatures(folded, 5, banding), band_keys(folded, 5, banding)
    lsh = MinHashLSH(threshold=0.7, num_perm=128, weights=WEIGHTS)
    theirs: set[tuple[int, int]] = set()
    for number in range(folded.count):
        sketch = sketched(folded, number, 5, 128)
        assert ours[number].tolist() == sketch.hashvalues.tolist()
        theirs.update((earlier, number) for earlier in lsh.query(sketch))  # type: ignore[misc]
        lsh.insert(number, sketch)
    candidates: set[tuple[int, int]] = set()
    for band in keys:
        members, edges = repeated(first_rows(band[:, None]), np.arange(len(band)))
        for a, b in pairwise(edges):
            candidates.update(combinations(members[a:b].tolist(), 2))
    assert candidates == theirs
    assert len(candidates) > 50  # the sample has repeats: nothing passes for want of candidates


def test_a_text_is_hashed_alike_whatever_stands_beside_it():
    banding = Banding.for_threshold(0.7, 8)
    alone = signatures(fold(pa.array(["b c d e"])), 3, banding)
    beside = signatures(fold(pa.array(["a a a", "b c d e", "d"])), 3, banding)
    assert beside[1].tolist() == alone[0].tolist()


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_most_pairs_above_the_threshold_are_found(threshold: float):
    chance = np.random.default_rng(0)
    texts = []
    for _ in range(150):
        words = chance.integers(0, 5000, 60).astype(str)
        texts.append(" ".join(words))
        texts.append(" ".join(words[: chance.integers(20, 60)]))
    true = {(i, i + 1) for i in range(0, 300, 2) if jaccard(texts[i], texts[i + 1]) >= threshold}
    found = set(near(texts, jaccard=threshold)[0])
    banding = Banding.for_threshold(threshold, 128)
    # At the threshold itself a pair is missed with probability (1 - t^r)^b; above it, less.
    expected_recall = 1 - (1 - threshold**banding.rows) ** banding.bands
    assert found <= true
    assert len(found) >= 0.9 * expected_recall * len(true)
