"""What RL writes down: whole lines only, of a resumed run nothing twice, whatever a model wrote."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from klear.eval.records import Score
from klear.eval.tables import read_table
from klear.training import render
from klear.training.layout import ROLLOUT_JOURNAL, SHOWN
from klear.training.losses import group_advantages
from klear.training.rl.rollout import Rollout
from klear.training.rl.statistics import RolloutRecord
from klear.training.rl.train import RolloutJournal, RolloutRow

SEPARATORS = "a\u2028b\x85c\u2029d\x0be\x1cf\r\ng"  # str.splitlines cuts at every one of them


def row(step: int) -> RolloutRow:
    return RolloutRow(
        step=step, problem_id="p", index=0, text=SEPARATORS, reward=None, correct=None,
        pass_rate=None, verdict="IE", reason=SEPARATORS, advantage=0.0, tokens=5, trained=False,
    )  # fmt: skip


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """`journal(after_step)`: one that keeps an answer a step; the judge was away."""
    monkeypatch.setattr(render, "response_texts", lambda _, answers: [SEPARATORS] * len(answers))
    score = Score(problem_id="p", reward=None, correct=None, pass_rate=None, verdict="IE",
                  reason=SEPARATORS)  # fmt: skip
    tokenizer, reward = cast(Any, None), cast(Any, SimpleNamespace(scores=[score, score]))

    def make(after_step=0) -> RolloutJournal:
        return RolloutJournal(tmp_path, tokenizer, reward, 1, after_step)

    return make


def record(step: int) -> RolloutRecord:
    rewards = torch.tensor([[3.0, torch.nan]])
    no = torch.zeros(2, dtype=torch.bool)
    rollout = Rollout([torch.arange(9)] * 2, [4, 4], torch.zeros(2), positive=no, keep=no)
    lengths, found = torch.tensor([[5, 7]]), group_advantages(rewards)
    return RolloutRecord(step, [{}, {}], rollout, rewards, no[None], lengths, found, seconds=1.0)


@pytest.mark.parametrize("torn", ["", '{"step": 3, "pro'])
def test_a_resumed_journal_keeps_whole_rows_to_its_checkpoint(journal, tmp_path, torn):
    first = journal()
    for step in range(3):
        first.add(record(step))
    with (tmp_path / ROLLOUT_JOURNAL).open("a") as file:
        file.write(torn)  # a kill in the middle of a line
    resumed = journal(after_step=2)
    assert resumed.write(tmp_path / "rollouts.parquet") == 2
    assert list(read_table(tmp_path / "rollouts.parquet", RolloutRow)) == [row(1), row(2)]
    shown = json.loads((tmp_path / SHOWN / "rollouts/step_00003.json").read_text())
    assert [len(data) for data in shown["data"]] == [len(shown["columns"])]
