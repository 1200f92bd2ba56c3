"""The page of a decontamination: leaks and common wording apart, and no text becomes markup."""

from pathlib import Path

import pyarrow as pa
import pytest

from eval.tables import ArrowWriter
from tasks.data.overlaps.decontamination_page import (
    PAGE,
    Decided,
    OverlapCounts,
    count_hits,
    hits_at,
    marked,
    write_page,
)
from tasks.data.overlaps.ngrams import Item, NgramIndex
from tasks.data.overlaps.overlaps import HITS, LISTED_PER_ROW, Hit, Overlaps, Rows
from tasks.data.words import Normalisation
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
    ("math", "what is two and two"),
    ("math", f"{EVIL} {LEAK} {EVIL}"),
    ("math", f"A third task {WORDING} m"),
    ("code", f"A fourth task {WORDING} n"),
    ("code", f"{LEAK}, and {WORDING} it"),
]


def page_of(
    out: Path, rows: list[tuple[str, str]], items: list[Item]
) -> tuple[Elements, OverlapCounts]:
    out.mkdir(exist_ok=True)
    index = NgramIndex(items, 9, "alnum")
    texts, sources = pa.array([t for _, t in rows], pa.string()), pa.array([s for s, _ in rows])
    numbers = pa.array(range(1, len(rows) + 1), pa.int64())
    with ArrowWriter(out / "hits.parquet", HITS) as hits:
        decision = Overlaps(index, 0.0, hits).decide(
            Rows(numbers, numbers.cast(pa.string()), sources, texts)
        )
    by_source = {s: sum(s == other for other, _ in rows) for s, _ in rows}
    decided = Decided(by_source, len(decision.reasons), 0.0, "alnum", decision.unlisted)
    counts = write_page(out, index, decided)
    return Elements((out / PAGE).read_text()), counts


@pytest.fixture
def page(tmp_path: Path) -> tuple[Elements, OverlapCounts]:
    return page_of(tmp_path, ROWS, ITEMS)


def test_leaks_and_wording_are_counted_apart_by_benchmark_and_source(page):
    text, counts = page
    assert (*counts.rows, counts.rows.below_half) == (4, 2, 2)
    lines = {row[0]: row[1:] for row in text.rows if row}
    # Items, strict rule, half covered, wording only, items leaked.
    assert lines["aime"] == ["2", "4", "2", "2", "1 50.00 %"]
    assert lines["hmmt"] == ["3", "3", "0", "3", "0 0.00 %"]
    # Rows, strict rule, half covered, wording only.
    assert lines["math"] == ["3", "2", "1", "1"]
    assert lines["code"] == ["2", "2", "1", "1"]
    assert lines[" ".join(WORDING.split()[:9])] == ["3", "2"]


def test_the_best_covered_come_first_with_the_shared_ngram_marked_in_both_texts(page):
    text, _ = page
    shares = [int(s.split(" %")[0]) for s in text.summary]
    leaks = [share for share in shares if share >= 50]
    assert len(leaks) == 2
    assert leaks == sorted(leaks, reverse=True)
    row, item = text.pre[:2]
    for shown in (row, item):
        marked = shown[shown.index("⟦") + 1 : shown.index("⟧")]
        assert marked == " ".join(LEAK.split()[:9])


def test_no_text_of_a_row_or_an_item_becomes_markup(page):
    text, _ = page
    assert "script" not in text.tags
    assert sum(EVIL in shown for shown in text.pre) >= 2


def test_a_page_about_nothing_says_so(tmp_path: Path):
    text, counts = page_of(tmp_path, ROWS[:1], ITEMS)
    assert counts.metrics()["rows_any_ngram"] == 0.0
    assert text.pre == []


def test_a_row_of_common_wording_lists_its_best_hits_and_the_best_of_each_benchmark(tmp_path: Path):
    many = LISTED_PER_ROW + 20
    items = [Item("big", str(i), f"{WORDING} x{i} y{i}") for i in range(many)]
    items += [Item("small", "7", f"a much longer item that ends so {WORDING} z")]
    _, counts = page_of(tmp_path, [("s", WORDING)], items)
    listed = hits_at(tmp_path / "hits.parquet", list(range(counts.hits)))
    assert [h.benchmark for h in listed] == ["big"] * LISTED_PER_ROW + ["small"]
    assert {b: c.any_ngram for b, c in counts.by_benchmark.items()} == {"big": 1, "small": 1}


def test_examples_are_read_back_in_the_order_asked_for(tmp_path: Path):
    page_of(tmp_path, ROWS, ITEMS)
    leaks = count_hits(tmp_path / "hits.parquet").leaks
    (best,) = hits_at(tmp_path / "hits.parquet", leaks[:1])
    assert isinstance(best, Hit)
    assert (best.row_number, best.item_id) == (2, "1")
    last, first = hits_at(tmp_path / "hits.parquet", [3, 0])
    assert last.row_number > first.row_number


@pytest.mark.parametrize(
    ("text", "ngram", "normalise", "shown"),
    [
        (r"Let $\frac{1}{2}$ be", "frac 1 2", "alnum", r"Let $\⟦frac{1}{2⟧}$ be"),
        ("Find  THE\nsum, now", "the sum,", "whitespace", "Find  ⟦THE\nsum,⟧ now"),
        ("so x² is", "x 2 is", "alnum", "so ⟦x² is⟧"),
        ("no such words", "other words", "alnum", "no such words"),
        ("a a b", "a b", "alnum", "a ⟦a b⟧"),
    ],
)
def test_the_words_are_marked_where_they_stand(
    text: str, ngram: str, normalise: Normalisation, shown: str
):
    assert marked(text, ngram, normalise, around=100) == shown


def test_a_long_text_is_cut_around_the_mark():
    text = "x " * 500 + "here it is" + " y" * 500
    assert marked(text, "here it is", "alnum", around=4) == "… x x ⟦here it is⟧ y y …"
    assert marked(text, "not there", "alnum", around=4) == "x x x x  …"
