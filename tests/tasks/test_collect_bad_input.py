"""Whatever a file holds: a clear error or a counted reject, and no row is lost."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.settings.sources import CollectSettings, Source
from eval import row_files
from eval.records import Problem, Rejected
from eval.tables import read_table
from tasks.data.collect import collect

GOOD = b'{"problem": "1+1?", "answer": "2"}\n'
MIB = 1 << 20


def run(root: Path, *sources: Source) -> tuple[list[str], list[str], dict[str, float]]:
    """Prompts kept, reasons of rejection, metrics."""
    (root / "out").mkdir(parents=True)
    settings = CollectSettings(root=str(root), sources=sources)
    metrics = dict(collect.body(root / "out", settings=settings, seed=0))
    kept = [p.prompt for p in read_table(root / "out" / "kept.parquet", Problem)]
    rejected = [r.reason for r in read_table(root / "out" / "rejected.parquet", Rejected)]
    return kept, rejected, metrics


def source(*files: str, **fields) -> Source:
    return Source.model_validate({"name": "s", "files": files, **fields})


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD)
    (tmp_path / "r.json").write_bytes(b"\xef\xbb\xbf\n [" + GOOD + b"]")
    assert run(tmp_path, source("r.jsonl", "r.json"))[:2] == (["1+1?", "1+1?"], [])


def test_a_row_beyond_the_limit_is_a_reject_and_the_rest_of_its_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "LARGEST_ROW", 2 * MIB)
    big = {"problem": "p", "answer": "1", "more": "x" * (3 * MIB)}
    small = {"problem": "1+1?", "answer": "2", "more": ""}
    (tmp_path / "r.jsonl").write_bytes(json.dumps(big).encode() + b"\n" + GOOD)
    (tmp_path / "end.jsonl").write_bytes(GOOD + json.dumps(big).encode())
    pq.write_table(pa.Table.from_pylist([small, big, small]), tmp_path / "r.parquet")
    files = source("r.jsonl", "end.jsonl", "r.parquet", where={"more": ""})
    kept, rejected, _ = run(tmp_path, files)
    assert kept == ["1+1?"] * 4
    limit = "longer than 2 MiB, the most a row may have"
    assert rejected == [
        f"{place}: {limit}" for place in ("r.jsonl row 1", "end.jsonl row 2", "r.parquet row 2")
    ]


def test_text_that_is_not_utf_8_in_a_parquet_file_is_a_reject(tmp_path):
    texts = pa.array([b"1+1?", b"caf\xe9", b"2+2?"], pa.binary())
    prompts = pa.Array.from_buffers(pa.string(), 3, texts.buffers())
    table = pa.table({"problem": prompts, "answer": ["2", "2", "4"]})
    pq.write_table(table, tmp_path / "r.parquet")
    kept, rejected, _ = run(tmp_path, source("r.parquet"))
    assert kept == ["1+1?", "2+2?"]
    assert rejected[0].startswith("r.parquet row 2: cannot be read: 'utf-8' codec")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.jsonl", b"", "source 's' gives no problem: 0 rows"),
        ("r.json", b"[]", "source 's' gives no problem: 0 rows"),
        ("r.parquet", b"", r"r\.parquet is damaged after row 0"),
        ("r.jsonl.gz", gzip.compress(GOOD, mtime=0)[:-9], r"r\.jsonl\.gz is damaged after row"),
        ("r.json", b"[" + GOOD + b"] garbage", r"r\.json is damaged after row 0 \(Extra data"),
        ("r.json", b'["\xff"]', r"r\.json is damaged after row 0 .*can't decode"),
    ],
)
def test_an_empty_or_damaged_file_is_an_error_that_names_it(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, source(name))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_wrong_column_is_an_error_that_lists_those_there_are(tmp_path, suffix):
    rows = [{"question": "1+1?", "answer": "2"}] * 3
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    else:
        (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(ValueError, match="no problem: 3 rows are rejected") as error:
        run(tmp_path, source(f"r.{suffix}"))
    assert f'r.{suffix} row 1: field problem: missing; the row: {{"question": "1+1?"' in str(
        error.value
    )


def test_rows_that_where_leaves_out_are_counted(tmp_path):
    rows = [{"problem": f"p{d}", "answer": "1", "domain": d} for d in ("math", "code", "", None)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    kept, rejected, metrics = run(tmp_path, source("r.jsonl", where={"domain": ["math", ""]}))
    assert (kept, rejected) == (["pmath", "p", "pNone"], [])
    assert metrics["left_out"] == metrics["left_out/s"] == 1
