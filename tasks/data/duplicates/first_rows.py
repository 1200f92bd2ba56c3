"""The first row of every key: one open-addressing table, linear in the rows, nothing per row."""

from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from numba import types

from tasks.data.compiled import compiled
from tasks.data.duplicates.folding import Folded

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_KEYS = types.Array(types.uint64, 2, "C", readonly=True)
_ROWS = types.Array(types.int64, 1, "C", readonly=True)


def digests(texts: Folded) -> np.ndarray:
    """BLAKE2b of every text in 128 bits, [N, 2] uint64: equal digests are equal texts.

    Among n texts two differ and collide with probability below n²/2¹²⁹: 10⁻²⁷ for a million.
    """
    view = texts.data.data
    parts = [blake2b(view[a:b], digest_size=16).digest() for a, b in pairwise(texts.ends.tolist())]
    return np.frombuffer(b"".join(parts), "<u8").reshape(-1, 2)


def first_rows(keys: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """For every one of `rows` (all, if not given) the first of them with the same key.

    `keys` is [N, W] uint64 with N below 2³¹; `rows` is int64 [R], and so is the result, which
    holds numbers of rows. Takes at most 16 bytes a row beyond the result and copies no key.
    """
    rows = np.arange(len(keys)) if rows is None else rows
    size = 1 << max(2 * len(rows) - 1, 1).bit_length()
    first = np.empty(len(rows), np.int64)
    _first_rows(keys, rows, np.full(size, -1, np.int32), first)
    return first


def repeated(first: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of `rows` that share their key with another, by `first_rows` of ascending `rows`.

    Group g is `members[edges[g]:edges[g+1]]`. Groups come by ascending first row, their members
    ascending.
    """
    later = np.flatnonzero(first != rows)
    places = np.concatenate([np.searchsorted(rows, np.unique(first[later])), later])
    places = places[np.argsort(first[places], kind="stable")]
    owner = first[places]
    edges = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1], [True]]))
    return rows[places], edges if len(places) else np.zeros(1, np.int64)


@compiled(types.void(_KEYS, _ROWS, types.int32[::1], types.int64[::1]))
def _first_rows(keys: Any, rows: Any, slots: Any, first: Any) -> Any:
    last = np.uint64(slots.size - 1)
    for i in range(rows.size):
        row = rows[i]
        hashed = keys[row, 0] * _MIX
        place = np.int64((hashed ^ (hashed >> _HALF)) & last)
        first[i] = row
        while slots[place] >= 0:
            earlier = rows[slots[place]]
            same = True
            for word in range(keys.shape[1]):
                if keys[row, word] != keys[earlier, word]:
                    same = False
            if same:
                first[i] = earlier
                break
            place = np.int64(np.uint64(place + 1) & last)
        if first[i] == row:
            slots[place] = i
