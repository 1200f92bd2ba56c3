"""Decontamination: what is removed and why, and its page, which tells leaks from common wording."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klear.configs.settings.base import key_of
from klear.configs.settings.data import DecontaminateSettings, NearMissSettings, PartsRuntime
from klear.eval.records.tables import ArrowWriter, read_table
from klear.tasks.data import semantic_contamination as module
from klear.tasks.data.contamination import (
    HITS,
    LISTED_PER_ROW,
    PAGE,
    ROW,
    Hit,
    Overlaps,
    write_page,
)
from klear.tasks.data.decontaminate import decontaminate
from klear.tasks.data.ngrams import Item, NgramIndex
from klear.tasks.data.semantic_contamination import NEAR, NearMiss, hashing_encoder, near_misses
from klear.tasks.store.store import Artifact, content_digest, scan
from tests.eval.evaluations_by_hand import math_problem
from tests.tasks.manifests_by_hand import folder_with, kept_in, rejected_in
from tests.tasks.pages_by_hand import Elements

ITEM = "How many ways are there to place nine rooks on a torus board safely?"
MANY = [f"{ITEM} {i}" if i % 7 == 0 else f"problem {i} of its own" for i in range(120)]


def folder(path: Path, source: str, *prompts: str, group: int = 1024) -> Artifact:
    folder_with(path, kept=[math_problem(p, source) for p in prompts])
    table = pq.read_table(path / "kept.parquet")
    pq.write_table(table, path / "kept.parquet", row_group_size=group)
    return Artifact.of_folder(path)


def run(tmp_path: Path, rows: list[str], items: list[str], **chosen):
    problems = folder(tmp_path / "problems", "train", *rows)
    benchmarks = folder(tmp_path / "benchmarks", "bench", *items)
    out = tmp_path / "out"
    out.mkdir(parents=True)
    settings = DecontaminateSettings(**chosen)
    metrics = decontaminate.body(out, problems, benchmarks, settings=settings)
    hits = list(read_table(out / "hits.parquet", Hit))
    return metrics, [p.prompt for p in kept_in(out)], rejected_in(out), hits


def test_a_benchmark_problem_inside_a_longer_prompt_is_removed_and_explained(tmp_path: Path):
    leaked = f"Please solve this. {ITEM} Explain."
    metrics, kept, rejected, hits = run(tmp_path, ["What is 2+2?", leaked], [ITEM])
    assert kept == ["What is 2+2?"]
    assert "9-gram of bench item" in rejected[0].reason
    assert json.loads(rejected[0].row)["prompt"] == leaked
    assert (hits[0].row, hits[0].item, hits[0].coverage) == (leaked, ITEM, 1.0)
    assert (hits[0].row_number, hits[0].row_id) == (2, rejected[0].id)
    assert hits[0].ngram == "how many ways are there to place nine rooks"
    assert metrics["kept"] == metrics["rejected"] == metrics["rejected/train"] == 1.0
    assert metrics["rows_hit/bench"] == metrics["rows_leaked/bench"] == 1.0


def digest_of(place: Path, group: int, **runtime: int) -> str:
    problems = folder(place / "problems", "train", *MANY, group=group)
    benchmarks = folder(place / "benchmarks", "bench", ITEM, "Compute $1+1$.")
    (place / "out").mkdir()
    chosen = DecontaminateSettings(runtime=PartsRuntime(**runtime))
    decontaminate.body(place / "out", problems, benchmarks, settings=chosen)
    return content_digest(scan(place / "out"))


def test_neither_parts_nor_workers_nor_row_groups_show_in_the_result(tmp_path: Path):
    digests = [
        digest_of(tmp_path / "whole", 1024),
        digest_of(tmp_path / "parts", 10, rows_per_part=30),
        digest_of(tmp_path / "rows", 1, rows_per_part=1),
        digest_of(tmp_path / "workers", 20, rows_per_part=60, workers=2),
    ]
    assert len(set(digests)) == 1
    chosen = DecontaminateSettings(runtime=PartsRuntime(rows_per_part=1, workers=2))
    assert key_of(chosen) == key_of(DecontaminateSettings())


def test_memory_does_not_grow_with_the_rows(tmp_path: Path):
    def peak(rows: int) -> int:
        place = tmp_path / str(rows)
        problems = folder(place / "p", "train", *(f"problem {i} {'x' * 400}" for i in range(rows)))
        benchmarks = folder(place / "b", "bench", ITEM)
        (place / "out").mkdir()
        tracemalloc.start()
        decontaminate.body(place / "out", problems, benchmarks, settings=DecontaminateSettings())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(9_000) < 1.5 * peak(3_000)


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
    columns = [numbers, numbers.cast(pa.string()), pa.array(["s"] * len(rows)), pa.array(rows)]
    with ArrowWriter(out / "hits.parquet", HITS) as hits:
        gone = Overlaps(index, 0.0, hits).decide(pa.record_batch(columns, names=list(ROW)))
    counts = {"kept": len(rows) - len(gone), "rejected": len(gone)}
    figures = write_page(out, index, DecontaminateSettings(), counts)
    return Elements((out / PAGE).read_text()), figures


def test_leaks_and_wording_are_apart_and_no_text_as_markup(tmp_path: Path):
    text, figures = page_of(tmp_path, ROWS, ITEMS)
    names = ("rows_any_ngram", "rows_coverage_50", "rows_boilerplate", "items_without_words")
    assert [figures[name] for name in names] == [4, 2, 2, 1]
    lines = {row[0]: row[1:] for row in text.rows if row}
    # Strict rule, half covered, a short item, wording only.
    assert lines["aime, 2 items"] == ["4", "2", "0", "2"]
    assert lines["hmmt, 3 items"] == ["3", "0", "0", "3"]
    assert lines[" ".join(WORDING.split()[:9])] == ["3"]
    shares = [int(s.split(" %")[0]) for s in text.summary]
    assert len(shares) == 2
    assert shares == sorted(shares, reverse=True)
    assert all(" ".join(LEAK.split()[:9]) in line for line in text.summary)
    assert "script" not in text.tags
    assert sum(EVIL in shown for shown in text.pre) >= 2


def test_items_of_few_words_are_shown_apart_and_min_words_leaves_them_out(tmp_path: Path):
    """Three words stand in ten unrelated rows: no leaks. One row holds a long item, too."""
    rows = [f"Take the number {i} and add {i * i}. Prove your answer." for i in range(10)]
    rows += [f"{ITEM} Prove your answer.", "of its own"]
    metrics, kept, _, _ = run(tmp_path / "all", rows, ["Prove your answer.", ITEM])
    assert kept == ["of its own"]
    names = ("rows_any_ngram", "rows_coverage_50", "rows_short_item", "rows_boilerplate")
    assert [metrics[name] for name in names] == [11, 1, 10, 0]
    page = Elements((tmp_path / "all" / "out" / PAGE).read_text())
    lines = {row[0]: row[1:] for row in page.rows if row}
    assert lines["bench, 2 items"] == ["11", "1", "10", "0"]
    assert ["prove your answer", "11", "10"] in lines.values()
    metrics, kept, _, _ = run(tmp_path / "few", rows, ["Prove your answer.", ITEM], min_words=4)
    assert kept == [*rows[:10], "of its own"]
    assert (metrics["items_without_words"], metrics["items_matched_whole"]) == (1, 0)


def test_a_row_of_common_wording_lists_its_best_hits_and_the_best_of_each_benchmark(tmp_path: Path):
    many = LISTED_PER_ROW + 20
    items = [Item("big", str(i), f"{WORDING} x{i} y{i}") for i in range(many)]
    items += [Item("small", "7", f"a much longer item that ends so {WORDING} z")]
    _, figures = page_of(tmp_path, [WORDING], items)
    listed = [hit.benchmark for hit in read_table(tmp_path / "hits.parquet", Hit)]
    assert listed == ["big"] * LISTED_PER_ROW + ["small"]
    assert figures["rows_hit/big"] == figures["rows_hit/small"] == 1


PLANE = {"zero": 0.0, "ten": 10.0, "sixty": 60.0, "ninety": 90.0}


def degrees(texts: list[str]) -> np.ndarray:
    """Unit vectors of the plane, at the angle that a text begins with."""
    angles = np.deg2rad([PLANE[text.split()[0]] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], 1)


@pytest.mark.parametrize("rows_per_part", [1, 4096])
def test_of_each_row_and_benchmark_the_nearest_item_is_listed(tmp_path, monkeypatch, rows_per_part):
    """cos 10° = 0.985, cos 30° = 0.866, cos 50° = 0.643. One row has all words of its item: n-grams
    find it. Computed row by row it is the same."""
    monkeypatch.setattr(module, "encoder_of", lambda *_: degrees)
    items_of_two = [math_problem("ten a"), math_problem("ninety b"), math_problem("zero c", "t")]
    others = ("zero c", "x"), ("sixty d", "x"), ("sixty e", "y"), ("ten f", "y")
    rows = folder_with(tmp_path / "rows", kept=items_of_two)
    items = folder_with(tmp_path / "items", kept=[math_problem(*other) for other in others])
    decontaminate.body(rows.folder / "out", rows, items, settings=DecontaminateSettings())
    flagged, out = Artifact.of_folder(rows.folder / "out"), items.folder / "out"
    settings = NearMissSettings(cosine=0.8, runtime=PartsRuntime(rows_per_part=rows_per_part))
    metrics = near_misses.body(out, rows, items, flagged, settings=settings)
    pairs = read_table(out / NEAR, NearMiss)
    assert [(p.row_number, p.row, p.benchmark, p.item, p.cosine, p.leak) for p in pairs] == [
        (1, "ten a", "x", "zero c", 0.9848, False),
        (1, "ten a", "y", "ten f", 1.0, False),
        (2, "ninety b", "x", "sixty d", 0.866, False),
        (2, "ninety b", "y", "sixty e", 0.866, False),
        (3, "zero c", "x", "zero c", 1.0, True),
        (3, "zero c", "y", "ten f", 0.9848, False),
    ]
    counted = {"near/s/x": 2, "near/s/y": 2, "near/t/y": 1}
    assert dict(metrics) == {"near": 5, "leaks": 1, **counted}


def test_the_hashing_encoder_looks_past_numbers_and_sees_words():
    texts = [
        "A train goes 30 km in 2 hours. How fast is it?",
        "A train goes 5,500 km in 12.5 hours. How fast is it?",
        "Find the remainder of 30 divided by 2.",
        "",
    ]
    vectors = hashing_encoder(texts)(texts).toarray()
    cosines = vectors @ vectors.T
    assert cosines[0, 1] == pytest.approx(1)
    assert cosines[0, 2] < 0.3
    assert not cosines[3].any()
