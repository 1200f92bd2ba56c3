"""Whatever a data file holds: every row is kept or rejected with its place, and none is changed."""

import codecs
import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz.strategies import SCRATCH, SOURCES, WORDS, few, json_values, rows, schemas, texts
from hypothesis import example, given
from hypothesis import strategies as st

from klear.configs.settings.explain import ConfigError
from klear.eval.math_answers.verify import MAX_CHARACTERS, quick_verdict
from klear.eval.programs.formats import parse_suite, pickled_text, unpack_tests
from klear.eval.records import Problem, Rejected, TestSuite
from klear.eval.records.row_files import Row, read_rows
from klear.eval.records.tables import read_table, write_table
from klear.flows.cli.filter_rows import filter_rows
from klear.tasks.data.sources import Collected, checked
from tests.tasks.pages_by_hand import Elements, page_of

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".parquet")


@few
@given(st.lists(rows, min_size=1, max_size=4), st.sampled_from(SOURCES))
def test_a_row_is_a_problem_that_a_table_gives_back_or_a_reject(drawn, source) -> None:
    read = [checked(Row("f", n, row), source, {}) for n, row in enumerate(drawn, 1)]
    records = [r.problem if isinstance(r, Collected) else r for r in read]
    for kind in (Problem, Rejected):
        of_kind = [m for m in records if isinstance(m, kind)]
        write_table(SCRATCH / "rows.parquet", kind, of_kind)
        assert list(read_table(SCRATCH / "rows.parquet", kind)) == of_kind
    reasons = [(n, m.reason) for n, m in enumerate(records, 1) if isinstance(m, Rejected)]
    assert all(reason.startswith(f"f row {n}: ") for n, reason in reasons)


@few
@given(json_values, st.sampled_from(WORDS), st.binary(max_size=200))
def test_tests_of_any_form_are_a_suite_or_a_value_error(value, fn_name, packed) -> None:
    with suppress(ValueError, RecursionError):
        suite = parse_suite(value, fn_name=fn_name)
        assert suite.cases
        assert TestSuite.model_validate_json(suite.model_dump_json()) == suite
    with suppress(ValueError):  # never a pickle loaded
        assert isinstance(pickled_text(packed), str)
    with suppress(ValueError):
        unpack_tests(packed.decode("latin-1"))


@few
@given(st.sampled_from(SUFFIXES), st.binary(max_size=300))
def test_a_file_of_any_bytes_gives_rows_or_an_error_that_names_it(suffix, data) -> None:
    path = SCRATCH / f"file{suffix}"
    path.write_bytes(data)
    try:
        assert all((row.value is None) == bool(row.error) for row in read_rows(path))
    except ValueError as error:
        assert path.name in str(error)  # noqa: PT017


@few
@given(schemas, st.integers(0, 5), st.data())
def test_a_parquet_file_of_any_schema_gives_all_its_rows(schema, count, data) -> None:
    columns = [pa.nulls(count, field.type) for field in schema]
    for place, field in enumerate(schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            words = st.text().map(lambda text: text.encode("utf-8", "replace").decode())
            columns[place] = pa.array([data.draw(words) for _ in range(count)], field.type)
    try:
        pq.write_table(pa.table(columns, schema=schema), SCRATCH / "r.parquet")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return  # parquet has no such column
    rows = list(read_rows(SCRATCH / "r.parquet"))
    assert [row.number for row in rows] == list(range(1, count + 1))
    for source in SOURCES:
        assert all(isinstance(checked(row, source, {}), Collected | Rejected) for row in rows)


@few
@given(st.lists(rows | st.text(max_size=20), min_size=1, max_size=8))
@example([{"problem": {"\u2028": None}}])
@example(["\ufeff"])  # nothing but the mark that some editors put before a file
def test_a_filter_loses_no_line(values: list) -> None:
    """What is kept is as it was; what is rejected has one field more; nothing is lost."""
    lines = [json.dumps(v) if isinstance(v, dict) else v.replace("\n", " ") for v in values]
    lines = [line.encode("utf-8", "replace") for line in lines]
    (SCRATCH / "in.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))

    def decide(batch) -> dict[int, str]:
        return dict.fromkeys(range(1, len(batch), 2), "odd")

    try:
        counts = filter_rows(SCRATCH / "in.jsonl", "problem", decide, SCRATCH)
    except ConfigError:
        return
    # Bytes: text would be split at U+2028 as well, which JSON may hold as it is.
    kept = (SCRATCH / "kept.jsonl").read_bytes().splitlines()
    gone = (SCRATCH / "rejected.jsonl").read_bytes().splitlines()
    unmarked = [line.removeprefix(codecs.BOM_UTF8).strip() for line in lines]
    expected = [line for line in unmarked if line]
    assert {repr(json.loads(line)) for line in kept} <= {repr(v) for v in values}
    assert len(kept) + len(gone) == len(expected) == counts["kept"] + counts["rejected"]
    assert all(b"reason" in line for line in gone)


@few
@given(texts | st.text("<>&\"'`[](){}|*_#!\\ \nabon=:/", max_size=60))
def test_no_text_becomes_an_element_of_a_page_or_an_attribute_that_runs(text: str) -> None:
    elements = Elements(page_of(text).html())
    assert elements.tags <= Elements(page_of("x").html()).tags | {"hr"}  # emphasis on nothing
    assert not [name for name, _ in elements.attributes if name.startswith("on")]


@pytest.mark.parametrize("gold", ["1 " + "9" * 5000 + "/7", "9" * 5000 + r".1\overline{3}"])
def test_a_gold_of_thousands_of_digits_is_unscored_and_no_crash(gold: str) -> None:
    """int() refuses more than 4,300 digits: the ValueError ended the judge stage."""
    verdict = quick_verdict(gold, "3")
    assert verdict is not None
    assert (verdict.verdict, verdict.reason) == ("IE", "the gold answer is too long to be read")
    assert len(gold) > MAX_CHARACTERS
    same = quick_verdict(gold, gold)
    assert same is not None
    assert same.verdict == "AC"


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": "1", "output": "2", "testtype": "functional", "fn_name": "f"},
         {"input": [1], "output": "2"}],
        [{"input": "1", "output": 2, "testtype": "functional", "fn_name": "f"}],
        [{"input": "", "output": [], "testtype": "functional"}],
        {"kind": "stdin", "cases": [{"input": "", "output": ""}], "time_limit_s": 1e300},
        {"kind": "stdin", "cases": [{"input": "", "output": ""}], "time_limit_s": float("inf")},
        {"kind": "stdin", "cases": [{"input": "", "output": ""}], "memory_mb": 10**12},
    ],
)  # fmt: skip
def test_tests_of_the_wrong_kind_are_a_reject_and_end_no_stage(tests) -> None:
    """A TypeError left `parse_suite`, and one bad row ended the collect stage."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_suite(tests)
    rejected = checked(Row("f", 7, {"problem": "p", "tests": tests}), SOURCES[2], {})
    assert isinstance(rejected, Rejected)
    assert rejected.reason.startswith("f row 7: field tests: ")


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_a_test_that_expects_nan_is_rejected_and_not_turned_into_null(tmp_path, value) -> None:
    """The table held null, and `return None` would have been right."""
    suite = {"kind": "call", "fn_name": "f", "cases": [{"args": [1], "output": [value]}]}
    (tmp_path / "r.jsonl").write_text(json.dumps({"problem": "p", "tests": suite}) + "\n")
    (row,) = read_rows(tmp_path / "r.jsonl")
    result = checked(row, SOURCES[2], {})
    assert isinstance(result, Rejected)
    assert "Out of range float" in result.reason
    suite["cases"] = [{"args": [None, 1.5], "output": None}]
    assert isinstance(
        checked(Row("f", 1, {"problem": "p", "tests": suite}), SOURCES[2], {}), Collected
    )
