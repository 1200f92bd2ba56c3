from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.answers import k_center
from tasks.answers.embeddings import GRID
from tasks.answers.k_center import k_center_greedy


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


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lazy_picks_are_the_naive_picks(block: int, dtype: type, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(k_center, "BLOCK", block)
    points = on_grid(np.random.default_rng(block).uniform(-1, 1, size=(400, 13))).astype(dtype)
    assert k_center_greedy(points, 120, first=5).picks == naive(points, 120, 5)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 25),
    st.integers(1, 8),
)
def test_ties_and_copies_are_broken_like_the_naive_algorithm(points, k: int, block: int):
    grid = np.array(points, np.float64)
    k = min(k, len(grid))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(k_center, "BLOCK", block)
        assert k_center_greedy(grid, k).picks == naive(grid, k, 0)


def test_the_order_of_sums_changes_no_pick():
    """Columns in another order are added in another order; nearly copies would show it."""
    points = on_grid(np.random.default_rng(0).uniform(-1, 1, size=(400, 64)))
    points[200:] = points[:200]
    points[200:, 0] += GRID
    turned = np.ascontiguousarray(points[:, ::-1])
    assert k_center_greedy(points, 150).picks == k_center_greedy(turned, 150).picks


def test_radius_is_the_distance_of_the_farthest_point_to_its_center():
    line = np.array([[0.0], [10.0], [4.0], [1.0]])
    centers = k_center_greedy(line, 2)
    assert (centers.picks, centers.radius) == ([0, 1], 4.0)
    points = on_grid(np.random.default_rng(0).normal(size=(500, 6)))
    centers = k_center_greedy(points, 50)
    apart = np.linalg.norm(points[:, None] - points[centers.picks][None], axis=2)
    assert centers.radius == pytest.approx(apart.min(axis=1).max(), rel=1e-12)


def test_all_points_can_be_picked_and_each_once():
    centers = k_center_greedy(np.zeros((5, 3)), 5, first=2)
    assert centers.picks == [2, 0, 1, 3, 4]
    assert centers.radius == 0.0


@pytest.mark.parametrize("k", [0, 4])
def test_an_impossible_size_is_an_error(k: int):
    with pytest.raises(ValueError, match=f"cannot pick {k} of 3"):
        k_center_greedy(np.eye(3), k)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_point_that_is_nowhere_is_an_error_that_names_it(wrong: float):
    points = np.eye(3)
    points[1, 2] = wrong
    with pytest.raises(ValueError, match="point 1 has a coordinate that is not finite"):
        k_center_greedy(points, 2)


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    points = np.random.default_rng(0).normal(size=(300, 8))
    whole = k_center_greedy(points, 100)
    monkeypatch.setattr(k_center, "SECONDS_PER_CHECKPOINT", 0.0)
    path, real, saved = tmp_path / "picks.npz", k_center._Greedy.save, []

    def dies(self, to: Path) -> None:
        real(self, to)
        saved.append(len(self.picks))
        if saved[-1] > 50:
            raise KeyboardInterrupt

    monkeypatch.setattr(k_center._Greedy, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        k_center_greedy(points, 100, checkpoint=path)
    monkeypatch.setattr(k_center._Greedy, "save", lambda self, _: saved.append(len(self.picks)))
    before = len(saved)
    assert k_center_greedy(points, 100, checkpoint=path) == whole
    assert saved[before] > 50  # nothing is picked again
