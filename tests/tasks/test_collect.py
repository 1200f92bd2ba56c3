"""Collect: every kind of source becomes Problems, every bad row a reject with its place.

Damaged files are in test_collect_bad_input, kills in test_collect_resume, the hub in test_hub.
"""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineSettings
from configs.settings.sources import CollectSettings, Source
from eval.records import Problem, Rejected
from eval.tables import read_table
from tasks.answers.distill import recorded_files
from tasks.data.collect import collect
from tasks.stage.run import Run
from tasks.store.store import Store

TESTS = {"inputs": ["1\n", "2\n"], "outputs": ["1\n", "4\n"]}


def run(
    out: Path, *sources: Source, root: Path = Path(), seed: int = 0
) -> tuple[list[Problem], list[Rejected], dict[str, float]]:
    out.mkdir(parents=True, exist_ok=True)
    settings = CollectSettings(root=str(root), sources=sources)
    metrics = dict(collect.body(out, settings=settings, seed=seed))
    kept = list(read_table(out / "kept.parquet", Problem))
    rejected = list(read_table(out / "rejected.parquet", Rejected))
    assert (len(kept), len(rejected)) == (metrics["kept"], metrics["rejected"])
    return kept, rejected, metrics


def jsonl(path: Path, *rows: dict | str) -> Path:
    lines = [r if isinstance(r, str) else json.dumps(r) for r in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def countdown(**fields) -> Source:
    return Source(**{"name": "cd", "kind": "generated", "family": "countdown", **fields})


# ---------------------------------------------------------------- files


def test_rows_of_several_files_and_formats_become_problems_in_order(tmp_path):
    jsonl(tmp_path / "d" / "a.jsonl", {"problem": "1+1?", "answer": "2"})
    more = {"problem": "2+2?", "answer": 4}
    (tmp_path / "d" / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(more).encode()))
    pq.write_table(
        pa.Table.from_pylist([{"problem": "3+3?", "answer": "6"}]), tmp_path / "c.parquet"
    )
    source = Source(name="sums", files=("d/*", "c.parquet"))
    kept, rejected, metrics = run(tmp_path / "out", source, root=tmp_path)
    assert [(p.prompt, p.answer) for p in kept] == [("1+1?", "2"), ("2+2?", "4"), ("3+3?", "6")]
    assert {p.source for p in kept} == {"sums"}
    assert rejected == []
    assert metrics["kept/sums"] == 3


def test_a_bad_row_is_rejected_with_file_row_field_and_reason_and_the_rest_goes_on(tmp_path):
    jsonl(
        tmp_path / "x" / "bad.jsonl",
        {"problem": "fine", "answer": "1"},
        "{no json",
        {"answer": "1"},
        {"problem": "no answer"},
        {"problem": "   ", "answer": "1"},
        {"problem": ["list"], "answer": "1"},
        {"problem": "p", "answer": {"a": 1}},
        {"problem": "p", "answer": True},
        '{"problem": "p", "answer": NaN}',
        '{"problem": "lone \\ud800", "answer": "1"}',
        {"problem": "also fine", "answer": "2"},
    )
    source = Source(name="s", files=("x/bad.jsonl",))
    kept, rejected, metrics = run(tmp_path / "out", source, root=tmp_path)
    assert [p.prompt for p in kept] == ["fine", "also fine"]
    reasons = [r.reason for r in rejected]
    assert reasons[0].startswith("x/bad.jsonl row 2: no JSON")
    assert reasons[1:8] == [
        "x/bad.jsonl row 3: field problem: missing",
        "x/bad.jsonl row 4: field answer: missing",
        "x/bad.jsonl row 5: field problem: empty",
        "x/bad.jsonl row 6: field problem: missing",
        "x/bad.jsonl row 7: field answer: must be text or a number, this is a dict",
        "x/bad.jsonl row 8: field answer: must be text or a number, this is a bool",
        "x/bad.jsonl row 9: field answer: nan is no answer",
    ]
    assert "row 10: field prompt: Input should be a valid string" in reasons[8]
    assert json.loads(rejected[2].row) == {"problem": "no answer"}
    assert rejected[2].id == Problem(domain="math", prompt="no answer", answer="x").id
    assert metrics["rejected/s"] == 9


def test_a_missing_file_is_an_error_that_names_source_and_file(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"source 'gone', files: no file nowhere\.jsonl .*data\.root"
    ):
        run(tmp_path / "out", Source(name="gone", files=("nowhere.jsonl",)), root=tmp_path)


# ---------------------------------------------------------------- files are part of the key


def test_collect_is_keyed_by_the_bytes_of_its_files_and_not_by_their_times(tmp_path):
    file = jsonl(tmp_path / "r.jsonl", {"problem": "p", "answer": "1"})
    settings = CollectSettings(
        root=str(tmp_path), sources=(Source(name="s", files=("r.jsonl",)), countdown(size=3))
    )
    plain = Run(store=Store(tmp_path / "store"))
    before = collect.key((), settings, plain)
    file.touch()
    assert collect.key((), settings, plain) == before
    jsonl(file, {"problem": "p", "answer": "2"})
    assert collect.key((), settings, plain) != before


def test_only_recorded_engines_read_files(tmp_path):
    file = jsonl(tmp_path / "r.jsonl", {"question": "q", "response": "r"})
    recorded = SampleSettings(engine=EngineSettings(kind="recorded", files=(str(file),)))
    assert recorded_files(recorded) == [file]
    assert recorded_files(SampleSettings(engine=EngineSettings(kind="scripted"))) == []


# ---------------------------------------------------------------- real data
