"""A subset of fixed size: shares of pools, rounds of answers, K-Center-Greedy and its vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.data import SelectSettings
from tasks.answers import select as module
from tasks.answers.select import GRID, choose, embed, k_center_greedy

TOPICS = ("circle area radius", "prime divisor remainder", "graph vertex edge")
PROMPTS = ["circle area radius", "prime divisor", "graph edge", "radius, Circle: area!", "$", ""]
Pools = dict[str, dict[str, list[int]]]


def candidates(pools: dict[str, int], answers: int = 1) -> Pools:
    """So many prompts of each topic in each pool, with so many answers each."""
    rows = iter(range(1_000))
    return {
        pool: {
            f"{topic} {pool}{number}": [next(rows) for _ in range(answers)]
            for topic in TOPICS
            for number in range(count)
        }
        for pool, count in pools.items()
    }


def chosen(found: Pools, seed: int = 0, **settings) -> list[str]:
    """The prompt of every chosen row, in row order."""
    prompt = {r: id_ for pool in found.values() for id_, rows in pool.items() for r in rows}
    rows = choose(found, lambda id_: f"{id_} {id_}", SelectSettings(**settings), seed)
    return [prompt[row] for row in sorted(rows)]


def test_each_pool_has_its_share_and_covers_every_topic_before_it_repeats_one():
    found = candidates({"easy": 4, "hard": 2}, answers=2)
    kept = chosen(found, balanced=True, size=6)
    for pool in ("easy", "hard"):
        topics = [prompt.split()[0] for prompt in kept if pool in prompt]
        assert sorted(topics) == ["circle", "graph", "prime"]


@pytest.mark.parametrize("size", [1, 5, 17, 100])
def test_no_more_rows_than_asked_for_and_none_twice_and_every_prompt_once_first(size: int):
    kept = chosen(candidates({"all": 3}, answers=2), size=size)
    assert len(kept) == min(size, 18)
    assert len(set(kept)) == min(size, 9)


def naive(points: np.ndarray, k: int, first: int) -> list[int]:
    points = points.astype(np.float64)
    picks = [first]
    nearest = ((points - points[first]) ** 2).sum(axis=1)
    while len(picks) < k:
        nearest[picks] = -1.0
        picks.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((points - points[picks[-1]]) ** 2).sum(axis=1))
    return picks


def on_grid(points: np.ndarray) -> np.ndarray:
    """As `embed` rounds them: what follows is exact."""
    return np.round(points / GRID) * GRID


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_lazy_picks_are_the_naive_picks(block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK", block)
    points = on_grid(np.random.default_rng(block).uniform(-1, 1, size=(400, 13)))
    points = points.astype(np.float32)
    assert k_center_greedy(points, 120, first=5) == naive(points, 120, 5)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 25),
    st.integers(1, 8),
)
def test_ties_and_copies_are_broken_like_the_naive_algorithm(points, k: int, block: int):
    grid = np.array(points, np.float64)
    k = min(k, len(grid))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        assert k_center_greedy(grid, k) == naive(grid, k, 0)


def test_the_order_of_sums_changes_no_pick():
    """Columns in another order are added in another order; nearly copies would show it."""
    points = on_grid(np.random.default_rng(0).uniform(-1, 1, size=(400, 64)))
    points[200:] = points[:200]
    points[200:, 0] += GRID
    turned = np.ascontiguousarray(points[:, ::-1])
    assert k_center_greedy(points, 150) == k_center_greedy(turned, 150)


def test_prompts_of_the_same_words_are_the_same_point():
    points = embed(PROMPTS, 256, 0)
    assert np.array_equal(points[0], points[3])
    assert len(np.unique(points, axis=0)) == len(PROMPTS) - 1
    assert points.dtype == np.float32
    assert np.array_equal(points, on_grid(points))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-4)
    assert embed(PROMPTS, 2, 0).shape == (6, 2)
    assert embed(["one prompt"] * 2, 256, 0).shape[0] == 2
