import random

import pytest

from eval import table_lookup, tables
from eval.records import Rejected
from eval.table_lookup import Lookup
from eval.tables import write_table


@pytest.fixture
def rows(tmp_path, monkeypatch) -> list[Rejected]:
    """3,000 rows in three row groups; the last repeats the first one's id."""
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 1024)
    rows = [Rejected(id=f"id{i}", reason=str(i), row="{}") for i in range(2999)]
    rows.append(Rejected(id="id0", reason="again", row="{}"))
    write_table(tmp_path / "t.parquet", Rejected, rows)
    return rows


def test_every_row_is_found_in_any_order(tmp_path, rows):
    lookup = Lookup(tmp_path / "t.parquet", Rejected)
    asked = random.Random(0).sample(rows[:-1], 50)

    assert [lookup.get(row.id) for row in asked] == asked
    assert len(lookup) == 2999


def test_the_first_of_two_rows_with_one_id_counts(tmp_path, rows):
    assert Lookup(tmp_path / "t.parquet", Rejected).get("id0") == rows[0]


def test_an_unknown_id_is_none(tmp_path, rows):
    assert Lookup(tmp_path / "t.parquet", Rejected).get("nobody") is None


def test_only_the_last_row_groups_stay_in_memory(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(table_lookup, "GROUPS_IN_MEMORY", 1)
    read: list[int] = []
    lookup = Lookup(tmp_path / "t.parquet", Rejected)
    whole = lookup._file.read_row_group
    monkeypatch.setattr(
        lookup._file, "read_row_group", lambda i, **kw: read.append(i) or whole(i, **kw)
    )

    for number in (5, 6, 1500, 1501, 7):
        lookup.get(f"id{number}")

    assert read == [0, 1, 0]
