"""Reading data files: every row with its place, bad rows named, damaged files refused."""

import gzip
import json

import pytest

from klear.configs.settings.explain import ConfigError
from klear.eval import row_files
from klear.eval.row_files import find_files, read_rows

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
    ],
)
def test_every_json_format_gives_the_same_rows(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    rows = list(read_rows(tmp_path / name))
    assert [r.value for r in rows] == ROWS
    assert [r.number for r in rows] == [1, 2, 3]


def test_bad_lines_are_rows_with_an_error_and_do_not_end_the_file(tmp_path):
    bad = b'{"a": 1\n[1, 2]\n"text"\n\xff\xfe\n{"a": "\xff"}\n' + b"[" * 100_000 + b"\n"
    (tmp_path / "r.jsonl").write_bytes(bad + b"\n   \n" + LINES)
    rows = list(read_rows(tmp_path / "r.jsonl"))
    assert [r.number for r in rows if r.error] == [1, 2, 3, 4, 5, 6]
    assert [r.value for r in rows if not r.error] == ROWS
    assert "must be a JSON object, this is a list" in rows[1].error
    assert rows[0].raw == '{"a": 1\n'


def test_nan_and_integers_beyond_64_bits_are_read(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"a": NaN, "b": 123456789012345678901234567890}\n')
    value = next(read_rows(tmp_path / "r.jsonl")).value
    assert value["a"] != value["a"]
    assert value["b"] == 123456789012345678901234567890


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
    found = find_files(["*.jsonl", "a.*", "c.jsonl.gz"], folder, "files")
    assert [f.name for f in found] == ["a.jsonl", "b.jsonl", "c.jsonl.gz"]
    assert next(read_rows(found[0], tmp_path)).file == "data [v2]/a.jsonl"
    assert next(read_rows(found[0])).file == "a.jsonl"


def test_a_missing_file_and_an_unknown_format_are_named_with_the_setting(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"source 'x', files: no file nothing\*\.jsonl"):
        find_files(["nothing*.jsonl"], tmp_path, "source 'x', files")
    (tmp_path / "table.csv").write_text("a,b\n")
    with pytest.raises(ConfigError, match=r"table\.csv is none of \.jsonl"):
        find_files(["table.csv"], tmp_path, "files")


def test_an_array_that_is_too_large_is_refused_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "LARGEST_ARRAY", 2000)
    (tmp_path / "r.json").write_text(json.dumps([7] * 2000))
    with pytest.raises(ConfigError, match="an array may have 0 MiB; write one row a line"):
        list(read_rows(tmp_path / "r.json"))
