from pathlib import Path

import numpy as np
import pytest

from configs.settings.data import SelectSettings
from tasks.answers.subset import Candidates, choose
from tasks.store.store import SCRATCH

TOPICS = ("circle area radius", "prime divisor remainder", "graph vertex edge")


def candidates(pools: dict[str, int], answers: int = 1) -> Candidates:
    """So many prompts of each topic in each pool, with so many answers each."""
    found, row = Candidates(), 0
    for pool, count in pools.items():
        for topic in TOPICS:
            for number in range(count):
                for _ in range(answers):
                    found.add(pool, f"{topic} {pool}{number}", row)
                    row += 1
    return found


def chosen(found: Candidates, out: Path, seed: int = 0, **settings) -> list[str]:
    """The prompt of every chosen row, in row order."""
    prompt = {r: id_ for pool in found.rows.values() for id_, rows in pool.items() for r in rows}
    picked = choose(found, lambda id_: f"{id_} {id_}", SelectSettings(**settings), seed, out)
    return [prompt[row] for row in sorted(picked.rows)]


def test_each_pool_has_its_share_and_covers_every_topic_before_it_repeats_one(tmp_path: Path):
    found = candidates({"easy": 4, "hard": 2}, answers=2)
    kept = chosen(found, tmp_path, balanced=True, size=6)
    for pool in ("easy", "hard"):
        topics = [prompt.split()[0] for prompt in kept if pool in prompt]
        assert sorted(topics) == ["circle", "graph", "prime"]


def test_without_a_size_the_smallest_pool_decides(tmp_path: Path):
    kept = chosen(candidates({"easy": 4, "hard": 2}), tmp_path, balanced=True)
    assert sum("easy" in prompt for prompt in kept) == sum("hard" in prompt for prompt in kept) == 6


@pytest.mark.parametrize("size", [1, 5, 17, 18, 100])
def test_no_more_rows_than_asked_for_and_none_twice(tmp_path: Path, size: int):
    found = candidates({"all": 3}, answers=2)
    picked = choose(found, str, SelectSettings(size=size), 0, tmp_path)
    assert len(picked.rows) == min(size, 18)


def test_the_same_seed_picks_the_same_rows_and_another_others(tmp_path: Path):
    found = candidates({"all": 5})
    runs = [tuple(chosen(found, tmp_path / str(i), s, size=4)) for i, s in enumerate([0, 0, 1, 2])]
    assert runs[0] == runs[1]
    assert len(set(runs)) > 1


def test_vectors_of_a_killed_run_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = candidates({"all": 3})
    whole = chosen(found, tmp_path / "whole", size=4)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tasks.answers.k_center.k_center_greedy", killed)
        with pytest.raises(KeyboardInterrupt):
            chosen(found, tmp_path / "out", size=4)
    (vectors,) = (tmp_path / "out" / SCRATCH).rglob("vectors.npy")
    assert len(np.load(vectors)) == 9
    monkeypatch.setattr("tasks.answers.embeddings.embed", killed)
    assert chosen(found, tmp_path / "out", size=4) == whole
