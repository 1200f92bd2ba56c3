from pathlib import Path

from configs.settings.data import FilterTestsSettings
from eval.records import (
    AssertCase,
    CallCase,
    CheckerCase,
    Problem,
    Rejected,
    StdinCase,
    TestSuite,
)
from eval.tables import read_table, write_table
from tasks.data.filter_tests import distinct_cases, filter_tests
from tasks.store.store import Artifact


def stdin(*pairs: tuple[str, str]) -> TestSuite:
    return TestSuite(kind="stdin", cases=tuple(StdinCase(input=i, output=o) for i, o in pairs))


def coded(name: str, tests: int, repeats: int = 0, source: str = "s") -> Problem:
    pairs = [(str(i), str(i)) for i in range(tests)] + [("0", "0")] * repeats
    return Problem(domain="code", prompt=name, tests=stdin(*pairs), source=source)


def run(tmp_path: Path, rows: list[Problem], **chosen):
    out = tmp_path / "out"
    out.mkdir()
    write_table(tmp_path / "kept.parquet", Problem, rows)
    inputs = Artifact.of_folder(tmp_path)
    metrics = filter_tests.body(out, inputs, settings=FilterTestsSettings(**chosen))
    kept = list(read_table(out / "kept.parquet", Problem))
    return metrics, kept, list(read_table(out / "rejected.parquet", Rejected))


def test_repeated_tests_do_not_count_and_leave_the_kept_problem(tmp_path: Path):
    rows = [coded("enough", 16, repeats=3), coded("few", 15, repeats=3)]
    metrics, kept, rejected = run(tmp_path, rows)
    assert [k.prompt for k in kept] == ["enough"]
    assert kept[0].tests == coded("enough", 16).tests
    assert rejected[0].reason == "15 distinct tests, fewer than 16"
    assert Problem.model_validate_json(rejected[0].row) == rows[1]
    assert metrics["repeated_tests"] == 6.0


def test_rows_of_other_sources_are_counted_and_go_nowhere(tmp_path: Path):
    math = Problem(domain="math", prompt="1+1", answer="2", source="mine")
    rows = [coded("a", 16, source="mine"), coded("b", 1, source="theirs"), math]
    metrics, kept, rejected = run(tmp_path, rows, sources=("mine",))
    assert (len(kept), len(rejected), metrics["other_sources"]) == (2, 0, 1.0)


def test_every_kind_of_test_can_repeat():
    suites = [
        TestSuite(kind="call", fn_name="f", cases=(CallCase(args=([1],), output=[True]),) * 2),
        TestSuite(kind="assert", cases=(AssertCase(code="assert f(1)\n"),) * 2),
        TestSuite(kind="checker", cases=(CheckerCase(input="1", output="", checker="ok"),) * 2),
    ]
    assert [len(distinct_cases(s).cases) for s in suites] == [1, 1, 1]


def test_white_space_around_a_test_makes_no_other_one_but_outputs_and_types_do():
    tests = stdin(("1 2\n", "3\n"), ("1 2", "3"), ("1  2", "3"), ("1 2", "4"))
    assert distinct_cases(tests) == stdin(("1 2\n", "3\n"), ("1  2", "3"), ("1 2", "4"))
    cases = (CallCase(args=(1,), output=1), CallCase(args=(True,), output=1))
    tests = TestSuite(kind="call", fn_name="f", cases=cases)
    assert distinct_cases(tests) == tests
