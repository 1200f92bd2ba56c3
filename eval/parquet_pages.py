"""How long a parquet value may be, from its dictionary: a small file can repeat one text for ever.

A column may keep its texts once, in a dictionary page, and name them by number. Then neither the
size of the file nor the sizes in its footer tell how much memory a batch of rows takes.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

LARGEST_BATCH = 256 << 20
"""Bytes that a batch may decode to when every row is the longest text of its dictionaries."""
_HEADER_BYTES = 32
_INTEGER = 0x15  # of thrift's compact protocol: the next field, an i32


def rows_of_longest(path: Path, metadata: pq.FileMetaData) -> int:
    """How many rows fit in `LARGEST_BATCH`, whatever they are; at least one."""
    longest = 1
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            size = 0
            for place in _dictionaries(metadata.row_group(group)):
                file.seek(place)
                size += _unpacked_size(file.read(_HEADER_BYTES))
            longest = max(longest, size)
    return max(1, LARGEST_BATCH // longest)


def _dictionaries(group: pq.RowGroupMetaData) -> Iterator[int]:
    """Where the dictionary pages of a row group begin."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            yield chunk.dictionary_page_offset


def _unpacked_size(header: bytes) -> int:
    """The second field of a page header, `uncompressed_page_size`; 0 when it is none."""
    place, numbers = 0, []
    while len(numbers) < 2 and place < len(header) and header[place] == _INTEGER:
        place, shift, value = place + 1, 0, 0
        while place < len(header):
            value |= (header[place] & 0x7F) << shift
            shift += 7
            place += 1
            if header[place - 1] < 0x80:
                break
        numbers.append((value >> 1) ^ -(value & 1))  # zigzag
    return max(numbers[1], 0) if len(numbers) == 2 else 0
