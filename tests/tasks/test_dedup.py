import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klear.configs.settings.data import DedupSettings, PartsRuntime
from klear.eval.records import Problem, Rejected, normalise_prompt
from klear.eval.tables import read_table, write_table
from klear.tasks.data.dedup import dedup
from klear.tasks.store.store import Artifact, content_digest, scan

LONG = " ".join(f"word{i}" for i in range(40))


def problem(prompt: str, source: str = "a") -> Problem:
    return Problem(domain="math", prompt=prompt, answer="1", source=source)


def run(place: Path, rows: list[Problem], **chosen):
    inputs, out = place / "in", place / "out"
    inputs.mkdir(parents=True)
    out.mkdir()
    write_table(inputs / "kept.parquet", Problem, rows)
    metrics = dedup.body(out, Artifact.of_folder(inputs), settings=DedupSettings(**chosen))
    kept = list(read_table(out / "kept.parquet", Problem))
    return metrics, kept, list(read_table(out / "rejected.parquet", Rejected))


def duplicates(place: Path) -> list[dict]:
    return pq.read_table(place / "out" / "duplicates.parquet").to_pylist()


def test_the_first_problem_of_a_query_stays_and_the_others_name_it(tmp_path: Path):
    rows = [problem("Find x.", "a"), problem("Find y."), problem("FIND  x.", "b")]
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == rows[:2]
    assert rejected[0].reason == f"same query as {rows[0].id}"
    assert Problem.model_validate_json(rejected[0].row) == rows[2]
    assert metrics["kept/a"] == 2.0
    assert metrics["rejected/b"] == metrics["rejected_exact"] == metrics["rejected"] == 1.0
    first = {"duplicate_of": rows[0].id, "duplicate_of_row": 0, "duplicate_of_source": "a"}
    gone = {"row": 2, "id": rows[0].id, "source": "b", "kind": "exact"}
    assert duplicates(tmp_path) == [{**gone, **first}]


def test_near_duplicates_go_only_when_asked_for(tmp_path: Path):
    rows = [problem(LONG), problem("another"), problem(LONG + " more")]
    _, kept, _ = run(tmp_path / "exact", rows)
    assert kept == rows
    metrics, kept, rejected = run(tmp_path / "near", rows, near=True)
    assert kept == rows[:2]
    assert rejected[0].reason == f"near-duplicate of {rows[0].id}"
    assert metrics["rejected_near"] == 1.0
    # 36 shingles of five words against 37, all 36 shared.
    pairs = pq.read_table(tmp_path / "near" / "out" / "near_pairs.parquet").to_pylist()
    assert pairs == [{"id": rows[0].id, "duplicate_id": rows[2].id, "jaccard": 36 / 37}]


def test_a_repeat_of_a_near_duplicate_names_the_problem_that_is_kept(tmp_path: Path):
    rows = [problem(LONG), problem(LONG + " more", "b"), problem(LONG.upper() + " MORE", "c")]
    _, kept, rejected = run(tmp_path, rows, near=True)
    assert kept == rows[:1]
    assert rejected[1].reason == f"same query as {rows[1].id}, near-duplicate of {rows[0].id}"
    named = [(d["kind"], d["source"], d["duplicate_of"]) for d in duplicates(tmp_path)]
    assert named == [("near", "b", rows[0].id), ("exact", "c", rows[0].id)]


WORDS = st.lists(st.sampled_from(["a", "B", "b", "c ", "ç"]), min_size=1, max_size=12)


@given(st.lists(WORDS.map(" ".join), max_size=12), st.booleans())
@settings(max_examples=25, deadline=None)
def test_dedup_is_idempotent_keeps_the_order_and_loses_no_row(tmp_path_factory, prompts, near):
    place = tmp_path_factory.mktemp("dedup")
    rows = [problem(p) for p in prompts]
    _, kept, rejected = run(place / "once", rows, near=near)
    assert len(kept) + len(rejected) == len(rows)
    again_metrics, again, _ = run(place / "twice", kept, near=near)
    assert again == kept
    assert again_metrics["rejected"] == 0.0
    firsts: dict[str, str] = {}
    for prompt in prompts:
        firsts.setdefault(normalise_prompt(prompt), prompt)
    order = list(firsts.values())
    assert [k.prompt for k in kept] == [p for p in order if p in {k.prompt for k in kept}]
    if not near:
        assert len(kept) == len(order)
    standing = {d["row"]: d["duplicate_of"] for d in duplicates(place / "once")}
    gone = [row for row, p in enumerate(prompts) if p not in {k.prompt for k in kept}]
    assert set(gone) <= standing.keys()
    assert set(standing.values()) <= {k.id for k in kept}


ROWS = 300
ROWS_PER_PART = 40


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    """A table in row groups of 20 rows with repeats and near-repeats."""
    folder = tmp_path_factory.mktemp("problems")
    chance = random.Random(0)
    prompts: list[str] = []
    for number in range(ROWS):
        if number % 5 == 4:
            prompts.append(chance.choice(prompts).upper() + chance.choice(["", " é more"]))
        else:
            prompts.append(" ".join(f"w{chance.randrange(500)}" for _ in range(40)))
    rows = [problem(p, chance.choice("ab")) for p in prompts]
    write_table(folder / "kept.parquet", Problem, rows)
    table = pq.read_table(folder / "kept.parquet")
    pq.write_table(table, folder / "kept.parquet", row_group_size=20)
    return folder


def in_parts(rows: int, workers: int = 1) -> DedupSettings:
    return DedupSettings(near=True, runtime=PartsRuntime(rows_per_part=rows, workers=workers))


def digest_of(problems: Path, out: Path, chosen: DedupSettings) -> tuple[str, dict[str, float]]:
    """The digest of what is published, and the metrics."""
    out.mkdir(exist_ok=True)
    metrics = dedup.body(out, Artifact.of_folder(problems), settings=chosen)
    return content_digest(scan(out)), dict(metrics)


@pytest.mark.parametrize(("rows", "workers"), [(1, 1), (ROWS_PER_PART, 1), (90, 2)])
def test_results_depend_on_neither_the_part_size_nor_the_workers(tmp_path, problems, rows, workers):
    whole = digest_of(problems, tmp_path / "whole", in_parts(10**6))
    assert digest_of(problems, tmp_path / "parts", in_parts(rows, workers)) == whole
    found = whole[1]
    assert min(found["rejected_exact"], found["rejected_near"]) >= 1.0
