"""Decontaminate: no training prompt shares a word 9-gram with a benchmark item (§3.1, §3.2.1)."""

from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

import orjson

from ...configs.settings.data import DecontaminateSettings
from ...eval.records.tables import ArrowWriter, row_groups
from ..engine.parts import computed_parts
from ..engine.stage import Metrics, stage
from ..store.store import SCRATCH, Artifact
from .contamination import HITS, REASONS, benchmark_index, decide_part, write_page
from .split_rows import split_rows, table_parts


@stage(version=3, group="data")
def decontaminate(
    out: Path, problems: Artifact, benchmarks: Artifact, *, settings: DecontaminateSettings
) -> Metrics:
    """Remove every problem that shares an n-gram with a benchmark item, and list what matched.

    The published rule (any shared n-gram) removes mostly common wording; `hits.parquet` holds
    every pair with its coverage, `decontamination.html` and the metrics count both readings, and
    apart from them the rows in which an item shorter than n words was found whole.
    """
    source, rows = problems.file("kept.parquet"), settings.runtime.rows_per_part
    scratch, parts = out / SCRATCH / f"rows-{rows}", table_parts(source, rows)
    compute = partial(decide_part, source=source, against=benchmarks, rule=settings)
    results = computed_parts(scratch, parts, compute, settings.runtime.workers)
    folders = list[Path]()
    with closing(results), ArrowWriter(out / "hits.parquet", HITS) as hits:
        for folder in results:
            folders.append(folder)
            for table in row_groups(folder / "hits.parquet"):
                hits.write(table)
    reasons = (orjson.loads((folder / REASONS).read_bytes()) for folder in folders)
    counts = split_rows(source, chain.from_iterable(reasons), out)
    items = benchmarks.file("kept.parquet")
    words = settings.n, settings.normalize, settings.min_words
    index = benchmark_index(items, benchmarks.digest, *words)
    return {**counts, **write_page(out, index, settings, counts)}
