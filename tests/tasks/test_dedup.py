import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.data_stages import DedupSettings
from eval.records import Problem, Rejected, normalise_prompt
from eval.tables import read_table, write_table
from tasks.dedup import NearDuplicates, dedup, exact_duplicates
from tasks.store import Artifact

DATA = Path(__file__).parents[3] / "shared" / "data"


def problem(prompt: str, source: str = "a", **fields) -> Problem:
    return Problem(domain="math", prompt=prompt, answer="1", source=source, **fields)


def run(place: Path, rows: list[Problem], **chosen):
    inputs, out = place / "in", place / "out"
    inputs.mkdir(parents=True)
    out.mkdir()
    write_table(inputs / "kept.parquet", Problem, rows)
    chosen_settings = DedupSettings(**chosen)
    metrics = dedup.body(out, Artifact.of_folder(inputs), settings=chosen_settings)
    kept = list(read_table(out / "kept.parquet", Problem))
    return metrics, kept, list(read_table(out / "rejected.parquet", Rejected))


def test_the_first_problem_of_a_query_stays_and_the_others_name_it(tmp_path: Path):
    rows = [problem("Find x.", "a"), problem("Find y."), problem("FIND  x.", "b", id="other")]
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == rows[:2]
    assert rejected[0].reason == f"same query as {rows[0].id}"
    assert Problem.model_validate_json(rejected[0].row) == rows[2]
    assert metrics["kept/a"] == 2.0
    assert metrics["rejected/b"] == metrics["rejected_exact"] == metrics["rejected"] == 1.0


def test_typesetting_of_unicode_does_not_make_another_query():
    assert exact_duplicates(["ﬁnd x", "find\u00a0x", "find y"]) == {1: 0}


def test_an_id_used_twice_for_other_queries_is_rejected_with_that_reason(tmp_path: Path):
    rows = [problem("Find x.", id="7"), problem("Find y.", id="7")]
    _, kept, rejected = run(tmp_path, rows)
    assert kept == rows[:1]
    assert rejected[0].reason == "id 7 already names another query"


def test_near_duplicates_go_only_when_asked_for(tmp_path: Path):
    words = [f"word{i}" for i in range(40)]
    rows = [problem(" ".join(words)), problem("another"), problem(" ".join([*words, "more"]))]
    _, kept, _ = run(tmp_path / "exact", rows)
    assert kept == rows
    metrics, kept, rejected = run(tmp_path / "near", rows, near=True)
    assert kept == rows[:2]
    assert rejected[0].reason == f"near-duplicate of {rows[0].id}"
    assert metrics["rejected_near"] == 1.0
    pairs = list(read_table(tmp_path / "near" / "out" / "near_pairs.parquet", NearDuplicates))
    # 36 shingles of five words against 37, all 36 shared.
    assert pairs == [NearDuplicates(id=rows[0].id, duplicate_id=rows[2].id, jaccard=36 / 37)]


WORDS = st.lists(st.sampled_from(["a", "B", "b", "c "]), min_size=1, max_size=12).map(" ".join)


@given(st.lists(WORDS, max_size=12), st.booleans())
@settings(max_examples=25, deadline=None)
def test_dedup_is_idempotent_and_loses_no_row(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str], near: bool
):
    place = tmp_path_factory.mktemp("dedup")
    rows = [problem(p) for p in prompts]
    _, kept, rejected = run(place / "once", rows, near=near, shingle=2)
    assert len(kept) + len(rejected) == len(rows)
    again_metrics, again, _ = run(place / "twice", kept, near=near, shingle=2)
    assert again == kept
    assert again_metrics["rejected"] == 0.0
    firsts: dict[str, str] = {}
    for prompt in prompts:
        firsts.setdefault(normalise_prompt(prompt), prompt)
    if not near:
        assert [k.prompt for k in kept] == list(firsts.values())


def test_deepscaler_repeats_are_counted():
    path = DATA / "deepscaler" / "train.jsonl.gz"
    if not path.exists():
        pytest.skip("needs ../shared/data/deepscaler/train.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        prompts = [json.loads(line)["problem"] for line in lines]
    repeats = exact_duplicates(prompts)
    assert len(repeats) == len(prompts) - len({normalise_prompt(p) for p in prompts})
    assert all(first not in repeats and first < row for row, first in repeats.items())
