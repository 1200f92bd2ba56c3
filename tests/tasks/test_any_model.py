"""Benchmarks from files: what rows mean, and which files hold problems of ours already."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klear.eval.records import Problem
from klear.eval.tables import read_table, write_table
from klear.tasks.data.collect import collect
from klear.tasks.models.any_model import problems_of_file, settings_to_collect


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def collected(file: Path, out: Path) -> list[Problem]:
    out.mkdir()
    collect.body(out, settings=settings_to_collect("mine", file), seed=0)
    return list(read_table(out / "kept.parquet", Problem))


def test_a_parquet_of_another_kind_with_tests_is_read_by_its_fields(tmp_path):
    tests = [{"input": "1\n", "output": "2\n"}]
    file = parquet(tmp_path / "theirs.parquet", {"question": "Add one.", "tests": tests})
    assert problems_of_file(file, "mine") is None
    (problem,) = collected(file, tmp_path / "o")
    assert problem.prompt == "Add one."
    assert (problem.tests.kind, len(problem.tests.cases)) == ("stdin", 1)
    other = parquet(tmp_path / "o.parquet", {"prompt": "Add.", "domain": "math", "numbers": 7})
    assert problems_of_file(other, "mine") is None


def test_a_parquet_of_ours_is_read_as_it_is_under_its_new_name(tmp_path):
    rows = [Problem(domain="math", prompt=p, answer="1", source="old") for p in ("a", "b")]
    write_table(tmp_path / "kept.parquet", Problem, rows)
    found = problems_of_file(tmp_path / "kept.parquet", "mine")
    assert found == [p.model_copy(update={"source": "mine"}) for p in rows]


@pytest.mark.parametrize("name", ["add", ""])
def test_the_entry_point_of_a_row_is_the_function_its_tests_call(tmp_path, name):
    row = {
        "task_id": "x/0",
        "prompt": "def add(a, b):\n    ...",
        "canonical_solution": "    return a + b",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
        "entry_point": name,
    }
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    (source,) = settings_to_collect("mine", file).sources
    assert source.fn_name_field == ("entry_point" if name else "")
    if name:
        (problem,) = collected(file, tmp_path / "o")
        assert problem.tests.fn_name == "add"
