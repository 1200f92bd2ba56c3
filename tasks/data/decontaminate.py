"""Decontaminate: no training prompt shares a word 9-gram with a benchmark item (§3.1, §3.2.1)."""

from contextlib import closing
from functools import partial
from pathlib import Path

from configs.settings.data import DecontaminateSettings
from eval.tables import ArrowWriter, row_groups
from tasks.data.overlaps.decontamination_page import Decided, write_page
from tasks.data.overlaps.overlaps import HITS, benchmark_index, decide_part, decided
from tasks.data.split_rows import row_split, table_parts
from tasks.stage.parts import computed_parts
from tasks.stage.stage import Metrics, stage
from tasks.store.store import SCRATCH, Artifact


@stage(version=3)
def decontaminate(
    out: Path, problems: Artifact, benchmarks: Artifact, *, settings: DecontaminateSettings
) -> Metrics:
    """Remove every problem that shares an n-gram with a benchmark item, and list what matched.

    The published rule (any shared n-gram) removes mostly common wording; `hits.parquet` holds
    every pair with its coverage, `decontamination.html` and the metrics count both readings.
    """
    source, against = problems.file("kept.parquet"), benchmarks.file("kept.parquet")
    runtime = settings.runtime
    compute = partial(
        decide_part, source=source, items=against, digest=benchmarks.digest, rule=settings
    )
    scratch = out / SCRATCH / f"rows-{runtime.rows_per_part}"
    parts = table_parts(source, runtime.rows_per_part)
    removed = unlisted = 0
    with (
        closing(computed_parts(scratch, parts, compute, runtime.workers)) as folders,
        ArrowWriter(out / "hits.parquet", HITS) as hits,
        row_split(source, out) as split,
    ):
        for part, folder in zip(parts, folders, strict=True):  # while the workers go on
            reasons, not_listed = decided(folder)
            removed, unlisted = removed + len(reasons), unlisted + not_listed
            for table in row_groups(folder / "hits.parquet"):
                hits.write(table)
            for group in range(part.first, part.last):
                split.take(group, reasons)
    index = benchmark_index(against, benchmarks.digest, settings.n, settings.normalize)
    facts = Decided(
        rows=split.kept + split.rejected,
        removed=removed,
        min_coverage=settings.min_coverage,
        normalise=settings.normalize,
        unlisted=unlisted,
    )
    return {
        **split.metrics(),
        **write_page(out, index, facts).metrics(),
        "hits_unlisted": float(unlisted),
        **index.metrics(),
    }
