"""The table of metrics: every pattern can be reached, and what nobody described has no place."""

import pytest

from klear.configs.metrics import metrics, place


def test_every_pattern_stands_once_and_none_hides_one_below_it():
    patterns = [m.pattern for m in metrics()]
    for i, pattern in enumerate(patterns):
        assert place(pattern.replace("*", "anything")) == i, pattern


@pytest.mark.parametrize("name", ["completions/invented", "countdown_test/invented"])
def test_a_metric_that_nobody_described_has_no_place(name):
    assert place(name) == len(metrics())
