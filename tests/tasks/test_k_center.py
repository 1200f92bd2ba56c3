import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.k_center import k_center_greedy


def naive(points: np.ndarray, k: int, first: int) -> list[int]:
    picks = [first]
    nearest = ((points - points[first]) ** 2).sum(axis=1)
    while len(picks) < k:
        nearest[picks] = -1.0
        picks.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((points - points[picks[-1]]) ** 2).sum(axis=1))
    return picks


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1000])
def test_lazy_picks_are_the_naive_picks(block: int):
    points = np.random.default_rng(block).normal(size=(400, 12))
    assert k_center_greedy(points, 120, first=5, block=block).picks == naive(points, 120, 5)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 25),
    st.integers(1, 8),
)
@settings(deadline=None)
def test_ties_and_copies_are_broken_like_the_naive_algorithm(points, k: int, block: int):
    grid = np.array(points, np.float64)
    k = min(k, len(grid))
    assert k_center_greedy(grid, k, block=block).picks == naive(grid, k, 0)


def test_radius_is_the_distance_of_the_farthest_point_to_its_center():
    line = np.array([[0.0], [10.0], [4.0], [1.0]])
    centers = k_center_greedy(line, 2)
    assert centers.picks == [0, 1]
    assert centers.radius == 4.0


def test_all_points_can_be_picked_and_each_once():
    centers = k_center_greedy(np.zeros((5, 3)), 5, first=2)
    assert centers.picks == [2, 0, 1, 3, 4]
    assert centers.radius == 0.0


@pytest.mark.parametrize("k", [0, 4])
def test_an_impossible_size_is_an_error(k: int):
    with pytest.raises(ValueError, match=f"cannot pick {k} of 3"):
        k_center_greedy(np.eye(3), k)
