"""The page of a decontamination: leaks and common wording apart, and no text becomes markup."""

from pathlib import Path

import pyarrow as pa

from configs.settings.data import DecontaminateSettings
from eval.tables import ArrowWriter, read_table
from tasks.data.decontamination_page import PAGE, write_page
from tasks.data.ngrams import Item, NgramIndex
from tasks.data.overlaps import HITS, LISTED_PER_ROW, ROW, Hit, Overlaps
from tests.tasks.pages_by_hand import Elements

WORDING = "where m and n are relatively prime positive integers find"
LEAK = "a torus board holds nine rooks so that none of them attacks another"
EVIL = "</pre><script>alert(1)</script>"
ITEMS = [
    Item("aime", "1", f"{LEAK} {EVIL}"),
    Item("aime", "2", f"Some quite long story about ships and harbours {WORDING} m plus n"),
    Item("hmmt", "1", f"Another tale of nine cities and their many roads {WORDING} the sum"),
    Item("hmmt", "2", "∀ ∃"),
    Item("hmmt", "3", "Compute 5!"),
]
ROWS = [
    "what is two and two",
    f"{EVIL} {LEAK} {EVIL}",
    f"A third task {WORDING} m",
    f"A fourth task {WORDING} n",
    f"{LEAK}, and {WORDING} it",
]


def page_of(out: Path, rows: list[str], items: list[Item]) -> tuple[Elements, dict[str, float]]:
    out.mkdir(exist_ok=True)
    index = NgramIndex(items, 9, "alnum")
    numbers = pa.array(range(1, len(rows) + 1), pa.int64())
    told = [numbers, numbers.cast(pa.string()), pa.array(["s"] * len(rows)), pa.array(rows)]
    with ArrowWriter(out / "hits.parquet", HITS) as hits:
        gone = Overlaps(index, 0.0, hits).decide(pa.record_batch(told, names=list(ROW)))
    figures = write_page(out, index, DecontaminateSettings(), rows=len(rows), removed=len(gone))
    return Elements((out / PAGE).read_text()), figures


def test_leaks_and_wording_are_apart_and_no_text_as_markup(
    tmp_path: Path,
):
    text, figures = page_of(tmp_path, ROWS, ITEMS)
    names = ("rows_any_ngram", "rows_coverage_50", "rows_boilerplate", "items_without_words")
    assert [figures[name] for name in names] == [4, 2, 2, 1]
    lines = {row[0]: row[1:] for row in text.rows if row}
    # Strict rule, half covered, wording only.
    assert lines["aime, 2 items"] == ["4", "2", "2"]
    assert lines["hmmt, 3 items"] == ["3", "0", "3"]
    assert lines[" ".join(WORDING.split()[:9])] == ["3"]
    shares = [int(s.split(" %")[0]) for s in text.summary]
    assert len(shares) == 2
    assert shares == sorted(shares, reverse=True)
    assert all(" ".join(LEAK.split()[:9]) in line for line in text.summary)
    assert "script" not in text.tags
    assert sum(EVIL in shown for shown in text.pre) >= 2


def test_a_page_about_nothing_says_so(tmp_path: Path):
    text, figures = page_of(tmp_path, ROWS[:1], ITEMS)
    assert (figures["rows_any_ngram"], text.pre) == (0.0, [])


def test_a_row_of_common_wording_lists_its_best_hits_and_the_best_of_each_benchmark(tmp_path: Path):
    many = LISTED_PER_ROW + 20
    items = [Item("big", str(i), f"{WORDING} x{i} y{i}") for i in range(many)]
    items += [Item("small", "7", f"a much longer item that ends so {WORDING} z")]
    _, figures = page_of(tmp_path, [WORDING], items)
    listed = [hit.benchmark for hit in read_table(tmp_path / "hits.parquet", Hit)]
    assert listed == ["big"] * LISTED_PER_ROW + ["small"]
    assert figures["rows_hit/big"] == figures["rows_hit/small"] == 1
