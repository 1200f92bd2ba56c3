"""Filter tests: code problems with fewer than 16 distinct tests leave the RL branch (§3.2.1)."""

from collections import Counter
from pathlib import Path
from typing import Any

from ...configs.settings.data import FilterTestsSettings
from ...eval.progress import report
from ...eval.records import NO_GOLD, CallCase, Problem, Rejected, TestSuite
from ...eval.records.tables import TableWriter, count_rows, read_table
from ..engine.stage import Metrics, stage
from ..store.store import Artifact


def distinct_cases(tests: TestSuite) -> TestSuite:
    """The suite without repeated cases: the first of each stays, in order. White space around a
    program's input and output, and around an assertion, makes no other test."""
    first: dict[object, Any] = {}
    for case in tests.cases:
        texts = tuple(str(value).strip() for _, value in case)
        first.setdefault(case.model_dump_json() if isinstance(case, CallCase) else texts, case)
    return tests.model_copy(update={"cases": tuple(first.values())})


@stage(version=1, group="data")
def filter_tests(out: Path, problems: Artifact, *, settings: FilterTestsSettings) -> Metrics:
    """Keep math problems and code problems with at least `min_tests` distinct tests.

    Repeated tests are removed from the problems kept. What has neither answer nor tests is
    rejected, for RL cannot reward it. Rows of sources that `settings.sources` leaves out belong to
    another branch: they are counted, neither kept nor rejected.
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
            tests = distinct_cases(row.tests) if row.tests else None
            cases = len(tests.cases) if tests else 0
            counts["repeated_tests"] += len(row.tests.cases) - cases if row.tests else 0
            if row.judgeable and (row.domain == "math" or cases >= settings.min_tests):
                counts[f"kept_{row.domain}"] += 1
                kept.write(row.model_copy(update={"tests": tests}))
                continue
            counts["not_judgeable"] += not row.judgeable
            few = f"{cases} distinct tests, fewer than {settings.min_tests}"
            reason, original = few if row.judgeable else NO_GOLD, row.model_dump_json()
            rejected.write(Rejected(id=row.id, source=row.source, reason=reason, row=original))
    names = ("kept_math", "kept_code", "not_judgeable", "repeated_tests", "other_sources")
    return {"kept": kept.rows, "rejected": rejected.rows, **{name: counts[name] for name in names}}
