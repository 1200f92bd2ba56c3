import json
import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.settings.base import key_of
from configs.settings.data import DecontaminateSettings, PartsRuntime
from eval.records import Problem, Rejected
from eval.tables import read_table, write_table
from tasks.data import decontaminate as module
from tasks.data.decontaminate import decontaminate
from tasks.data.overlaps.overlaps import Hit
from tasks.data.words import RULES
from tasks.store.store import SCRATCH, Artifact, content_digest, scan

ITEM = "How many ways are there to place nine rooks on a torus board safely?"


def folder(path: Path, source: str, *prompts: str, group: int = 1024) -> Artifact:
    path.mkdir(parents=True)
    rows = (Problem(domain="math", prompt=p, answer="1", source=source) for p in prompts)
    write_table(path / "kept.parquet", Problem, rows)
    table = pq.read_table(path / "kept.parquet")
    pq.write_table(table, path / "kept.parquet", row_group_size=group)
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


def test_min_coverage_keeps_common_wording_but_still_reports_it(tmp_path: Path):
    words = ITEM.rstrip("?").split()
    one_shared = " ".join(words[:9]) + " and something entirely different follows in this prompt"
    share = 1 / (len(words) - 9 + 1)
    metrics, kept, _, hits = run(tmp_path, [one_shared, ITEM], [ITEM], min_coverage=0.5)
    assert kept == [one_shared]
    assert sorted(h.coverage for h in hits) == [pytest.approx(share), 1.0]
    assert metrics["rows_any_ngram"] == 2.0
    assert metrics["rows_coverage_50"] == metrics["rows_boilerplate"] == metrics["rejected"] == 1.0


def test_a_short_item_is_found_whole(tmp_path: Path):
    rows = ["Compute $\\sin 60^\\circ$ exactly.", "Compute the sine of sixty degrees."]
    _, kept, rejected, _ = run(tmp_path, rows, ["Compute $\\sin 60^\\circ$."])
    assert kept == rows[1:]
    assert "'compute sin 60 circ' is all of" in rejected[0].reason


def ngrams(words: list[str], n: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


VOCABULARY = st.lists(st.sampled_from(["a", "B", "c.", "$d$", "é"]), min_size=4, max_size=25)


@given(
    rows=st.lists(VOCABULARY.map(" ".join), max_size=8),
    items=st.lists(VOCABULARY.map(" ".join), min_size=1, max_size=4),
    normalise=st.sampled_from(["alnum", "whitespace"]),
)
@settings(max_examples=40)
def test_nothing_kept_shares_an_ngram_and_the_order_stays(
    tmp_path_factory: pytest.TempPathFactory, rows, items, normalise
):
    place = tmp_path_factory.mktemp("property")
    rule = RULES[normalise]
    _, kept, rejected, _ = run(place, rows, items, n=4, normalize=normalise)
    banned = {gram for item in items for gram in ngrams(rule(item), 4)}
    shares = [not banned.isdisjoint(ngrams(rule(row), 4)) for row in rows]
    assert kept == [row for row, shared in zip(rows, shares, strict=True) if not shared]
    gone = [json.loads(r.row)["prompt"] for r in rejected]
    assert gone == [row for row, shared in zip(rows, shares, strict=True) if shared]


def many_rows() -> list[str]:
    return [f"{ITEM} {i}" if i % 7 == 0 else f"problem {i} of its own" for i in range(120)]


def digest_of(place: Path, group: int, **runtime: int) -> str:
    problems = folder(place / "problems", "train", *many_rows(), group=group)
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


def test_a_killed_run_resumes_at_its_finished_parts(tmp_path: Path, monkeypatch):
    problems = folder(tmp_path / "problems", "train", *many_rows(), group=40)
    benchmarks = folder(tmp_path / "benchmarks", "bench", ITEM)
    chosen = DecontaminateSettings(runtime=PartsRuntime(rows_per_part=40))
    computed: list[int] = []
    decide = module.decide_part

    def killed_once(part, folder, **rest):
        computed.append(part.before)
        if computed == [0, 40]:
            raise KeyboardInterrupt
        decide(part, folder, **rest)

    monkeypatch.setattr(module, "decide_part", killed_once)
    out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt):
        decontaminate.body(out, problems, benchmarks, settings=chosen)
    decontaminate.body(out, problems, benchmarks, settings=chosen)
    assert computed == [0, 40, 40, 80]
    undisturbed.mkdir()
    decontaminate.body(undisturbed, problems, benchmarks, settings=chosen)
    assert content_digest(scan(out)) == content_digest(scan(undisturbed))
    assert (out / SCRATCH).exists()


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


def test_tables_without_rows_are_no_error(tmp_path: Path):
    metrics, kept, _, hits = run(tmp_path, [], [ITEM])
    assert (metrics["kept"], kept, hits) == (0.0, [], [])
