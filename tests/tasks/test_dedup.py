"""Dedup: which row of a query stays; near-duplicates are what verified candidates connect."""

import random
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasketch import MinHash, MinHashLSH
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import shared_rows

from klear.configs.settings.data import DedupSettings, PartsRuntime
from klear.eval.records import Problem, normalise_prompt
from klear.tasks.data import near_duplicates
from klear.tasks.data.dedup import dedup
from klear.tasks.data.near_duplicates import WEIGHTS, band_keys, buckets, folded, near_groups
from klear.tasks.store.store import Artifact, content_digest, scan
from tests.eval.evaluations_by_hand import math_problem as problem
from tests.tasks.manifests_by_hand import folder_with, kept_in, rejected_in

LONG = " ".join(f"word{i}" for i in range(40))


def run(place: Path, rows: list[Problem], **chosen):
    data, out = folder_with(place, kept=rows), place / "out"
    metrics = dedup.body(out, data, settings=DedupSettings(**chosen))
    return metrics, kept_in(out), rejected_in(out)


def duplicates(place: Path) -> list[dict]:
    return pq.read_table(place / "out" / "duplicates.parquet").to_pylist()


def test_the_first_problem_of_a_query_stays_and_the_others_name_it(tmp_path: Path):
    rows = [problem("Find x.", "a"), problem("Find y.", "a"), problem("FIND  x.", "b")]
    metrics, kept, rejected = run(tmp_path, rows)
    assert kept == rows[:2]
    assert rejected[0].reason == f"same query as {rows[0].id}"
    assert Problem.model_validate_json(rejected[0].row) == rows[2]
    assert metrics["kept/a"] == 2.0
    assert metrics["rejected/b"] == metrics["rejected_exact"] == metrics["rejected"] == 1.0
    first = {"duplicate_of": rows[0].id, "duplicate_of_row": 0, "duplicate_of_source": "a"}
    gone = {"row": 2, "id": rows[0].id, "source": "b", "kind": "exact"}
    assert duplicates(tmp_path) == [{**gone, **first}]


def test_near_duplicates_go_only_when_asked_for_and_their_repeats_name_what_is_kept(tmp_path: Path):
    rows = [problem(LONG), problem("another"), problem(LONG + " more", "b")]
    _, kept, _ = run(tmp_path / "exact", rows)
    assert kept == rows
    repeat = problem(LONG.upper() + " MORE", "c")
    metrics, kept, rejected = run(tmp_path / "near", [*rows, repeat], near=True)
    assert kept == rows[:2]
    near = f"near-duplicate of {rows[0].id}"
    assert [r.reason for r in rejected] == [near, f"same query as {rows[2].id}, {near}"]
    assert metrics["rejected_near"] == 1.0
    named = [(d["kind"], d["source"], d["duplicate_of"]) for d in duplicates(tmp_path / "near")]
    assert named == [("near", "b", rows[0].id), ("exact", "c", rows[0].id)]
    # 36 shingles of five words against 37, all 36 shared.
    pairs = pq.read_table(tmp_path / "near" / "out" / "near_pairs.parquet").to_pylist()
    assert pairs == [{"id": rows[0].id, "duplicate_id": rows[2].id, "jaccard": 36 / 37}]


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


def digest_of(problems: Path, out: Path, rows: int, workers: int = 1) -> tuple[str, Any]:
    out.mkdir(exist_ok=True)
    runtime = PartsRuntime(rows_per_part=rows, workers=workers)
    chosen = DedupSettings(near=True, runtime=runtime)
    metrics = dedup.body(out, Artifact.of_folder(problems), settings=chosen)
    return content_digest(scan(out)), dict(metrics)


def test_results_depend_on_neither_the_part_size_nor_the_workers(tmp_path):
    """A table in row groups of 20 rows with repeats and near-repeats."""
    chance = random.Random(0)
    prompts: list[str] = []
    for number in range(300):
        if number % 5 == 4:
            prompts.append(chance.choice(prompts).upper() + chance.choice(["", " é more"]))
        else:
            prompts.append(" ".join(f"w{chance.randrange(500)}" for _ in range(40)))
    folder_with(tmp_path, kept=[problem(p, chance.choice("ab")) for p in prompts])
    table = pq.read_table(tmp_path / "kept.parquet")
    pq.write_table(table, tmp_path / "kept.parquet", row_group_size=20)
    one_part = digest_of(tmp_path, tmp_path / "whole", 10**6)
    assert min(one_part[1]["rejected_exact"], one_part[1]["rejected_near"]) >= 1.0
    for rows, workers in ((1, 1), (40, 1), (90, 2)):
        assert digest_of(tmp_path, tmp_path / f"{rows}", rows, workers) == one_part


TEXTS = st.lists(st.lists(st.sampled_from("abcé"), max_size=9).map(" ".join), max_size=8)


def shingles(text: str, size: int) -> set[str]:
    words = normalise_prompt(text).split(" ")
    return {" ".join(words[i : i + size]) for i in range(max(len(words) - size + 1, 1))} - {""}


def jaccard(a: str, b: str, size: int = 3) -> float:
    one, two = shingles(a, size), shingles(b, size)
    return len(one & two) / len(one | two) if one | two else 0.0


def near(texts: list[str], jaccard: float = 0.7, shingle: int = 3, permutations: int = 128):
    """The uniting pairs, their similarities, and the first row of each text's group."""
    text = folded(texts)
    bands = band_keys(text, shingle, jaccard, permutations)
    keys = [pa.chunked_array([band]) for band in bands]
    column, rows = pa.chunked_array([text]), np.arange(len(texts))
    pairs, similarity, first = near_groups(column, keys, rows, jaccard=jaccard, shingle=shingle)
    return list(map(tuple, pairs.tolist())), similarity.tolist(), first.tolist()


@given(TEXTS)
@settings(deadline=None)
def test_groups_are_what_verified_candidates_connect(texts: list[str]):
    keys = band_keys(folded(texts), 3, 0.5, 16)
    parent = list(range(len(texts)))
    for a, b in combinations(range(len(texts)), 2):
        if (keys[:, a] == keys[:, b]).any() and jaccard(texts[a], texts[b]) >= 0.5:
            parent = [parent[a] if p == parent[b] else p for p in parent]
    pairs, similarity, first = near(texts, jaccard=0.5, permutations=16)
    assert first == [parent.index(p) for p in parent]
    assert similarity == [jaccard(texts[a], texts[b]) for a, b in pairs]
    assert len(pairs) == sum(i != f for i, f in enumerate(first))  # a forest of uniting pairs


def sketched(text: pa.Scalar) -> MinHash:
    """datasketch's own MinHash over the 32-bit hashes of our shingles."""
    data = np.frombuffer(text.as_py(), np.uint8)
    hashes = np.empty(len(data) // 2 + 1, np.uint64)
    count = near_duplicates._shingles(data, 0, len(data), 5, hashes)
    sketch = MinHash(num_perm=128, scheme="affine32", hashfunc=int)
    if count:
        sketch.update_batch((hashes[:count] >> np.uint64(32)).tolist())
    return sketch


def test_candidates_of_real_prompts_are_those_of_datasketch():
    real = (row["problem"] for row in shared_rows("deepscaler/train")[:3000])
    texts = folded([*real, "", "x y"])
    keys = band_keys(texts, 5, 0.7, 128)
    lsh = MinHashLSH(threshold=0.7, num_perm=128, weights=WEIGHTS)
    theirs: set[tuple[int, int]] = set()
    for number, text in enumerate(texts):
        sketch = sketched(text)
        theirs.update((earlier, number) for earlier in lsh.query(sketch))  # type: ignore[misc]
        lsh.insert(number, sketch)
    candidates: set[tuple[int, int]] = set()
    for band in keys:
        members, edges = buckets(band, np.arange(len(band)))
        for a, b in pairwise(edges):
            candidates.update(combinations(members[a:b].tolist(), 2))
    assert candidates == theirs
    assert len(candidates) > 50  # the sample has repeats: nothing passes for want of candidates
