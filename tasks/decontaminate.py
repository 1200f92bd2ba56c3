"""Decontaminate: no training prompt shares a word 9-gram with a benchmark item (§3.1, §3.2.1)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from configs.data_stages import DecontaminateSettings
from eval.records import Problem, Rejected
from eval.tables import TableWriter, count_rows, read_table
from tasks.ngrams import Item, NgramIndex
from tasks.overlaps import Hit, Overlaps
from tasks.progress import report
from tasks.stage import Metrics, stage
from tasks.store import Artifact


def benchmark_items(path: Path) -> Iterator[Item]:
    """The problems of a benchmarks artifact as items to keep out of training."""
    for problem in read_table(path, Problem):
        yield Item(benchmark=problem.source, id=problem.id, text=problem.prompt)


@stage(version=1)
def decontaminate(
    out: Path, problems: Artifact, benchmarks: Artifact, *, settings: DecontaminateSettings
) -> Metrics:
    """Remove every problem that shares an n-gram with a benchmark item, and list what matched.

    The published rule (any shared n-gram) removes mostly common wording; `hits.parquet` holds
    every pair with its coverage, and the metrics count both readings side by side.
    """
    items = benchmark_items(benchmarks.file("kept.parquet"))
    index = NgramIndex(items, settings.n, settings.normalize)
    source = problems.file("kept.parquet")
    total = count_rows(source)
    removed: Counter[str] = Counter()
    with (
        TableWriter(out / "hits.parquet", Hit) as hits,
        TableWriter(out / "kept.parquet", Problem) as kept,
        TableWriter(out / "rejected.parquet", Rejected) as rejected,
    ):
        overlaps = Overlaps(index, settings.min_coverage, hits)
        for done, row in enumerate(read_table(source, Problem), 1):
            reason = overlaps.reason(row.id, row.source, row.prompt)
            if reason is None:
                kept.write(row)
            else:
                removed[row.source] += 1
                original = row.model_dump_json()
                rejected.write(Rejected(id=row.id, source=row.source, reason=reason, row=original))
            report(done, total)
    return {
        "kept": float(kept.rows),
        "rejected": float(rejected.rows),
        **overlaps.metrics(),
        **{f"rejected/{name}": float(n) for name, n in sorted(removed.items())},
    }
