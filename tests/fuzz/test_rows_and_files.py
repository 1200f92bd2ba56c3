"""Whatever a data file holds: every row is kept or rejected with its place, and none is changed."""

import codecs
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz.strategies import few, json_values, rows, schemas
from fuzz.targets import SOURCES
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eval.records import CallCase, Problem, Rejected, TestSuite
from eval.row_files import Row, read_rows
from eval.tables import read_table, write_table
from tasks.data.collect_part import checked
from tasks.data.overlaps.overlaps import Decision
from tasks.data.overlaps.row_filter import NoSuchField, filter_rows

few_files = settings(few, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few_files
@given(st.lists(rows, min_size=1, max_size=4), st.sampled_from(SOURCES))
def test_a_row_is_a_problem_that_a_table_gives_back_or_a_reject(tmp_path, found, source) -> None:
    made = [checked(Row("f", n, row), source, {}) for n, row in enumerate(found, 1)]
    for kind in (Problem, Rejected):
        mine = [m for m in made if isinstance(m, kind)]
        write_table(tmp_path / "t.parquet", kind, mine)
        assert list(read_table(tmp_path / "t.parquet", kind)) == mine
    reasons = [(n, m.reason) for n, m in enumerate(made, 1) if isinstance(m, Rejected)]
    assert all(reason.startswith(f"f row {n}: ") for n, reason in reasons)


@few_files
@given(st.lists(json_values | st.binary(max_size=30), max_size=8))
def test_every_line_of_a_file_is_one_row(tmp_path: Path, values: list) -> None:
    lines = [v if isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    lines = [line.replace(b"\n", b" ") for line in lines]
    (tmp_path / "r.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    found = list(read_rows(tmp_path / "r.jsonl"))
    mark = b"\xef\xbb\xbf"
    expected = [n for n, line in enumerate(lines, 1)
                if (line.removeprefix(mark) if n == 1 else line).strip()]  # fmt: skip
    assert [row.number for row in found] == expected
    assert all((row.value is None) == bool(row.error) for row in found)


@few_files
@given(schemas, st.integers(0, 5), st.data())
def test_a_parquet_file_of_any_schema_gives_all_its_rows(tmp_path, schema, count, data) -> None:
    columns = [pa.nulls(count, field.type) for field in schema]
    for place, field in enumerate(schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            words = st.text().map(lambda text: text.encode("utf-8", "replace").decode())
            columns[place] = pa.array([data.draw(words) for _ in range(count)], field.type)
    try:
        pq.write_table(pa.table(columns, schema=schema), tmp_path / "r.parquet")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return  # parquet has no such column
    for source in SOURCES:
        found = list(read_rows(tmp_path / "r.parquet"))
        assert [row.number for row in found] == list(range(1, count + 1))
        assert all(isinstance(checked(row, source, {}), Problem | Rejected) for row in found)


@few_files
@given(st.lists(rows | st.text(max_size=20), min_size=1, max_size=8))
@example(["\ufeff"])  # nothing but the mark that some editors put before a file
def test_a_filter_keeps_every_byte_of_every_line(tmp_path: Path, values: list) -> None:
    """What is kept is as it was; what is rejected has one field more; nothing is lost."""
    lines = [json.dumps(v) if isinstance(v, dict) else v.replace("\n", " ") for v in values]
    lines = [line.encode("utf-8", "replace") for line in lines]
    (tmp_path / "in.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    def decide(batch) -> Decision:
        return Decision(dict.fromkeys(range(1, len(batch.texts), 2), "odd"), [], 0)

    try:
        counts = filter_rows(tmp_path / "in.jsonl", "problem", decide, tmp_path)
    except NoSuchField:
        return
    kept = (tmp_path / "kept.jsonl").read_bytes().split(b"\n")[:-1]
    gone = (tmp_path / "rejected.jsonl").read_bytes().split(b"\n")[:-1]
    unmarked = [line.removeprefix(codecs.BOM_UTF8).strip() for line in lines]
    asked = [line for line in unmarked if line]
    assert set(kept) <= set(asked)
    assert len(kept) + len(gone) == len(asked) == counts["kept"] + counts["rejected"]
    assert all(b"reason" in line for line in gone)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_test_that_expects_nan_is_rejected_and_not_turned_into_null(tmp_path, value) -> None:
    """Found by fuzzing: the table held null, and `return None` would have been right."""
    suite = {"kind": "call", "fn_name": "f", "cases": [{"args": [1], "output": [value]}]}
    (tmp_path / "r.jsonl").write_text(json.dumps({"problem": "p", "tests": suite}) + "\n")
    (row,) = read_rows(tmp_path / "r.jsonl")
    made = checked(row, SOURCES[2], {})
    assert isinstance(made, Rejected)
    assert "NaN or infinite" in made.reason


def test_a_test_that_expects_null_is_kept(tmp_path: Path) -> None:
    suite = {"kind": "call", "fn_name": "f", "cases": [{"args": [None, 1.5], "output": None}]}
    made = checked(Row("f", 1, {"problem": "p", "tests": suite}), SOURCES[2], {})
    assert isinstance(made, Problem)
    assert made.tests == TestSuite(
        kind="call", fn_name="f", cases=(CallCase(args=(None, 1.5), output=None),)
    )
