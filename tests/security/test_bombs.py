"""Small files that unfold to large ones: refused by name, in bounded memory and time."""

import base64
import gzip
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import output_of

from klear.eval.programs import formats as suite_packed
from klear.eval.programs.formats import unpack_tests
from klear.eval.records import row_files
from klear.eval.records.row_files import read_rows, rows_of_longest

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
READ = """
import resource, sys
sys.path.insert(0, {root!r})
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
from pathlib import Path
from klear.eval.records import row_files
row_files.FREE_UNPACKED = 256 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    rows = sum(1 for row in row_files.read_rows(Path({path!r})))
except ValueError as error:
    print(error)
else:
    print(rows, "rows")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def groups(path: Path) -> list[pq.RowGroupMetaData]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(i) for i in range(metadata.num_row_groups)]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules on a scale that tests can afford."""
    monkeypatch.setattr(row_files, "FREE_UNPACKED", MIB)
    monkeypatch.setattr(row_files, "LARGEST_ROW", 2 * MIB)


ROW = b'{"problem": "%s"}\n' % (b"0" * 1000)


@pytest.mark.parametrize("content", [b"\0" * (16 * MIB), ROW * 8192])
def test_a_gzip_that_unpacks_to_500_times_its_size_is_refused(
    tmp_path, small_limits, content, monkeypatch
) -> None:
    monkeypatch.setattr(row_files, "MOST_UNPACKED", 300)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(content, 9))
    with pytest.raises(ValueError, match=r"bomb.jsonl.gz is damaged after row .*over 300 times"):
        for _ in read_rows(path):
            pass


def test_a_gzip_of_ordinary_text_is_read_whatever_its_size(tmp_path, small_limits) -> None:
    rows = b"".join(b'{"problem": "%d + 1?"}\n' % i for i in range(100_000))
    assert len(rows) > 2 * row_files.FREE_UNPACKED
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(rows))
    assert sum(row.value is not None for row in read_rows(path)) == 100_000


def test_a_parquet_file_that_says_it_is_500_times_larger_is_refused(tmp_path, small_limits) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"problem": ["x" * (8 * MIB)]}), path, compression="zstd",
                   use_dictionary=False)  # fmt: skip
    with pytest.raises(ValueError, match=r"bomb.parquet is damaged after row 0 .*over 500 times"):
        list(read_rows(path))


def test_one_text_repeated_a_hundred_thousand_times_fills_no_memory(tmp_path: Path) -> None:
    """A dictionary page: some kilobytes on disk, 1.6 TB of rows, and 4 GB in a batch of 256."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * (16 * MIB)])
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"problem": text}), path, compression="zstd", store_schema=False,
                   dictionary_pagesize_limit=1 << 30)  # fmt: skip
    assert path.stat().st_size < MIB
    assert rows_of_longest(path, groups(path)) == 15
    script = READ.format(root=str(ROOT / ".package"), path=str(path))
    rows, megabytes = output_of(sys.executable, "-c", script).splitlines()
    assert "bomb.parquet is damaged after row " in rows
    assert "over 500 times its size" in rows
    assert int(megabytes) < 2_000


def test_an_ordinary_dictionary_makes_no_batch_smaller(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"source": ["a", "b"] * 5000, "n": range(10_000)}), path)
    assert rows_of_longest(path, groups(path)) > 256 * 10
    assert [row.number for row in read_rows(path)] == list(range(1, 10_001))


def test_packed_tests_that_unpack_to_too_much_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(suite_packed, "LARGEST_UNPACKED", MIB)
    bomb = base64.b64encode(zlib.compress(b"\0" * (64 * MIB))).decode()
    with pytest.raises(ValueError, match="over 1 MiB of tests"):
        unpack_tests(bomb)
