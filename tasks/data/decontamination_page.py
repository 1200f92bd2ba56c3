"""The page of a decontamination: common wording set apart from real leaks, with both texts."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from klear.configs.settings.data import DecontaminateSettings
from klear.eval.tables import to_records
from klear.tasks.data.overlaps import LISTED_PER_ROW, Hit
from klear.tasks.report.page import Page, render

if TYPE_CHECKING:  # its compiled code takes half a second to load
    from klear.tasks.data.ngrams import NgramIndex

PAGE = "decontamination.html"
LEAK_COVERAGE = 0.5
"""Coverage from which a hit is the benchmark problem itself rather than common wording."""
LEAKS_SHOWN = 25
NGRAMS_LISTED = 30


def write_page(
    out: Path, index: "NgramIndex", settings: DecontaminateSettings, counts: Mapping[str, float]
) -> dict[str, float]:
    """Write the page beside `out/hits.parquet`, which it is about; returns what it counted.

    `counts` are rows kept, rejected and, among these, malformed. Of a row the best covered hit
    comes first on file. Memory holds no text of the hits but those shown.
    """
    path, rows = out / "hits.parquet", counts["kept"] + counts["rejected"]
    malformed = counts.get("malformed", 0)
    hits = pq.read_table(path, columns=["row_number", "benchmark", "ngram", "coverage"])
    best = np.flatnonzero(np.diff(hits["row_number"].to_numpy(), prepend=0))
    coverage = hits["coverage"].to_numpy()[best]
    leaked = int(np.count_nonzero(coverage >= LEAK_COVERAGE))
    leaks = best[np.argsort(-coverage, kind="stable")][: min(leaked, LEAKS_SHOWN)]
    pairs = hits.group_by(["benchmark", "row_number"]).aggregate([("coverage", "max")])
    half = pairs.filter(pc.field("coverage_max") >= LEAK_COVERAGE)
    rows_of, leaked_of = (Counter(found["benchmark"].to_pylist()) for found in (pairs, half))
    below = hits.filter(pc.field("coverage") < LEAK_COVERAGE)
    ngrams = below.group_by("ngram").aggregate([("row_number", "count_distinct")])
    common = Counter(dict(zip(*(column.to_pylist() for column in ngrams.columns), strict=True)))
    sizes = Counter(item.benchmark for item in index.items)
    body = render(
        "decontamination.md",
        settings=settings,
        rows=rows,
        removed=counts["rejected"] - malformed,
        malformed=malformed,
        hit=len(best),
        leaked=leaked,
        benchmarks=[(name, n, rows_of[name], leaked_of[name]) for name, n in sizes.items()],
        leaks=list(to_records(ds.dataset(path).take(pa.array(leaks, pa.int64())), Hit)),
        common=common.most_common(NGRAMS_LISTED),
        index=index,
        same=round(100 * LEAK_COVERAGE),
        listed_per_row=LISTED_PER_ROW,
    )
    subtitle = f"{rows:,.0f} rows against {len(index.items):,} benchmark items"
    page = Page("Decontamination", subtitle, f"n = {settings.n}, {settings.normalize}", body)
    (out / PAGE).write_text(page.html(), encoding="utf-8")
    return {
        "rows_any_ngram": len(best),
        "rows_coverage_50": leaked,
        "rows_boilerplate": len(best) - leaked,
        "hits": len(hits),
        **{f"rows_hit/{name}": n for name, n in sorted(rows_of.items())},
        **{f"rows_leaked/{name}": leaked_of[name] for name in sorted(rows_of)},
        "items": len(index.items),
        "items_matched_whole": index.short_items,
        "items_without_words": index.wordless,
    }
