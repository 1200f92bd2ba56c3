"""What rows share with benchmark items: the decision, every hit on file, and the page about them,
which sets common wording apart from real leaks and shows both texts.

`decide_part` is what a worker process of the decontaminate stage does. Nothing here imports
Prefect, so that workers start in a second.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...configs.settings.data import DecontaminateSettings
from ...eval.records import Record
from ...eval.records.tables import ArrowWriter, arrow_schema, row_groups, to_records
from ..store.store import Artifact
from .split_rows import TablePart
from .tokenize import Normalisation

if TYPE_CHECKING:  # its compiled code takes half a second to load, which most commands never need
    from .ngrams import Matches, NgramIndex

BATCH_BYTES = 8 << 20
BATCH_ROWS = 16_384
LISTED_PER_ROW = 100
"""Hits listed of one row, and beyond them the best of each benchmark."""
LONGEST_TEXT = 100_000
"""Characters of a text that hits hold; the whole row is among the kept or rejected ones."""
HITS_AT_ONCE = 256
REASONS = "reasons.json"
PAGE = "decontamination.html"
LEAK_COVERAGE = 0.5
"""Coverage from which a hit is the benchmark problem itself rather than common wording."""
LEAKS_SHOWN = 25
NGRAMS_LISTED = 30
COLUMNS = ["id", "source", "prompt"]


class Hit(Record):
    """One row and one benchmark item that share an n-gram, whether or not the row was removed."""

    row_number: int
    """Place of the row in its file, from 1: ids may repeat."""
    row_id: str
    source: str
    benchmark: str
    item_id: str
    ngram: str
    """The first shared n-gram of the row; all words of an item shorter than n."""
    coverage: float
    whole_item: bool
    """The item is shorter than n words and was found whole."""
    row: str
    item: str


HITS, _ = arrow_schema(Hit)
ROW = ("row_number", "row_id", "source", "row")
"""What `Overlaps.decide` is told of a row; the last is its text."""
ITEM = ("benchmark", "item_id", "item")


class Overlaps:
    """Decides about rows and writes their hits. A missing text (null) shares nothing."""

    def __init__(self, index: "NgramIndex", min_coverage: float, hits: ArrowWriter) -> None:
        self.index, self._min_coverage, self._hits = index, min_coverage, hits
        items = ((item.benchmark, item.id, item.text[:LONGEST_TEXT]) for item in index.items)
        rows = [dict(zip(ITEM, item, strict=True)) for item in items]
        self._items = pa.Table.from_pylist(rows, pa.schema([HITS.field(name) for name in ITEM]))
        names = [item.benchmark for item in index.items]
        _, self._benchmark = np.unique(names, return_inverse=True)

    def decide(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Why rows (columns of ROW) must go, by number: n-grams at `min_coverage` or more."""
        matches = self.index.search(rows.column("row"))
        near, place = np.unique(matches.rows, return_inverse=True)
        short = rows.take(pa.array(near))
        text = shortened(short.column("row").cast(pa.large_string()))  # before it is repeated
        short = short.set_column(ROW.index("row"), "row", text)
        listed = self._listed(matches)
        for start in range(0, len(listed), HITS_AT_ONCE):
            some = listed[start : start + HITS_AT_ONCE]
            self._hits.write(self._table(short.take(pa.array(place[some])), matches, some))
        best = matches.best()
        best = best[matches.coverage[best] >= self._min_coverage]
        return {int(matches.rows[hit]): self._reason(matches, hit) for hit in best}

    def _reason(self, matches: "Matches", hit: int) -> str:
        item, entry = self.index.items[matches.items[hit]], matches.entries[hit]
        shared = "is all of" if self.index.whole[entry] else f"is a {self.index.n}-gram of"
        return (
            f"'{self.index.ngram(entry)}' {shared} {item.benchmark} item {item.id} "
            f"(coverage {matches.coverage[hit]:.2f})"
        )

    def _listed(self, matches: "Matches") -> np.ndarray:
        """Places of the hits to write: the best of each row, and of each of its benchmarks."""
        rank = np.arange(len(matches.rows)) - np.searchsorted(matches.rows, matches.rows)
        of_benchmark = matches.rows * len(self.index.items) + self._benchmark[matches.items]
        _, best = np.unique(of_benchmark, return_index=True)
        return np.union1d(np.flatnonzero(rank < LISTED_PER_ROW), best)

    def _table(self, row: pa.RecordBatch, matches: "Matches", some: np.ndarray) -> pa.Table:
        item = self._items.take(matches.items[some])
        columns = {
            **{name: row.column(name) for name in ROW},
            **{name: item.column(name) for name in ITEM},
            "ngram": [self.index.ngram(entry) for entry in matches.entries[some].tolist()],
            "coverage": matches.coverage[some],
            "whole_item": self.index.whole[matches.entries[some]],
        }
        return pa.table({name: columns[name] for name in HITS.names}, schema=HITS)


def shortened(texts: Any) -> Any:
    """A column of texts, cut at LONGEST_TEXT."""
    return pc.call_function("utf8_slice_codeunits", [texts], pc.SliceOptions(0, LONGEST_TEXT))


def count_by_source(hits: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """(source, benchmark) → its rows that share an n-gram with it, and of these the leaks."""
    columns = ["source", "benchmark", "row_number"]
    table = pq.read_table(hits, columns=[*columns, "coverage", "whole_item"])
    rows, half = (t.select(columns).group_by(columns).aggregate([]) for t in (table, _leaks(table)))
    pairs = (zip(*(t[name].to_pylist() for name in columns[:2]), strict=True) for t in (rows, half))
    shared, leaked = map(Counter, pairs)
    return {pair: (n, leaked[pair]) for pair, n in shared.items()}


def _leaks(hits: pa.Table) -> pa.Table:
    """The hits that are the benchmark problem itself. A short item that was found whole is none:
    its few words ("Prove your answer.") may stand anywhere."""
    return hits.filter((pc.field("coverage") >= LEAK_COVERAGE) & ~pc.field("whole_item"))


def _short_items(hits: pa.Table, min_coverage: float) -> list[tuple[str, str, str, int, int]]:
    """(benchmark, item, its words, rows, of these removed by no other hit) of the items shorter
    than n words that were found whole, the most frequent first."""
    others = hits.filter(~pc.field("whole_item") & (pc.field("coverage") >= min_coverage))
    removed_anyway = set(others["row_number"].to_pylist())
    rows: dict[tuple[str, str, str], set[int]] = {}
    columns = ["benchmark", "item_id", "ngram", "row_number"]
    for *item, row in zip(
        *(hits.filter(pc.field("whole_item"))[name].to_pylist() for name in columns), strict=True
    ):
        rows.setdefault(tuple(item), set()).add(row)
    counted = [(*item, len(n), len(n - removed_anyway)) for item, n in rows.items()]
    return sorted(counted, key=lambda item: (-item[3], item))


@lru_cache(maxsize=1)
def benchmark_index(
    path: Path, digest: str, n: int, normalise: Normalisation, min_words: int
) -> "NgramIndex":
    """The index of a benchmarks file of this digest: one in every process, whatever its parts."""
    from .ngrams import Item, NgramIndex

    columns = ["source", "id", "prompt"]
    rows = (row for table in row_groups(path, columns) for row in table.to_pylist())
    items = (Item(*(row[name] for name in columns)) for row in rows)
    return NgramIndex(items, n, normalise, min_words)


def decide_part(
    part: TablePart, folder: Path, *, source: Path, against: Artifact, rule: DecontaminateSettings
) -> None:
    """Write the hits of a part and, as (number of the row in the table, reason), which rows go."""
    items = against.file("kept.parquet")
    words = rule.n, rule.normalize, rule.min_words
    index = benchmark_index(items, against.digest, *words)
    reasons: list[tuple[int, str]] = []
    before = part.before
    with ArrowWriter(folder / "hits.parquet", HITS) as hits, pq.ParquetFile(source) as file:
        overlaps = Overlaps(index, rule.min_coverage, hits)
        for group in range(part.first, part.last):
            for batch in file.iter_batches(BATCH_ROWS, [group], COLUMNS, use_threads=False):
                numbers = pa.array(range(before + 1, before + len(batch) + 1), pa.int64())
                columns = [numbers, *(batch.column(name) for name in COLUMNS)]
                gone = overlaps.decide(pa.record_batch(columns, names=list(ROW)))
                reasons += [(before + row, reason) for row, reason in gone.items()]
                before += len(batch)
    (folder / REASONS).write_bytes(orjson.dumps(reasons))


def write_page(
    out: Path, index: "NgramIndex", settings: DecontaminateSettings, counts: Mapping[str, float]
) -> dict[str, float]:
    """Write the page beside `out/hits.parquet`, which it is about; returns what it counted.

    `counts` are rows kept, rejected and, among these, malformed. Memory holds no text of the hits
    but those shown.
    """
    from ..report.page import Page, render

    path, rows = out / "hits.parquet", counts["kept"] + counts["rejected"]
    malformed = counts.get("malformed", 0)
    columns = ["row_number", "benchmark", "item_id", "ngram", "coverage", "whole_item"]
    hits = pq.read_table(path, columns=columns)
    leaked, leaks = _nearest_leaks(hits, path)
    by_benchmark = _rows_by_benchmark(hits)
    shared, half, short = (set().union(*part.values()) for part in by_benchmark)
    sizes = Counter(item.benchmark for item in index.items)
    rows_of, leaked_of = ({b: len(n) for b, n in part.items()} for part in by_benchmark[:2])
    short_of = {b: len(n - by_benchmark[1][b]) for b, n in by_benchmark[2].items()}
    numbers = {"hit": len(shared), "leaked": leaked, "short": len(short - half)}
    body = render(
        "decontamination.md",
        settings=settings,
        rows=rows,
        removed=counts["rejected"] - malformed,
        malformed=malformed,
        **numbers,
        short_items=_short_items(hits, settings.min_coverage)[:NGRAMS_LISTED],
        benchmarks=[
            (b, n, *(part.get(b, 0) for part in (rows_of, leaked_of, short_of)))
            for b, n in sizes.items()
        ],
        leaks=leaks,
        common=_common_wording(hits).most_common(NGRAMS_LISTED),
        index=index,
        same=round(100 * LEAK_COVERAGE),
        listed_per_row=LISTED_PER_ROW,
    )
    subtitle = f"{rows:,.0f} rows against {len(index.items):,} benchmark items"
    page = Page("Decontamination", subtitle, f"n = {settings.n}, {settings.normalize}", body)
    (out / PAGE).write_text(page.html(), encoding="utf-8")
    return {
        "rows_any_ngram": numbers["hit"],
        "rows_coverage_50": leaked,
        "rows_short_item": numbers["short"],
        "rows_boilerplate": numbers["hit"] - leaked - numbers["short"],
        "hits": len(hits),
        **{f"rows_hit/{name}": n for name, n in sorted(rows_of.items())},
        **{f"rows_leaked/{name}": leaked_of.get(name, 0) for name in sorted(rows_of)},
        "items": len(index.items),
        "items_matched_whole": index.short_items,
        "items_without_words": index.wordless,
    }


def _nearest_leaks(hits: pa.Table, path: Path) -> tuple[int, list[Hit]]:
    """How many rows are leaks, and of the nearest ones their best hit."""
    import pyarrow.dataset as ds

    half = _leaks(hits.append_column("place", pa.array(range(len(hits)), pa.int64())))
    best = half.sort_by([("row_number", "ascending"), ("coverage", "descending")])
    first = np.flatnonzero(np.diff(best["row_number"].to_numpy(), prepend=0))
    places = best.take(first).sort_by([("coverage", "descending")])["place"].to_pylist()
    shown = ds.dataset(path).take(pa.array(places[:LEAKS_SHOWN], pa.int64()))
    return len(places), list(to_records(shown, Hit))


def _rows_by_benchmark(hits: pa.Table) -> tuple[defaultdict[str, set[int]], ...]:
    """By benchmark the rows that share anything with it, its leaks, and those in which a whole
    short item was found."""
    tables = (hits, _leaks(hits), hits.filter(pc.field("whole_item")))
    parts = tuple(defaultdict[str, set[int]](set) for _ in tables)
    for table, rows in zip(tables, parts, strict=True):
        pairs = table.group_by(["benchmark", "row_number"]).aggregate([])
        keys = (pairs[name].to_pylist() for name in ("benchmark", "row_number"))
        for name, row in zip(*keys, strict=True):
            rows[name].add(row)
    return parts


def _common_wording(hits: pa.Table) -> Counter[str]:
    """N-grams of hits that are no leaks, by the rows that have them."""
    below = hits.filter(pc.field("coverage") < LEAK_COVERAGE)
    ngrams = below.group_by("ngram").aggregate([("row_number", "count_distinct")])
    return Counter(dict(zip(*(column.to_pylist() for column in ngrams.columns), strict=True)))
