import json
import tracemalloc
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from configs.settings.base import key_of
from configs.settings.data import DecontaminateSettings, PartsRuntime
from eval.records import Problem, Rejected
from eval.tables import read_table, write_table
from tasks.data.decontaminate import decontaminate
from tasks.data.overlaps import Hit
from tasks.store.store import Artifact, content_digest, scan

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
