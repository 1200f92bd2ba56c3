"""Tables of records: what is written is read again, in row groups that depend on the rows alone."""

import random
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from klear.eval import tables
from klear.eval.records import Rejected
from klear.eval.tables import ArrowWriter, Lookup, TableWriter, read_table, write_table


def rows(count: int, size: int = 10) -> list[Rejected]:
    return [Rejected(id=str(i), reason="why", row="x" * size) for i in range(count)]


def group_sizes(path) -> list[int]:
    meta = pq.read_metadata(path)
    return [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]


def plain_groups(sizes: list[int], most_rows: int, most_bytes: int) -> list[int]:
    """The rule, row by row: a group closes with the row that fills it."""
    groups, count, size = [], 0, 0
    for bytes_of_row in sizes:
        count, size = count + 1, size + bytes_of_row
        if count == most_rows or size >= most_bytes:
            groups, count, size = [*groups, count], 0, 0
    return [*groups, count] if count else groups


@given(
    st.lists(st.integers(0, 60), max_size=60),
    st.lists(st.integers(1, 60), max_size=5),
    st.integers(1, 9),
    st.integers(1, 100),
)
@settings(deadline=None)
def test_row_groups_depend_on_the_rows_and_not_on_how_they_arrive(sizes, cuts, rows_, bytes_):
    table = pa.table({"text": ["x" * size for size in sizes], "n": range(len(sizes))})
    edges = sorted({0, len(sizes), *(cut for cut in cuts if cut < len(sizes))})
    with (
        TemporaryDirectory() as folder,
        patch.multiple(tables, ROWS_PER_GROUP=rows_, BYTES_PER_GROUP=bytes_),
    ):
        path = Path(folder) / "t.parquet"
        with ArrowWriter(path, table.schema) as writer:
            for start, stop in pairwise(edges):
                writer.write(table.slice(start, stop - start))
        assert group_sizes(path) == plain_groups(sizes, rows_, bytes_)
        assert pq.read_table(path).equals(table)


def test_a_table_without_rows_has_its_columns(tmp_path):
    with TableWriter(tmp_path / "t.parquet", Rejected):
        pass

    assert pq.read_schema(tmp_path / "t.parquet").names == list(Rejected.model_fields)
    assert list(read_table(tmp_path / "t.parquet", Rejected)) == []


def test_a_lookup_finds_every_row_in_any_order_and_holds_the_last_row_groups(tmp_path, monkeypatch):
    """3,000 rows in three row groups; the last repeats the first one's id."""
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 1024)
    monkeypatch.setattr(tables, "GROUPS_IN_MEMORY", 1)
    written = [*rows(2999), Rejected(id="0", reason="again", row="{}")]
    write_table(tmp_path / "t.parquet", Rejected, written)
    read, whole = [], tables.to_records
    monkeypatch.setattr(tables, "to_records", lambda *a: read.append(1) or whole(*a))
    lookup = Lookup(tmp_path / "t.parquet", Rejected)

    for number in (5, 6, 1500, 1501, 7):
        assert lookup.get(str(number)) == written[number]
    assert len(read) == 3

    asked = random.Random(0).sample(written[:-1], 50)
    assert [lookup.get(row.id) for row in asked] == asked
    assert lookup.get("0") == written[0]
    assert lookup.get("nobody") is None
