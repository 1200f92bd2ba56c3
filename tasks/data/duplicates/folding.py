"""Normalised texts as one UTF-8 buffer: what exact and near-duplicate removal compare.

The rule is `eval.records.normalise_prompt` (NFKC, lower case, single spaces). Text beyond ASCII
goes through that very function; ASCII, where NFKC changes nothing, through a compiled loop that
gives the same bytes.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types

from eval.records import normalise_prompt
from tasks.data.compiled import compiled

_SPACE = np.uint8(32)
_FOLDED = np.array(
    [32 if c < 128 and chr(c).isspace() else c + 32 * (65 <= c <= 90) for c in range(256)],
    np.uint8,
)
_U8, _I8 = types.uint8[::1], types.int64[::1]
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)


class Folded(NamedTuple):
    """Text i is `data[ends[i]:ends[i+1]]`: words with one space between them, none around."""

    data: np.ndarray
    """uint8, UTF-8."""
    ends: np.ndarray
    """int64 [N+1], from 0 where the texts were folded."""

    @property
    def count(self) -> int:
        return len(self.ends) - 1

    def take(self, rows: np.ndarray) -> "Folded":
        """The texts `rows`, in that order."""
        lengths = np.diff(self.ends)[rows]
        ends = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        data = np.empty(ends[-1], np.uint8)
        _copy(self.data, self.ends, np.asarray(rows, np.int64), data)
        return Folded(data, ends)


def unfolded(texts: pa.Array | pa.ChunkedArray) -> Folded:
    """Texts as they are; raises ValueError, with the number of the text, for a missing one."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.cast(pa.large_string()).combine_chunks()
    column = texts.cast(pa.large_string())
    if column.null_count:
        raise ValueError(f"text {column.is_null().to_pylist().index(True)} is missing (null)")
    return _buffer_of(column)


def fold(texts: pa.Array | pa.ChunkedArray) -> Folded:
    """Normalise texts; raises ValueError, with the number of the text, for a missing one."""
    source, starts = unfolded(texts)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    ascii_only = pc.call_function("string_is_ascii", [texts])
    if ascii_only.false_count:
        beyond = pc.call_function("invert", [ascii_only])
        slow = [normalise_prompt(text) for text in texts.filter(beyond).to_pylist()]
        normal = [texts.cast(pa.large_string()), beyond, pa.array(slow, pa.large_string())]
        source, starts = _buffer_of(pc.call_function("replace_with_mask", normal))
    folded = np.empty(starts[-1] - starts[0], np.uint8)
    ends = np.zeros(len(starts), np.int64)
    size = _fold(source, starts, _FOLDED, folded, ends)
    return Folded(folded[:size], ends)


def _buffer_of(column: pa.LargeStringArray) -> Folded:
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return Folded(np.frombuffer(data or b"", np.uint8), starts)


def concatenate(parts: list[Folded]) -> Folded:
    """The texts of all parts, in order."""
    before = np.cumsum([0] + [len(part.data) for part in parts])
    ends = [part.ends[1:] + start for part, start in zip(parts, before, strict=False)]
    return Folded(
        np.concatenate([np.zeros(0, np.uint8), *(part.data for part in parts)]),
        np.concatenate([np.zeros(1, np.int64), *ends]),
    )


@compiled(types.int64(_BYTES, _PLACES, _BYTES, _U8, _I8))
def _fold(source: Any, starts: Any, table: Any, folded: Any, ends: Any) -> Any:
    """Map bytes by `table` and write each run of spaces once; returns the bytes written.

    Text that is normalised already comes out as it went in, so that one loop does for both.
    """
    place = np.int64(0)
    for text in range(starts.size - 1):
        begin = place
        after_space = True
        for i in range(starts[text], starts[text + 1]):
            byte = table[source[i]]
            folded[place] = byte
            space = byte == _SPACE
            place += not (space and after_space)
            after_space = space
        if place > begin and after_space:
            place -= 1
        ends[text + 1] = place
    return place


@compiled(types.void(_BYTES, _PLACES, _PLACES, _U8))
def _copy(data: Any, ends: Any, rows: Any, copied: Any) -> Any:
    place = np.int64(0)
    for row in rows:
        for i in range(ends[row], ends[row + 1]):
            copied[place] = data[i]
            place += 1
