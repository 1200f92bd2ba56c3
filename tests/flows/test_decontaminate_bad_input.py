"""`klear decontaminate` on files that are not what they should be: said or counted, never lost."""

import argparse
import json
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.tables import read_table
from flows.decontaminate_command import add_arguments, run
from tasks.overlaps import LONGEST_TEXT, Hit

ITEM = "How many ways are there to place nine rooks on a torus board safely?"
GOOD = json.dumps({"id": "good", "prompt": "What is 2+2?"}).encode()
LEAK = json.dumps({"id": "leak", "prompt": ITEM}).encode()


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps({"problem": ITEM}))
    return path


def command(source: Path, bench: Path, *options: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = [source, "--against", bench, "--out", source.parent / "out", *options]
    return run(parser.parse_args([str(a) for a in arguments]))


def jsonl(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def parquet(tmp_path: Path, column: pa.Array, **others: pa.Array) -> Path:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"prompt": column, **others}), path)
    return path


def rows_in(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_file_without_rows_is_said_to_hold_none(tmp_path: Path, bench: Path, capsys):
    for source in (jsonl(tmp_path), parquet(tmp_path, pa.array([], pa.string()))):
        assert command(source, bench) == 0
        assert "holds no rows" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all" * 9])
def test_a_parquet_file_that_is_none_is_an_error_by_its_name(
    tmp_path: Path, bench: Path, capsys, content: bytes
):
    source = tmp_path / "in.parquet"
    source.write_bytes(content)
    assert command(source, bench) == 1
    error = capsys.readouterr().err
    assert "in.parquet is damaged after row 0" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_parquet_file_torn_in_the_middle_is_an_error_and_leaves_nothing(
    tmp_path: Path, bench: Path, capsys
):
    source = parquet(tmp_path, pa.array([f"row {i} {'é' * (i % 90)}" for i in range(20_000)]))
    data = bytearray(source.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 4_000] = b"\xff" * 4_000
    source.write_bytes(data)
    assert command(source, bench) == 1
    assert "in.parquet is damaged after row" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1, 2]), "int64"),
        (pa.array([["a"], ["b"]]), "list<"),
        (pa.array([1.0, float("nan")]), "double"),
    ],
)
def test_a_column_that_holds_no_text_is_wrong_usage(
    tmp_path: Path, bench: Path, capsys, column: pa.Array, kind: str
):
    assert command(parquet(tmp_path, column), bench) == 2
    error = capsys.readouterr().err
    assert f"field 'prompt' holds {kind}" in error
    assert "choose one by --text-field" in error


def test_lines_that_are_no_utf8_no_json_or_no_text_are_counted_rejects(
    tmp_path: Path, bench: Path, capsys
):
    bad = [
        b'{"prompt": "caf\xe9"}',
        b"\x00\x01\x02",
        b'{"prompt": NaN}',
        b'{"prompt": null}',
        b'{"prompt": ["a"]}',
        b'{"prompt": {}}',
        b"17",
        b"[" * 100_000,
    ]
    source = jsonl(tmp_path, GOOD, *bad, LEAK, b"  ", b"{ }")
    assert command(source, bench) == 0
    out = tmp_path / "out"
    assert rows_in(out / "kept.jsonl") == [json.loads(GOOD)]
    reasons = [row["reason"] for row in rows_in(out / "rejected.jsonl")]
    assert len(reasons) == len(bad) + 2
    assert [r.split(":")[0] for r in reasons[: len(bad)]] == [f"line {n}" for n in range(2, 10)]
    assert reasons[-1] == "line 12: no field 'prompt'"
    assert "9 of the rejected are malformed" in capsys.readouterr().out


def test_parquet_text_that_is_no_utf8_or_missing_is_a_counted_reject(
    tmp_path: Path, bench: Path, capsys
):
    bytes_ = pa.array([b"fine", b"caf\xe9", None, ITEM.encode(), b"\xed\xa0\x80"], pa.binary())
    as_text = pa.Array.from_buffers(pa.string(), 5, bytes_.buffers())
    for column in (bytes_, as_text):
        assert command(parquet(tmp_path, column), bench) == 0
        kept = pq.read_table(tmp_path / "out/kept.parquet").column(0).cast(pa.binary())
        rejected = pq.read_table(tmp_path / "out/rejected.parquet")
        assert kept.to_pylist() == [b"fine"]
        reasons = rejected.column("reason").to_pylist()
        assert reasons[0] == "row 2: field 'prompt' is not UTF-8"
        assert reasons[1] == "row 3: field 'prompt' is NoneType, not text"
        assert reasons[3] == "row 5: field 'prompt' is not UTF-8"
        assert "3 of the rejected are malformed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.large_binary(), pa.dictionary(pa.int8(), pa.string())],
)
def test_text_of_every_arrow_type_is_read(tmp_path: Path, bench: Path, kind: pa.DataType):
    column = pa.array(["fine", ITEM, None])
    is_dictionary = pa.types.is_dictionary(kind)
    column = column.dictionary_encode().cast(kind) if is_dictionary else column.cast(kind)
    assert command(parquet(tmp_path, column), bench) == 0
    assert pq.read_metadata(tmp_path / "out/kept.parquet").num_rows == 1
    (hit,) = read_table(tmp_path / "out/hits.parquet", Hit)
    assert hit.row == ITEM


def test_a_column_of_nulls_and_ids_of_any_kind_are_read(tmp_path: Path, bench: Path):
    assert command(parquet(tmp_path, pa.nulls(3)), bench) == 0
    assert len(rows_in(tmp_path / "out/rejected.parquet")) == 3
    ids = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    for column in (ids, pa.array([7]), pa.array([[1]]), pa.array([float("nan")])):
        assert command(parquet(tmp_path, pa.array([ITEM]), id=column), bench) == 0
        assert len(list(read_table(tmp_path / "out/hits.parquet", Hit))) == 1


def test_rows_that_repeat_an_id_are_decided_one_by_one_and_said(
    tmp_path: Path, bench: Path, capsys
):
    rows = [{"id": 1, "prompt": "a"}, {"id": "1", "prompt": ITEM}, {"prompt": ITEM}]
    source = jsonl(tmp_path, *(json.dumps(row).encode() for row in rows))
    assert command(source, bench) == 0
    assert "1 rows repeat an id" in capsys.readouterr().out
    assert rows_in(tmp_path / "out/kept.jsonl") == rows[:1]
    hits = list(read_table(tmp_path / "out/hits.parquet", Hit))
    assert [(h.row_number, h.row_id) for h in hits] == [(2, "1"), (3, "3")]


def test_items_that_repeat_an_id_are_told_apart(tmp_path: Path):
    bench = tmp_path / "bench.jsonl"
    other = "Nine knights stand on a small board, so how do they move?"
    items = [{"id": "x", "problem": ITEM}, {"id": "x", "problem": other}]
    bench.write_text("\n".join(map(json.dumps, items)))
    assert command(jsonl(tmp_path, json.dumps({"prompt": other}).encode()), bench) == 0
    (hit,) = read_table(tmp_path / "out/hits.parquet", Hit)
    assert hit.item_id == "x (row 2)"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_row_of_50_megabytes_passes_in_bounded_memory(tmp_path: Path, bench: Path, suffix: str):
    huge = "x y z " * (50_000_000 // 6) + ITEM
    if suffix == "jsonl":
        source = jsonl(tmp_path, GOOD, json.dumps({"prompt": huge}).encode(), GOOD)
    else:
        source = parquet(tmp_path, pa.array(["a", huge, "b"]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert command(source, bench) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700 << 10  # KiB
    assert len(rows_in(tmp_path / f"out/kept.{suffix}")) == 2
    (hit,) = read_table(tmp_path / "out/hits.parquet", Hit)
    assert hit.ngram == "how many ways are there to place nine rooks"
    assert len(hit.row) == LONGEST_TEXT


@pytest.mark.parametrize("content", [b'{"problem": "caf\xe9"}', b"[1]", b'{"problem": "torn'])
def test_a_benchmark_that_cannot_be_read_is_an_error(
    tmp_path: Path, bench: Path, capsys, content: bytes
):
    bench.write_bytes(content)
    assert command(jsonl(tmp_path, GOOD), bench) == 1
    assert "bench.jsonl line 1" in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, float("nan"), 3, ["a"]])
def test_an_item_without_text_is_wrong_usage(tmp_path: Path, bench: Path, capsys, value: object):
    bench.write_text(json.dumps({"problem": value}))
    assert command(jsonl(tmp_path, GOOD), bench) == 2
    assert "bench.jsonl row 1 has no text in" in capsys.readouterr().err


def test_a_benchmark_parquet_of_other_bytes_is_an_error(tmp_path: Path, capsys):
    raw = pa.array([b"fine", b"caf\xe9"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    pq.write_table(pa.table({"problem": text}), tmp_path / "bench.parquet")
    assert command(jsonl(tmp_path, GOOD), tmp_path / "bench.parquet") == 1
    assert "bench.parquet" in capsys.readouterr().err


def test_an_item_that_is_empty_can_match_nothing_and_is_counted(
    tmp_path: Path, bench: Path, capsys
):
    bench.write_text(json.dumps({"problem": ""}))
    assert command(jsonl(tmp_path, GOOD), bench) == 0
    assert "1 items hold no words" in capsys.readouterr().out
