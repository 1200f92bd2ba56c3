"""Data files: every row with its place, bad rows named, damaged files refused."""

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klear.configs.settings.explain import ConfigError
from klear.eval.records import Rejected, row_files, tables
from klear.eval.records.row_files import cuts, find_files, read_rows
from klear.eval.records.tables import ArrowWriter, Lookup, read_table, write_table

ROWS = [{"a": 1}, {"a": "zwei"}, {"a": [3]}]
LINES = "".join(json.dumps(r) + "\n" for r in ROWS).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl", LINES),
        ("r.jsonl.gz", gzip.compress(LINES, mtime=0)),
        ("r.json", json.dumps(ROWS, indent=1).encode()),
        ("r.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
        ("lines.json", LINES),
        ("data.json", json.dumps({"version": "1", "data": ROWS}, indent=1).encode()),
    ],
)
def test_every_json_format_gives_the_same_rows(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    rows = list(read_rows(tmp_path / name))
    assert [r.value for r in rows] == ROWS
    assert [r.number for r in rows] == [1, 2, 3]


def test_a_json_file_may_be_one_row_of_several_lines(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(ROWS[2], indent=2))
    assert [row.value for row in read_rows(tmp_path / "r.json")] == [ROWS[2]]


def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path):
    (tmp_path / "r.csv").write_text("problem,answer,answer\nFind,7,8\n")
    with pytest.raises(ConfigError, match="two columns are called answer"):
        list(read_rows(tmp_path / "r.csv"))


@pytest.mark.parametrize("size", [1, 7, 30, 10_000])
@pytest.mark.parametrize("name", ["r.jsonl", "r.parquet"])
def test_the_shares_of_a_file_are_its_rows_each_with_its_number(tmp_path, monkeypatch, name, size):
    """Lines that are bad, empty, longer than a share or than what is read at once; no last
    newline. Row groups of three."""
    monkeypatch.setattr(row_files, "CHUNK", 16)
    path = tmp_path / name
    if path.suffix == ".jsonl":
        path.write_bytes(b"\xef\xbb\xbf" + LINES + b"\n\n{bad\n" + LINES * 3 + b'{"a": 9}')
    else:
        rows = pa.Table.from_pylist([{"a": i} for i in range(10)])
        pq.write_table(rows, path, row_group_size=3)
    shares = cuts(path, size)
    complete = list(read_rows(path))
    assert [row for share in shares for row in read_rows(path, cut=share)] == complete
    assert (len(shares) == 1) == (size == 10_000)
    assert all(any(read_rows(path, cut=share)) for share in shares if path.suffix != ".jsonl")


def test_bad_lines_are_rows_with_an_error_and_odd_numbers_are_read(tmp_path):
    bad = b'{"a": 1\n[1, 2]\n"text"\n\xff\xfe\n{"a": "\xff"}\n' + b"[" * 100_000 + b"\n"
    odd = b'{"a": NaN, "b": 123456789012345678901234567890}\n'
    (tmp_path / "r.jsonl").write_bytes(bad + b"\n   \n" + LINES + odd)
    rows = list(read_rows(tmp_path / "r.jsonl"))
    assert [r.number for r in rows if r.error] == [1, 2, 3, 4, 5, 6]
    *values, odd_row = [r.value for r in rows if not r.error]
    assert values == ROWS
    assert odd_row["a"] != odd_row["a"]
    assert odd_row["b"] == 123456789012345678901234567890
    assert "must be a JSON object, this is a list" in rows[1].error
    assert rows[0].raw == '{"a": 1\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl.gz", gzip.compress(LINES * 500, mtime=0)[:-20]),
        ("r.jsonl.gz", b"no gzip at all"),
        ("r.json", b'\xef\xbb\xbf [{"a": 1}, {"a"'),
        ("r.json", b"[1] 2"),
        ("r.json", b'["\xff"]'),
        ("r.json", b"[" * 1_000_000),
        ("r.parquet", b"PAR1 no parquet PAR1"),
        ("r.csv", b'problem,answer\n1+1?,"The answer is 4'),
        ("r.tsv", b'problem\tanswer\n"Let x\t5\nand y" be\t7\n'),  # a quote is no letter
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged after row .*fetch the file again"):
        list(read_rows(tmp_path / name))


def test_globs_are_sorted_and_give_each_file_once_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "data [v2]"
    folder.mkdir()
    for name in ("b.jsonl", "a.jsonl", "c.jsonl.gz"):
        (folder / name).write_bytes(LINES)
    files = find_files(["*.jsonl", "a.*", "c.jsonl.gz"], folder, "files")
    assert [f.name for f in files] == ["a.jsonl", "b.jsonl", "c.jsonl.gz"]
    assert next(read_rows(files[0], tmp_path)).file == "data [v2]/a.jsonl"
    (folder / "set[ab].jsonl").write_bytes(LINES)
    (folder / "seta.jsonl").write_bytes(LINES)
    assert find_files(["set[ab].jsonl"], folder, "files") == [folder / "set[ab].jsonl"]
    assert next(read_rows(files[0])).file == "a.jsonl"


def test_a_missing_file_and_an_unknown_format_are_named_with_the_setting(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"source 'x', files: no file nothing\*\.jsonl"):
        find_files(["nothing*.jsonl"], tmp_path, "source 'x', files")
    (tmp_path / "table.xls").write_text("a,b\n")
    with pytest.raises(ConfigError, match=r"table\.xls is none of \.jsonl"):
        find_files(["table.xls"], tmp_path, "files")


def test_an_array_that_is_too_large_is_refused_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "LARGEST_ARRAY", 2000)
    (tmp_path / "r.json").write_text(json.dumps([7] * 2000))
    with pytest.raises(ConfigError, match="an array may have 0 MiB; write one row a line"):
        list(read_rows(tmp_path / "r.json"))


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
        meta = pq.read_metadata(path)
        group_sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        assert group_sizes == plain_groups(sizes, rows_, bytes_)
        assert pq.read_table(path).equals(table)


def test_a_lookup_finds_every_row_in_any_order_and_holds_the_last_row_groups(tmp_path, monkeypatch):
    """3,000 rows in three row groups; the last repeats the first one's id. Before: none."""
    write_table(tmp_path / "t.parquet", Rejected, [])
    assert pq.read_schema(tmp_path / "t.parquet").names == list(Rejected.model_fields)
    assert list(read_table(tmp_path / "t.parquet", Rejected)) == []
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 1024)
    monkeypatch.setattr(tables, "GROUPS_IN_MEMORY", 1)
    written = [Rejected(id=str(i), reason="why", row="x" * 10) for i in range(2999)]
    written.append(Rejected(id="0", reason="again", row="{}"))
    write_table(tmp_path / "t.parquet", Rejected, written)
    read, to_records = [], tables.to_records
    monkeypatch.setattr(tables, "to_records", lambda *a: read.append(1) or to_records(*a))
    lookup = Lookup(tmp_path / "t.parquet", Rejected)
    for number in (5, 6, 1500, 1501, 7):
        assert lookup.get(str(number)) == written[number]
    assert len(read) == 3
    wanted = random.Random(0).sample(written[:-1], 50)
    assert [lookup.get(row.id) for row in wanted] == wanted
    assert lookup.get("0") == written[0]
    assert lookup.get("nobody") is None
