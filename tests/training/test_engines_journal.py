"""The journal of finished samples survives kills at any byte, and knows what they have cost."""

import os

import pytest

from klear.configs.settings.engines import EngineRuntime
from klear.eval.records import Sample
from klear.training.engines import generate as module
from klear.training.engines.generate import Journal


def sample(i: int, text: str = "text") -> Sample:
    return Sample(
        problem_id=f"p{i % 3}", index=i, model="m", text=f"{text} {i} ∑\n",
        prompt_tokens=10, completion_tokens=i,
    )  # fmt: skip


def test_samples_come_back_in_the_order_of_the_keys_and_the_first_of_a_key_stays(tmp_path):
    with Journal(tmp_path / "j.jsonl") as journal:
        for i in (4, 0, 2):
            journal.append(sample(i))
        journal.append(sample(0, "second"))
        keys = [("p0", 0), ("p1", 1), ("p2", 2), ("p1", 4)]
        assert list(journal.samples(keys)) == [sample(0), sample(2), sample(4)]


def test_a_file_cut_at_any_byte_keeps_every_whole_line_and_takes_new_ones(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        for i in range(3):
            journal.append(sample(i))
    whole = path.read_bytes()
    for cut in [*range(len(whole) + 1), -1]:
        # Last: blocks of zeros, as a power cut leaves them.
        path.write_bytes(whole[:cut] if cut >= 0 else whole + b"\0" * 512 + b"\n")
        lines = whole[:cut].count(b"\n") if cut >= 0 else 3
        with Journal(path) as journal:
            assert len(journal) == lines
            journal.append(sample(7))
        with Journal(path) as journal:
            assert len(journal) == lines + 1
            assert list(journal.samples([("p1", 7)])) == [sample(7)]


def test_tokens_and_cost_are_known_after_a_kill_too(tmp_path):
    path, prices = tmp_path / "j.jsonl", EngineRuntime(input_price=1.0, output_price=2.0)
    with Journal(path) as journal:
        for i in range(5):
            journal.append(sample(i))
        found = journal.figures(prices)
    assert found == {
        "samples": 5, "tokens": 10, "prompt_tokens": 50, "cost": pytest.approx(70e-6)
    }  # fmt: skip
    with Journal(path) as journal:
        assert journal.figures(prices) == found
        assert "cost" not in journal.figures(EngineRuntime())


def test_each_sample_is_forced_to_disk_before_the_call_returns_where_it_is_paid_for(
    tmp_path, monkeypatch
):
    forced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda fd: (forced.append(fd), real(fd))[1])
    with Journal(tmp_path / "j.jsonl", sync_each=True) as journal:
        for i in range(5):
            journal.append(sample(i))
            assert len(forced) == i + 1
