"""What rows share with benchmark items: the decision, the hits on file and the counts."""

from collections import Counter

from eval.records import Record
from eval.tables import TableWriter
from tasks.ngrams import NgramIndex, Overlap

SURELY_THE_SAME = 0.5
"""Coverage from which a hit is the benchmark problem itself rather than common wording."""


class Hit(Record):
    """One row and one benchmark item that share an n-gram, whether or not the row was removed."""

    row_id: str
    source: str
    benchmark: str
    item_id: str
    ngram: str
    coverage: float
    row: str
    item: str


class Overlaps:
    """Decides row by row, writes every hit and counts under the strict and the covering rule."""

    def __init__(self, index: NgramIndex, min_coverage: float, hits: TableWriter) -> None:
        self.index = index
        self.min_coverage = min_coverage
        self.rows_with_hits = 0
        self.rows_half_covered = 0
        self.rows_by_benchmark: Counter[str] = Counter()
        self._hits = hits

    def reason(self, row_id: str, source: str, text: str) -> str | None:
        """Why the row must go, or None. An n-gram shared at `min_coverage` or more removes it."""
        overlaps = self.index.overlaps(text)
        if not overlaps:
            return None
        best = overlaps[0]
        self.rows_with_hits += 1
        self.rows_half_covered += best.coverage >= SURELY_THE_SAME
        self.rows_by_benchmark.update({o.item.benchmark for o in overlaps})
        for overlap in overlaps:
            self._hits.write(_hit(row_id, source, text, overlap))
        if best.coverage < self.min_coverage:
            return None
        shared = "is all of" if best.whole_item else f"is a {self.index.n}-gram of"
        return (
            f"'{best.ngram}' {shared} {best.item.benchmark} item {best.item.id} "
            f"(coverage {best.coverage:.2f})"
        )

    def metrics(self) -> dict[str, float]:
        """Rows that any shared n-gram removes beside those that share half of an item."""
        return {
            "rows_any_ngram": float(self.rows_with_hits),
            "rows_coverage_50": float(self.rows_half_covered),
            "hits": float(self._hits.rows),
            "items": float(len(self.index.items)),
            "items_matched_whole": float(self.index.short_items),
            "items_without_words": float(len(self.index.wordless)),
            **{f"rows_hit/{name}": float(n) for name, n in sorted(self.rows_by_benchmark.items())},
        }


def _hit(row_id: str, source: str, text: str, overlap: Overlap) -> Hit:
    return Hit(
        row_id=row_id,
        source=source,
        benchmark=overlap.item.benchmark,
        item_id=overlap.item.id,
        ngram=overlap.ngram,
        coverage=overlap.coverage,
        row=text,
        item=overlap.item.text,
    )
