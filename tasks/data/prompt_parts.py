"""What dedup needs of each prompt, computed part by part and kept on disk until it is published.

A part is some row groups of the table. Its `prompts.arrow` holds, in row order, `prompt` and `id`
(128-bit digests) and, for near-duplicates, `text` (the folded prompt) and the key of each band.
Memory holds one row group while a part is made; what is read back is mapped from disk.
"""

from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.split_rows import TablePart
from tasks.data.text_columns import buffers, fold
from tasks.data.words import query_words

if TYPE_CHECKING:  # loading its compiled code takes time that exact removal need not spend
    from tasks.data.near_duplicates import Banding

DIGEST = pa.binary(16)
PROMPTS = "prompts.arrow"


def digests(texts: pa.Array) -> pa.Array:
    """BLAKE2b of every text in 128 bits: equal digests are equal texts.

    Among n texts two differ and collide with probability below n²/2¹²⁹: 10⁻²⁷ for a million.
    """
    data, starts, ends = buffers(texts)
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    found = [blake2b(data.data[start:end], digest_size=16).digest() for start, end in places]
    return pa.array(found, DIGEST)


def compute_part(
    part: TablePart, folder: Path, *, source: Path, shingle: int, banding: "Banding | None"
) -> None:
    """Write the file of a part; without `banding` the digests alone."""
    fields = [("prompt", DIGEST), ("id", DIGEST)]
    if banding:
        bands = [(f"band {number}", pa.uint64()) for number in range(banding.bands)]
        fields += [("text", pa.large_binary()), *bands]
    schema = pa.schema(fields)
    with pq.ParquetFile(source) as file, pa.ipc.new_file(folder / PROMPTS, schema) as writer:
        for number in range(part.first, part.last):
            table = file.read_row_group(number, columns=["prompt", "id"], use_threads=False)
            try:
                text = fold(table["prompt"].combine_chunks(), query_words)
            except ValueError as error:
                raise ValueError(f"{source}, row group {number}, prompt: {error}") from error
            columns = [digests(text), digests(table["id"].combine_chunks())]
            if banding:
                from tasks.data.near_duplicates import band_keys

                columns += [text, *map(pa.array, band_keys(text, shingle, banding))]
            writer.write_table(pa.table(columns, schema=schema))
