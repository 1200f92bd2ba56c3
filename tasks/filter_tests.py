"""Filter tests: code problems with fewer than 16 distinct tests leave the RL branch (§3.2.1)."""

from collections import Counter
from pathlib import Path

from configs.data_stages import FilterTestsSettings
from eval.judge import NO_GOLD
from eval.records import AssertCase, CallCase, Problem, Rejected, TestSuite
from eval.tables import TableWriter, count_rows, read_table
from tasks.progress import report
from tasks.stage import Metrics, stage
from tasks.store import Artifact

Case = object


def distinct_cases(tests: TestSuite) -> TestSuite:
    """The suite without repeated cases: the first of each stays, in order.

    White space around a program's input and output, and around an assertion, makes no other
    test: a second copy of the same test proves nothing more about a program.
    """
    first: dict[str, Case] = {}
    for case in tests.cases:
        first.setdefault(_identity(case), case)
    if len(first) == len(tests.cases):
        return tests
    return tests.model_copy(update={"cases": tuple(first.values())})


def _identity(case: Case) -> str:
    match case:
        case CallCase():
            return case.model_dump_json()
        case AssertCase():
            return case.code.strip()
        case _:  # stdin, with or without a checker
            return "\0".join(str(value).strip() for _, value in case)  # type: ignore[attr-defined]


def with_distinct_tests(problem: Problem) -> tuple[Problem, int]:
    """The problem with repeated tests removed, and how many were; math problems as they are."""
    if problem.tests is None:
        return problem, 0
    tests = distinct_cases(problem.tests)
    repeated = len(problem.tests.cases) - len(tests.cases)
    return (problem.model_copy(update={"tests": tests}), repeated) if repeated else (problem, 0)


@stage(version=1)
def filter_tests(out: Path, problems: Artifact, *, settings: FilterTestsSettings) -> Metrics:
    """Keep math problems and code problems with at least `min_tests` distinct tests.

    Repeated tests are removed from the problems kept. What has neither answer nor tests is
    rejected, for RL cannot reward it. Rows of sources that `settings.sources`
    leaves out belong to another branch: they are counted, neither kept nor rejected.
    """
    source = problems.file("kept.parquet")
    total = count_rows(source)
    counts: Counter[str] = Counter()
    with (
        TableWriter(out / "kept.parquet", Problem) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        for done, row in enumerate(read_table(source, Problem), 1):
            report(done, total)
            if settings.sources and row.source not in settings.sources:
                counts["other_sources"] += 1
                continue
            problem, repeated = with_distinct_tests(row)
            counts["repeated_tests"] += repeated
            tests = len(problem.tests.cases) if problem.tests else 0
            enough = problem.domain == "math" or tests >= settings.min_tests
            if problem.judgeable and enough:
                counts[f"kept_{problem.domain}"] += 1
                kept.write(problem)
                continue
            counts["not_judgeable"] += not problem.judgeable
            few = f"{tests} distinct tests, fewer than {settings.min_tests}"
            reason = few if problem.judgeable else NO_GOLD
            original = row.model_dump_json()
            rejected.write(Rejected(id=row.id, source=row.source, reason=reason, row=original))
    names = ("kept_math", "kept_code", "not_judgeable", "repeated_tests", "other_sources")
    return {
        "kept": float(kept.rows),
        "rejected": float(rejected.rows),
        **{name: float(counts[name]) for name in names},
    }
