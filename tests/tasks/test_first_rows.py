import hashlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.duplicates.first_rows import digests, first_rows, repeated
from tasks.data.duplicates.folding import fold


def test_a_digest_is_the_blake2b_of_the_folded_text():
    expected = b"".join(hashlib.blake2b(t, digest_size=16).digest() for t in (b"find x", b""))
    assert digests(fold(pa.array(["Find  X", " "]))).tobytes() == expected
    assert digests(fold(pa.array([], pa.string()))).shape == (0, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2**63])), max_size=60))
def test_the_first_row_of_a_key_is_where_it_first_stands(keys: list[tuple[int, int]]):
    found = first_rows(np.array(keys, np.uint64).reshape(-1, 2))
    assert found.tolist() == [keys.index(key) for key in keys]


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 3))
def test_groups_hold_the_rows_that_share_a_key_and_no_others(keys: list[int], step: int):
    rows = np.arange(0, len(keys), step)
    members, edges = repeated(first_rows(np.array(keys, np.uint64)[:, None], rows), rows)
    groups = [members[a:b].tolist() for a, b in pairwise(edges)]
    looked_at = [keys[row] for row in rows]
    same = [[row for row in rows if keys[row] == key] for key in dict.fromkeys(looked_at)]
    assert groups == [rows for rows in same if len(rows) > 1]


def test_keys_that_fall_on_one_place_are_told_apart():
    # The place in the table depends on the first word alone.
    keys = np.array([[7, word] for word in range(500)] * 2, np.uint64)
    assert first_rows(keys).tolist() == list(range(500)) * 2
