import json

import pyarrow.parquet as pq

from eval.records import Problem, Rejected
from eval.tables import read_table, write_table
from tasks.data.split_rows import split_rows


def problems(count: int) -> list[Problem]:
    return [
        Problem(domain="math", prompt=f"{i} + 1 = ?", answer=str(i + 1), source="ab"[i % 2])
        for i in range(count)
    ]


def test_rows_with_a_reason_go_and_the_others_stay_as_they_were(tmp_path):
    rows = problems(3000)
    write_table(tmp_path / "in.parquet", Problem, rows)
    reasons = {0: "first", 1500: "middle", 2999: "last"}

    counts = split_rows(tmp_path / "in.parquet", reasons, tmp_path)

    kept = list(read_table(tmp_path / "kept.parquet", Problem))
    rejected = list(read_table(tmp_path / "rejected.parquet", Rejected))
    assert kept == [row for i, row in enumerate(rows) if i not in reasons]
    assert [r.reason for r in rejected] == ["first", "middle", "last"]
    assert [json.loads(r.row)["prompt"] for r in rejected] == [rows[i].prompt for i in reasons]
    assert counts.metrics() == {
        "kept": 2997.0,
        "rejected": 3.0,
        "kept/a": 1498.0,
        "kept/b": 1499.0,
        "rejected/a": 2.0,
        "rejected/b": 1.0,
    }


def test_the_bytes_do_not_depend_on_the_row_groups_of_the_input(tmp_path):
    def split_bytes(row_group_size: int) -> list[bytes]:
        out = tmp_path / str(row_group_size)
        out.mkdir()
        table = pq.read_table(tmp_path / "in.parquet")
        pq.write_table(table, out / "in.parquet", row_group_size=row_group_size)
        split_rows(out / "in.parquet", {7: "seven", 4200: "late"}, out)
        return [(out / name).read_bytes() for name in ("kept.parquet", "rejected.parquet")]

    write_table(tmp_path / "in.parquet", Problem, problems(9000))

    assert split_bytes(100) == split_bytes(4096) == split_bytes(10_000)
