"""Rows of SFT: what is too long is reported, and what is packed does not look at its neighbour."""

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from eval.records import Example
from eval.tables import read_table, write_table
from training.checkpoints.saving import load_model, load_tokenizer
from training.packing import check_packing
from training.render import prompt_ids, response_ids
from training.sft import IGNORED, TooLong, report_too_long, tokenized, trainable


def example(problem_id, response):
    return Example(
        problem_id=problem_id, index=3, domain="math", source="s", prompt="p", response=response
    )


@pytest.fixture
def data(files, tmp_path):
    """Three examples, the middle one too long for 64 tokens."""
    path = tmp_path / "examples.parquet"
    write_table(path, Example, [example("a", "1"), example("b", "1 " * 300), example("c", "2")])
    tokenizer = load_tokenizer(files["checkpoint"])
    return path, tokenizer, tokenized(path, tokenizer, 64, tmp_path / "cache")


def test_a_row_over_the_limit_is_reported_with_its_length(data, tmp_path):
    path, tokenizer, rows = data
    report = tmp_path / "too_long.parquet"
    assert report_too_long(rows, path, 64, "cut", report) == 1
    whole = len(prompt_ids(tokenizer, ["p"])[0]) + len(response_ids(tokenizer, ["1 " * 300])[0])
    assert list(read_table(report, TooLong)) == [
        TooLong(problem_id="b", index=3, source="s", tokens=whole, max_length=64, treatment="cut")
    ]


def test_tokenising_reports_before_it_begins_and_is_done_once(data, tmp_path):
    path, tokenizer, rows = data
    told: list[tuple[int, int]] = []
    again = [
        tokenized(path, tokenizer, 64, tmp_path / "fresh", lambda *now: told.append(now)),
        tokenized(path, tokenizer, 64, tmp_path / "fresh", lambda *_: pytest.fail("made twice")),
    ]
    assert told == [(0, 3)]
    assert [list(r) for r in again] == [list(rows)] * 2


def test_rows_of_another_length_are_never_taken_from_the_cache(data, tmp_path):
    path, tokenizer, rows = data
    shorter = tokenized(path, tokenizer, 8, tmp_path / "cache")
    assert max(shorter["length"]) == 8 < max(rows["length"])


def test_without_a_row_over_the_limit_there_is_no_report(data, tmp_path):
    path, _, rows = data
    assert report_too_long(rows, path, 10_000, "cut", tmp_path / "none.parquet") == 0
    assert not (tmp_path / "none.parquet").exists()


def test_it_is_cut_or_dropped_as_the_setting_says(data):
    _, _, rows = data
    cut, lengths = trainable(rows, 64, "cut")
    assert lengths[1] == 64 == len(cut[1]["input_ids"])
    dropped, lengths = trainable(rows, 64, "drop")
    assert len(lengths) == 2
    assert dropped[0]["input_ids"] == cut[0]["input_ids"]
    assert dropped[1]["input_ids"] == cut[2]["input_ids"]


def test_the_filler_teaches_nothing(data):
    rows, lengths = trainable(data[2], 64, "cut")
    assert len(rows) == len(lengths) + 1
    assert set(rows[len(lengths)]["labels"]) == {IGNORED}


def test_nothing_left_is_an_error(data):
    with pytest.raises(ValueError, match="too_long=cut"):
        trainable(data[2], 3, "drop")


def test_no_token_of_a_pack_attends_across_samples(files):
    """Through the collator of the trainer: other tokens in one sample change no logit of another,
    and every sample has the logits it has alone."""
    model = load_model(files["checkpoint"], dtype="float32")
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    samples = [list(range(10, 10 + n)) for n in (5, 9, 3)]

    def logits(rows):
        batch = collator([{"input_ids": r, "labels": r} for r in rows])
        with torch.no_grad():
            ids, positions = batch["input_ids"], batch["position_ids"]
            return model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]

    packed = logits(samples)
    start = 0
    for i, sample in enumerate(samples):
        own = slice(start, start + len(sample))
        others = [s if i == j else [t + 50 for t in s] for j, s in enumerate(samples)]
        torch.testing.assert_close(logits(others)[own], packed[own], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logits([sample]), packed[own], rtol=1e-4, atol=1e-4)
        start += len(sample)


def test_an_attention_that_mixes_packed_samples_is_refused(files, monkeypatch):
    model = load_model(files["checkpoint"], dtype="float32")
    check_packing(model)
    forward = type(model).forward

    def without_positions(self, *args, position_ids=None, **kwargs):
        return forward(self, *args, **kwargs)  # as a kernel that ignores where a sample begins

    monkeypatch.setattr(type(model), "forward", without_positions)
    with pytest.raises(ValueError, match="see each other"):
        check_packing(model)
