from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import text_batches as module
from tasks.text_batches import text_batches


def batches(path: Path, **chosen) -> list[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        return list(text_batches(file, **chosen))


@pytest.mark.parametrize("group", [1, 7, 1000])
def test_every_row_comes_once_and_in_order(tmp_path: Path, group: int, monkeypatch):
    monkeypatch.setattr(module, "BYTES", 400)
    table = pa.table({"text": [f"row {i}" * (i % 9) for i in range(100)], "n": range(100)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=group)
    found = batches(tmp_path / "t.parquet")
    assert pa.Table.from_batches(found).equals(table)
    assert 1 < len(found) < 100


def test_small_row_groups_are_read_together_and_long_rows_apart(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(module, "BYTES", 10_000)
    short = pa.table({"text": [f"{i:04}" for i in range(100)]})
    pq.write_table(short, tmp_path / "short.parquet", row_group_size=5)
    assert len(batches(tmp_path / "short.parquet")) == 1
    long = pa.table({"text": [f"{i}" * 6_000 for i in range(9)]})
    pq.write_table(long, tmp_path / "long.parquet", use_dictionary=False)
    assert [b.num_rows for b in batches(tmp_path / "long.parquet")] == [1] * 9


def test_only_the_columns_and_row_groups_asked_for(tmp_path: Path):
    table = pa.table({"text": ["a", "b", "c", "d"], "other": [1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    (batch,) = batches(tmp_path / "t.parquet", columns=["text"], groups=range(1, 3))
    assert batch.to_pydict() == {"text": ["b", "c"]}
