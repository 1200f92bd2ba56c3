"""The table of metrics: the page made of it is current, and no stage logs what it lacks."""

from pathlib import Path

import pytest

from klear.configs.metrics import metrics, page, place

ROOT = Path(__file__).parents[2]


def test_the_page_of_metrics_is_current():
    assert (ROOT / "docs/metrics.md").read_text() == page(), "make docs"


def test_every_pattern_stands_once_and_none_hides_one_below_it():
    patterns = [m.pattern for m in metrics()]
    for i, pattern in enumerate(patterns):
        assert place(pattern.replace("*", "anything")) == i, pattern


@pytest.mark.parametrize("name", ["completions/invented", "countdown_test/invented"])
def test_a_metric_that_nobody_described_has_no_place(name):
    assert place(name) == len(metrics())
