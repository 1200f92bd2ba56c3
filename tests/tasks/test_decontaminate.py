import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.data_stages import DecontaminateSettings
from eval.records import Problem, Rejected
from eval.tables import read_table, write_table
from tasks.decontaminate import decontaminate
from tasks.ngrams import Item, NgramIndex, ngrams
from tasks.overlaps import Hit
from tasks.store import Artifact

DATA = Path(__file__).parents[3] / "shared" / "data"
ITEM = "How many ways are there to place nine rooks on a torus board safely?"


def texts(name: str, field: str = "problem") -> list[str]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs ../shared/data/{name}")
    with gzip.open(path, "rt") as lines:
        return [json.loads(line)[field] for line in lines]


def folder(path: Path, source: str, *prompts: str) -> Artifact:
    path.mkdir()
    rows = (Problem(domain="math", prompt=p, answer="1", source=source) for p in prompts)
    write_table(path / "kept.parquet", Problem, rows)
    return Artifact.of_folder(path)


def run(tmp_path: Path, rows: list[str], items: list[str], **chosen):
    problems = folder(tmp_path / "problems", "train", *rows)
    benchmarks = folder(tmp_path / "benchmarks", "bench", *items)
    out = tmp_path / "out"
    out.mkdir()
    metrics = decontaminate.body(
        out, problems, benchmarks, settings=DecontaminateSettings(**chosen)
    )
    kept = [p.prompt for p in read_table(out / "kept.parquet", Problem)]
    rejected = list(read_table(out / "rejected.parquet", Rejected))
    return metrics, kept, rejected, list(read_table(out / "hits.parquet", Hit))


def index_of(items: list[str], normalise="alnum", n=9) -> NgramIndex:
    return NgramIndex([Item("bench", str(i), t) for i, t in enumerate(items)], n, normalise)


def test_a_benchmark_problem_inside_a_longer_prompt_is_removed_and_explained(tmp_path: Path):
    leaked = f"Please solve this. {ITEM} Explain."
    metrics, kept, rejected, hits = run(tmp_path, ["What is 2+2?", leaked], [ITEM])
    assert kept == ["What is 2+2?"]
    assert "9-gram of bench item" in rejected[0].reason
    assert json.loads(rejected[0].row)["prompt"] == leaked
    assert (hits[0].row, hits[0].item, hits[0].coverage) == (leaked, ITEM, 1.0)
    assert hits[0].ngram == "how many ways are there to place nine rooks"
    assert metrics["kept"] == metrics["rejected"] == metrics["rejected/train"] == 1.0


def test_min_coverage_keeps_common_wording_but_still_reports_it(tmp_path: Path):
    words = ITEM.rstrip("?").split()
    one_shared = " ".join(words[:9]) + " and something entirely different follows in this prompt"
    share = 1 / (len(words) - 9 + 1)
    metrics, kept, _, hits = run(tmp_path, [one_shared, ITEM], [ITEM], min_coverage=0.5)
    assert kept == [one_shared]
    assert sorted(h.coverage for h in hits) == [pytest.approx(share), 1.0]
    assert metrics["rows_any_ngram"] == 2.0
    assert metrics["rows_coverage_50"] == metrics["rejected"] == 1.0


def test_a_short_item_is_found_whole(tmp_path: Path):
    rows = ["Compute $\\sin 60^\\circ$ exactly.", "Compute the sine of sixty degrees."]
    _, kept, rejected, _ = run(tmp_path, rows, ["Compute $\\sin 60^\\circ$."])
    assert kept == rows[1:]
    assert "'compute sin 60 circ' is all of" in rejected[0].reason


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_kept_row_shares_an_ngram(data: st.DataObject):
    vocabulary = st.lists(st.sampled_from(["a", "B", "c.", "$d$"]), min_size=4, max_size=25)
    rows = data.draw(st.lists(vocabulary.map(" ".join), max_size=8))
    items = data.draw(st.lists(vocabulary.map(" ".join), min_size=1, max_size=4))
    index = index_of(items, n=4)
    banned = {g for item in items for g in ngrams(index.words(item), 4)}
    for row in rows:
        clean = banned.isdisjoint(ngrams(index.words(row), 4))
        assert clean == (index.overlaps(row) == [])


def test_memory_does_not_grow_with_the_rows(tmp_path: Path):
    def peak(rows: int) -> int:
        place = tmp_path / str(rows)
        place.mkdir()
        problems = folder(place / "p", "train", *(f"problem {i} {'x' * 400}" for i in range(rows)))
        benchmarks = folder(place / "b", "bench", ITEM)
        (place / "out").mkdir()
        tracemalloc.start()
        decontaminate.body(place / "out", problems, benchmarks, settings=DecontaminateSettings())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(9_000) < 1.5 * peak(3_000)


def pairs(items: list[str], rows: list[str], normalise, coverage: float) -> set[tuple[int, str]]:
    index = index_of(items, normalise)
    overlaps = ((i, o) for i, row in enumerate(rows) for o in index.overlaps(row))
    return {(i, o.item.id) for i, o in overlaps if o.coverage >= coverage}


def test_alnum_finds_every_copy_of_aime24_in_other_typesetting():
    items = texts("aime24/test.jsonl.gz")
    rows = texts("aimo_validation_aime/train.jsonl.gz", "question")
    by_alnum = pairs(items, rows, "alnum", 0.25)
    by_whitespace = pairs(items, rows, "whitespace", 0.25)
    assert {item for _, item in by_alnum} == {str(i) for i in range(len(items))}
    assert len({item for _, item in by_whitespace}) < len(items)


def test_alnum_loses_no_real_copy_that_the_published_rule_finds():
    # Not a superset hit by hit: "= a + b + c + d = 9" has nine words only if signs are words.
    items = texts("math500/test.jsonl.gz") + texts("aime24/test.jsonl.gz")
    rows = texts("deepscaler/train.jsonl.gz")
    real = pairs(items, rows, "whitespace", 0.8)
    assert real
    assert real <= pairs(items, rows, "alnum", 0.5)


def test_common_wording_is_most_of_what_the_strict_rule_removes():
    names = ("aime24", "aime25", "hmmt_feb_2025", "math500")
    items = [t for name in names for t in texts(f"{name}/test.jsonl.gz")]
    index = index_of(items)
    best = [o[0].coverage for t in texts("deepscaler/train.jsonl.gz") if (o := index.overlaps(t))]
    same_problem = sum(c >= 0.5 for c in best)
    assert 0 < same_problem < 0.1 * len(best)


def test_most_of_leetcode_after_july_2024_is_in_livecodebench():
    index = index_of(texts("livecodebench/problems_v6.jsonl.gz", "question_content"))
    rows = texts("leetcode/v0.3.1_test.jsonl.gz", "problem_description")
    leaked = [o for r in rows if (o := index.overlaps(r)) and o[0].coverage >= 0.5]
    assert len(leaked) > 0.5 * len(rows)
