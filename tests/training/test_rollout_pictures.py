"""Histograms of a rollout: what is counted, what is drawn, and what a resumed run keeps."""

import json
from html.parser import HTMLParser

import pytest
import torch

from training.losses import Clip
from training.rollout import MicroBatch, Rollout
from training.rollout_metrics import BINS, RANGES, TokenStatistics
from training.rollout_pictures import RolloutPictures


def counts(shift=0):
    return {name: [float(i + shift) for i in range(BINS)] for name in RANGES}


def bin_of(name, value):
    low, high = RANGES[name]
    return min(BINS - 1, int((value - low) / (high - low) * BINS))


def test_tokens_and_answers_are_counted_where_they_belong_and_outliers_at_the_ends():
    statistics = TokenStatistics(longest=10)
    mask = torch.tensor([[True, True, False]])
    micro = MicroBatch(torch.zeros(1, 4, dtype=torch.long), 3, mask, torch.ones(1, 1),
                       torch.ones(1, dtype=torch.bool))  # fmt: skip
    logp, entropy = torch.tensor([[0.31, 7.0, 0.0]]), torch.tensor([[1.05, 0.15, 2.0]])
    statistics.add(logp, torch.zeros(1, 3), entropy, torch.ones(1, 3), micro, Clip())
    rollout = Rollout([torch.arange(9), torch.arange(4)], [2, 2], torch.tensor([1.26, -1.26]),
                      torch.zeros(2, dtype=torch.bool), torch.tensor([True, True]))  # fmt: skip
    statistics.add_rollout(rollout, torch.tensor([1.0, torch.nan]))
    found = statistics.histograms(lambda values: values)
    where = {name: [i for i, n in enumerate(found[name]) if n] for name in RANGES}
    assert where["log_ratio"] == [bin_of("log_ratio", 0.31), BINS - 1]
    assert where["entropy"] == [bin_of("entropy", 0.15), bin_of("entropy", 1.05)]
    assert where["answer_tokens"] == [bin_of("answer_tokens", 0.2), bin_of("answer_tokens", 0.7)]
    assert where["reward"] == [bin_of("reward", 1.0)]
    assert where["advantage"] == [bin_of("advantage", -1.26), bin_of("advantage", 1.26)]
    assert all(sum(n) == 0 for n in statistics.histograms(lambda v: v).values())


def test_a_page_has_a_picture_for_each_quantity_with_a_column_a_step(tmp_path):
    pictures = RolloutPictures(tmp_path, longest=500)
    pictures.add(counts())
    pictures.add(counts(1))

    class Count(HTMLParser):
        figures = rects = 0

        def handle_starttag(self, tag, attrs):
            self.figures += tag == "figure"
            self.rects += tag == "rect"

    page = (tmp_path / "logs/shown/histograms.html").read_text()
    parser = Count()
    parser.feed(page)
    assert parser.figures == len(RANGES)
    assert parser.rects == len(RANGES) * (BINS - 1 + BINS)  # the first step has an empty bin
    assert "0 (bottom) to 500 (top)" in page


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_resumed_run_drops_the_steps_after_its_checkpoint(tmp_path, after):
    first = RolloutPictures(tmp_path, longest=5)
    for step in range(3):
        first.add(counts(step))
    journal = tmp_path / "logs/histograms.jsonl"
    journal.write_text(journal.read_text() + '{"torn')
    second = RolloutPictures(tmp_path, longest=5, after_step=after)
    assert second.steps == [counts(step) for step in range(after)]
    assert [json.loads(line) for line in journal.read_text().splitlines()] == second.steps
