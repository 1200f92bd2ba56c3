"""What dedup needs of each prompt, computed part by part and kept on disk until it is published.

A part is some row groups of the table. Its `prompts.arrow` holds, in row order, `prompt` and `id`
(128-bit digests) and, for near-duplicates, `text` (the folded prompt) and the key of each band.
Memory holds one row group while a part is made; what is read back is mapped from disk.
"""

from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from klear.configs.settings.data import DedupSettings
from klear.tasks.data.split_rows import TablePart
from klear.tasks.data.text_columns import buffers, fold
from klear.tasks.data.words import query_words

DIGEST = pa.binary(16)
PROMPTS = "prompts.arrow"


def digests(texts: pa.Array) -> pa.Array:
    """BLAKE2b of every text in 128 bits: equal digests are equal texts. Among n texts two differ
    and collide with probability below n²/2¹²⁹: 10⁻²⁷ for a million."""
    data, starts, ends = buffers(texts)
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    found = [blake2b(data.data[start:end], digest_size=16).digest() for start, end in places]
    return pa.array(found, DIGEST)


def compute_part(part: TablePart, folder: Path, *, source: Path, settings: DedupSettings) -> None:
    """Write the file of a part; without `near` the digests alone."""

    def columns(table: pa.Table) -> pa.Table:
        text = fold(table["prompt"].combine_chunks(), query_words)
        found = {"prompt": digests(text), "id": digests(table["id"].combine_chunks())}
        if settings.near:  # loading its compiled code takes time that exact removal need not spend
            from klear.tasks.data.near_duplicates import band_keys

            keys = band_keys(text, settings.shingle, settings.jaccard, settings.permutations)
            found |= {"text": text, **{f"band {n}": pa.array(key) for n, key in enumerate(keys)}}
        return pa.table(found)

    with pq.ParquetFile(source) as file:
        schema = columns(file.schema_arrow.empty_table()).schema
        with pa.ipc.new_file(folder / PROMPTS, schema) as writer:
            for number in range(part.first, part.last):
                table = file.read_row_group(number, ["prompt", "id"], use_threads=False)
                writer.write_table(columns(table))
