"""Reading data files: every row with its place, bad rows named, damaged files refused."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.explain import ConfigError
from eval import row_files
from eval.row_files import array_values, find_files, read_rows

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


def test_parquet_rows_are_streamed_as_objects(tmp_path):
    rows = [{"n": i, "s": {"x": [i]}} for i in range(1000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet", row_group_size=300)
    read = list(read_rows(tmp_path / "r.parquet"))
    assert [r.value for r in read] == rows
    assert read[-1].number == 1000


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
    assert value
    assert value["a"] != value["a"]
    assert value["b"] == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.jsonl.gz", gzip.compress(LINES * 500, mtime=0)[:-20]),
        ("r.jsonl.gz", b"no gzip at all"),
        ("r.json", b'[{"a": 1}, {"a"'),
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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


class OneByteAtATime(io.BytesIO):
    """The worst stream: every read ends in the middle of something."""

    def read(self, size=-1, /):
        return super().read(1)


def values(data: bytes, largest: int = 1 << 20) -> list:
    return list(array_values(io.BytesIO(data), largest))


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1]))
def test_the_elements_are_those_of_the_json_parser_however_the_stream_is_cut(elements, indent):
    data = json.dumps(elements, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if b"\xed" in data:  # lone surrogates are no UTF-8
        return
    assert list(array_values(OneByteAtATime(data), 1 << 20)) == elements
    assert values(b"\xef\xbb\xbf  " + data + b" \n") == elements


def test_only_the_element_at_hand_is_held_however_long(monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK", 64)
    long = [{"a": "x" * 1000}, 12345678901234567890, "y" * 99]  # many chunks each
    stream = io.BytesIO(json.dumps([*long, *["0123456789"] * 10_000]).encode())
    elements = array_values(stream, 1 << 20)
    assert [next(elements) for _ in range(4)] == [*long, "0123456789"]
    assert stream.tell() <= 1000 + 99 + 50 * 64


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "'\\[' expected, not 'the end'"),
        (b"[1, 2", "',\\]' expected, not 'the end'"),
        (b"[1 2]", "',\\]' expected, not '2'"),
        (b"[1, 2] 3", "'3' after the end of the array"),
        (b'[{"a": }]', "Expecting value"),
        (b'["\xff"]', "can't decode byte 0xff"),
        (b'["' + b"x" * 5000, "an element of over 1,000 characters"),
    ],
)
def test_what_is_no_array_is_refused_with_a_reason(data, reason):
    with pytest.raises(ValueError, match=reason):
        values(data, largest=1000)
